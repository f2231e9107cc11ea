"""Both tiers without a device: the kernel runs the fast tier by BPF_PROG_TEST_RUN, this process runs the slow tier.

This is how plans are compared with the interpreter and how coefficients are measured: the same compiled programs, maps
and hand-over as on devices, one packet at a time or a trace in a loop.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path

from cora import bpf
from cora.build import Built, compile_tiers, load_fast, load_slow
from cora.errors import BuildError
from cora.interpret import Outcome
from cora.placement import Placement
from cora.program import Program
from cora.tables import Tables

VERDICT_NAMES = ("forward", "reply", "drop", "up")
CROSSED, FAILED = 4, 5
TRACE_BYTES = 96
REPLAYED_FRAME_BYTES = 128


class Offline:
    """A plan, compiled and loaded for single packets and traces.

    Example:
        >>> with Offline(program, placement, directory) as tiers:  # doctest: +SKIP
        ...     tiers.run(frame, port=0, now_ns=1)
    """

    def __init__(
        self, program: Program, placement: Placement, directory: Path, trace: int = 0, runtime: Path | None = None
    ) -> None:
        self.built: Built = compile_tiers(program, placement, directory, runtime)
        self.fast = load_fast(self.built, offline=True, trace=trace)
        self.slow = load_slow(self.built)
        self.shared, self.trace = self.fast.maps["globals"].memory(), self.fast.maps["cora_trace"].memory()
        self.slow.cora_wire(None, -1, self.fast.programs.get("cora_bounce", -1))
        self.tables = Tables(self.built, self.fast, self.slow)
        self.crossed = 0

    def __enter__(self) -> Offline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free both tiers."""
        self.slow.cora_close()
        self.shared.close()
        self.trace.close()
        self.fast.close()

    def reset(self) -> None:
        """Put every table back to its first state."""
        for one in self.fast.maps.values():
            if not one.name.startswith("t_"):
                continue
            for key in list(one.keys()):
                if not one.delete(key):  # entries of arrays stay, and become zero
                    one.set(key, bytes(one.value_bytes))
        self.slow.cora_close()
        if self.slow.cora_open():
            raise BuildError(f"{self.built.program.name}: no memory for the tables of the slow tier")
        self.tables = Tables(self.built, self.fast, self.slow)

    def _enter(self, frame: bytes, port: int, now_ns: int) -> tuple[int, bytes]:
        self.shared[:8] = struct.pack("=Q", now_ns)
        return bpf.test_run(self.fast.programs[f"cora_test{port}"], frame)[:2]

    def run(self, frame: bytes, port: int, now_ns: int) -> Outcome:
        """Process one packet through both tiers."""
        verdict, out = self._enter(frame, port, now_ns)
        if verdict == CROSSED:
            self.crossed += 1
            buffer = ctypes.create_string_buffer(out, len(out))
            length = ctypes.c_uint32(len(out))
            verdict = self.slow.cora_finish(ctypes.addressof(buffer), ctypes.addressof(length))
            out = buffer.raw[self.built.hand_bytes : length.value]
        if verdict >= FAILED:
            raise BuildError(f"{self.built.program.name}: a tier failed on a packet of {len(frame)} bytes")
        return Outcome(VERDICT_NAMES[verdict], out)

    def hand_over(self, frame: bytes, port: int, now_ns: int = 1) -> bytes:
        """Return the packet as the fast tier hands it over; raise BuildError if it does not cross."""
        verdict, out = self._enter(frame, port, now_ns)
        if verdict != CROSSED:
            raise BuildError(f"{self.built.program.name}: the packet does not cross under this placement")
        return out

    def load_trace(self, packets: Sequence[tuple[bytes, int]], start: int = 0) -> None:
        """Store (frame, port) pairs for `replay_fast` from a place on; frames are cut or padded to 96 bytes."""
        rows = [frame[:TRACE_BYTES].ljust(TRACE_BYTES, b"\0") + struct.pack("=Q", port) for frame, port in packets]
        data, at = b"".join(rows), start * (TRACE_BYTES + 8)
        self.trace[at : at + len(data)] = data

    def replay_fast(self, packets: int, start: int = 0) -> float:
        """Return ns per packet of the fast tier over stored packets, in the kernel's own loop."""
        self.shared[:32] = struct.pack("=QQQQ", 0, start, start, start + packets)
        verdict, _, mean = bpf.test_run(self.fast.programs["cora_replay"], bytes(REPLAYED_FRAME_BYTES), packets)
        if verdict >= FAILED:
            raise BuildError(f"{self.built.program.name}: the fast tier failed on the trace")
        return float(mean)

    def slow_trace(self, handed: Sequence[bytes]) -> bytes:
        """Return packets with their hand-over headers as `replay_slow` takes them."""
        stride = self.built.hand_bytes + REPLAYED_FRAME_BYTES
        return b"".join(packet[:stride].ljust(stride, b"\0") for packet in handed)

    def replay_slow(self, trace: bytes) -> float:
        """Return ns per packet of the slow tier over a trace."""
        stride = self.built.hand_bytes + REPLAYED_FRAME_BYTES
        count = len(trace) // stride
        return float(self.slow.cora_replay(trace, stride, count)) / count
