"""Building: C from a plan, clang for both tiers, and words for what the verifier refuses."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cora import bpf
from cora.codegen import fast_source, hand_bytes, slow_source
from cora.errors import BuildError, Unsupported
from cora.placement import Placement
from cora.program import Program

HEADERS_DIRECTORY = Path(__file__).parent / "csrc"
#: Programs that only measuring and testing need.
_OFFLINE = ("cora_test0", "cora_test1", "cora_replay")


@dataclass(frozen=True)
class Built:
    """Both tiers of a plan, compiled.

    Attributes:
        program: The network function.
        placement: Where its tables live.
        fast: ELF object of the fast tier.
        slow: Path of the slow tier's shared library.
        hand_bytes: Bytes of the hand-over header in front of a packet that crosses.
    """

    program: Program
    placement: Placement
    fast: bytes
    slow: Path
    hand_bytes: int


def compile_runtime(directory: Path) -> Path:
    """Compile the part of the slow tier that is the same for every plan."""
    clang("-fPIC", "-c", HEADERS_DIRECTORY / "cora_slow.c", "-o", directory / "runtime.o")
    return directory / "runtime.o"


def compile_tiers(program: Program, placement: Placement, directory: Path, runtime: Path | None = None) -> Built:
    """Write and compile both tiers in a directory; `runtime` is that of `compile_runtime`, made here if None."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = {"fast": directory / "fast.bpf.c", "slow": directory / "slow.c"}
    paths["fast"].write_text(fast_source(program, placement), encoding="utf-8")
    paths["slow"].write_text(slow_source(program, placement), encoding="utf-8")
    target, library = directory / "fast.o", directory / "slow.so"
    # clang leaves out the include directory of the host's architecture when it targets BPF.
    multiarch = [f"-I{path.parent.parent}" for path in Path("/usr/include").glob("*-linux-gnu/asm/types.h")]
    bpf_options = ["-g", "-target", "bpf", "-mcpu=v3", *multiarch, "-c"]
    clang(*bpf_options, paths["fast"], "-o", target)
    clang("-fPIC", "-shared", paths["slow"], runtime or compile_runtime(directory), "-o", library)
    return Built(program, placement, target.read_bytes(), library, hand_bytes(program))


def clang(*arguments: str | Path) -> None:
    """Run clang; raise BuildError with its words where it refuses the source."""
    found = shutil.which("clang")
    if not found:
        raise Unsupported("clang is missing; install it (Debian: clang, libbpf-dev)")
    options = ["-O2", "-fno-strict-aliasing", "-Wno-everything", f"-I{HEADERS_DIRECTORY}"]
    done = subprocess.run([found, *options, *map(str, arguments)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BuildError(f"clang refused the generated code:\n{done.stderr[-2000:]}")


def load_fast(built: Built, *, offline: bool = False, trace: int = 0) -> bpf.Object:
    """Load the fast tier into the kernel.

    Args:
        built: The compiled tiers.
        offline: Load the programs that BPF_PROG_TEST_RUN calls instead of those that devices carry.
        trace: Room for packets to replay.
    """

    def wanted(name: str) -> bool:
        if name == "cora_replay":
            return trace > 0
        if name in _OFFLINE or name in {"cora_in0", "cora_in1"}:
            return (name in _OFFLINE) == offline
        return True

    if why := bpf.why_not():
        raise Unsupported(why)
    try:
        return bpf.Object(built.fast, {"cora_trace": max(1, trace)}, wanted)
    except bpf.LoadFailed as failure:
        raise BuildError(explain_refusal(built.program, built.placement, failure.log, failure.errno)) from None


def load_slow(built: Built) -> Any:
    """Load the slow tier into this process and set up its tables. Each call gives a copy with tables of its own."""
    lib = ctypes.CDLL(str(built.slow))
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, arguments in {
        "cora_set": (ctypes.c_int, pointer, pointer),
        "cora_dump": (ctypes.c_int, pointer, u32),
        "cora_raise": (ctypes.c_int, pointer, u32),
        "cora_lower": (ctypes.c_int, pointer),
        "cora_heavy": (ctypes.c_int, pointer),
        "cora_finish": (pointer, pointer),
        "cora_replay": (pointer, u32, u32),
        "cora_wire": (pointer, ctypes.c_int, ctypes.c_int),
        "cora_poll": (ctypes.c_int, ctypes.c_int),
    }.items():
        getattr(lib, name).argtypes = arguments
    for name in ("cora_pulls", "cora_replay", "cora_poll"):
        getattr(lib, name).restype = u64
    lib.cora_array.restype = pointer
    if lib.cora_open():
        raise BuildError(f"{built.program.name}: no memory for the tables of the slow tier; make them smaller")
    return lib


def explain_refusal(program: Program, placement: Placement, log: str, errno: int) -> str:
    """Return what the verifier refused: the step or table of the user's program, its last lines, what to move."""
    verified = "processed " in log  # otherwise a map could not be made, and the log speaks of types
    lines = [line for line in log.strip().splitlines() if line.strip()] if verified else []
    parts = [f"the kernel refused the fast tier of {program.name} (error {errno})"]
    table = next((name for name in program.tables if f"t_{name}" in log or f"'{name}'" in log), "") if verified else ""
    # The verifier prints a line of the source before its instructions; a step's line begins with its label.
    steps = [int(found[1]) for line in lines if (found := re.match(r"; s(\d+): ", line))]
    if steps and steps[-1] < len(program.steps):
        parts.append(f"at step {steps[-1]}: {program.describe(steps[-1])}")
        table = getattr(program.steps[steps[-1]], "table", table)
    inside = [name for name, home in placement.homes.items() if home in {"fast", "both"}]
    if inside and (not verified or "too large" in log.lower()):
        table = max(inside, key=lambda name: program.tables[name].entries)
        parts.append(f"at table {table}, its largest")
    move = table or next((name for name, home in placement.homes.items() if home != "slow"), "")
    advice = f"move table {move} to the slow tier (--home {move}=slow)" if move else "split the function in two"
    words = [f"  {line}" for line in lines[-6:]]
    tail = "\n".join(words) or "  (none; a table may be too large for the kernel or its memory)"
    return f"{' '.join(parts)}; {advice}. Its last words:\n{tail}"
