"""Attacks on the promise that the training does not notice, by somebody who has not read the code.

Each runs a small training alone and under `eroica run`, with a window early on, and compares what it printed (every
loss to the bit, a hash of the parameters), standard error and the exit status.

    python benchmarks/attacks.py [NAME...] [--json FILE]

`python benchmarks/reliability.py --write-docs` puts the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
TRAINING = HERE / "jobs" / "attacked.py"
RESULTS = HERE / "results" / "attacks.json"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
WINDOW = ("--set", "baseline_after_iterations=20", "--set", "baseline_window_s=0.5")


class Attack(NamedTuple):
    """What the training, or somebody around it, does.

    Attributes:
        what: In words.
        before: Code before torch is imported.
        after: Code before the first iteration.
        step: Code after each iteration `i`.
        end: Code at the end.
        options: Of the interpreter.
        shell: A shell command around the training, which is "$@".
    """

    what: str
    before: str = ""
    after: str = ""
    step: str = ""
    end: str = ""
    options: tuple[str, ...] = ()
    shell: str = ""


def _at(number: int, code: str) -> str:
    return f"if i == {number}:\n{textwrap.indent(code, '    ')}"


ATTACKS = {
    "gevent": Attack("gevent patches everything first", before="from gevent import monkey; monkey.patch_all()"),
    "eventlet": Attack("eventlet patches everything first", before="import eventlet; eventlet.monkey_patch()"),
    "frozen-time": Attack(
        "freezegun stops the clock for the first 100 iterations", after=(
            "import freezegun\nfrozen = freezegun.freeze_time('2020-01-01'); frozen.start()"
        ), step=_at(100, "frozen.stop()"),
    ),
    "broken-threading": Attack(
        "`threading` and `_thread` can start and lock nothing any more", after=(
            "import threading, _thread\ndef no(*a, **k): raise RuntimeError('none left')\n"
            "threading.Thread.start = threading.Lock = threading.RLock = _thread.start_new_thread = no"
        ), end="threading.Thread.start = lambda self: None",
    ),
    "broken-os": Attack(
        "`os.open`, `os.read`, `os.write` and `open` fail", after=(
            "import builtins, os\ndef no(*a, **k): raise OSError('not today')\n"
            "kept = os.open, os.read, os.write, builtins.open\nos.open = os.read = os.write = builtins.open = no"
        ), end="os.open, os.read, os.write, builtins.open = kept",
    ),
    "warnings-are-errors": Attack("all warnings are errors", options=("-W", "error")),
    "tracer": Attack(
        "a tracer counts the lines that run in the training's own file", after=(
            "import sys\nlines = [0]\ndef trace(frame, event, value):\n"
            "    if frame.f_code.co_filename == __file__: lines[0] += 1\n    return trace\nsys.settrace(trace)"
        ), end="sys.settrace(None); print('lines', lines[0])",
    ),
    "profiled": Attack(
        "cProfile counts calls of torch's functions",
        after="import cProfile; calls = cProfile.Profile(); calls.enable()",
        end=(
            "calls.disable()\ncalls.create_stats()\n"
            "print(sorted(n for (f, l, name), (c, n, *_) in calls.stats.items() if f.endswith('optim/adamw.py')))"
        ),
    ),
    "dumped-stacks": Attack(
        "faulthandler writes the stacks of all threads to standard error",
        end="import faulthandler; faulthandler.dump_traceback(all_threads=True)",
    ),
    "listed-threads": Attack(
        "the training lists its threads, its hooks on garbage collection and its signal handlers at its end",
        end=(
            "import gc, signal, threading\nprint([t.name for t in threading.enumerate()], gc.callbacks)\n"
            "print({int(n): str(signal.getsignal(n)) for n in signal.valid_signals() if n not in (17,)}.__len__(), "
            "signal.getsignal(signal.SIGALRM), signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
        ),
    ),
    "closed-descriptors": Attack(
        "every descriptor above 2 is closed as daemons do it, and files are opened in their place, twice", step=_at(
            40, "import os; os.closerange(3, 500); files = [open(f'mine-{n}', 'w+b', 0) for n in range(30)]\n"
            "[f.write(b'mine') for f in files]",
        ), end="print({os.pread(f.fileno(), 99, 0) for f in files}, {os.fstat(f.fileno()).st_size for f in files})",
    ),
    "no-streams": Attack("standard output and error are closed from the start", shell='"$@" >&- 2>&-'),
    "no-input": Attack("standard input is closed", shell='"$@" <&-'),
    "fork-and-go-on": Attack(
        "the training forks and goes on in the grandchild, a daemon with a session of its own", step=_at(
            60, "import os\nif os.fork(): os.wait(); sys.stdout.flush(); os._exit(0)\nos.setsid()\n"
            "if os.fork(): os._exit(0)",
        ),
        shell='"$@" | cat',
    ),
    "forked-children": Attack(
        "forty children are forked, half of them step the optimizer, some leave by SIGKILL", step=(
            "import os, signal\nif i % 3 == 0:\n    child = os.fork()\n    if not child:\n"
            "        if i % 2: optimizer.step()\n"
            "        os.kill(os.getpid(), signal.SIGKILL) if i % 9 == 0 else os._exit(0)\n"
            "    os.waitpid(child, 0)"
        ),
    ),
    "becomes-another": Attack(
        "the process gives up root for user 1501 at iteration 40",
        step=_at(40, "import os; os.setgroups([]); os.setgid(1501); os.setuid(1501)"),
    ),
    "chroot": Attack(
        "the process goes into an empty root at iteration 40, without /proc",
        step=_at(40, "import os; os.mkdir('root'); os.chroot('root'); os.chdir('/')"),
    ),
    "lost-directory": Attack(
        "the working directory is removed at iteration 40",
        step=_at(40, "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"),
    ),
    "deep-recursion": Attack(
        "the optimizer steps a few frames below the recursion limit", after=(
            "step = optimizer.step\ndef deep(n):\n    if n: return deep(n - 1)\n    return step()\n"
            "def at_limit():\n    import inspect\n"
            "    optimizer.__dict__.pop('step'); sys.setrecursionlimit(len(inspect.stack(0)) + 75); deep(40)\n"
            "    sys.setrecursionlimit(1000); optimizer.step = at_limit\n"
            "for _ in range(3): loss = model(x0).sum(); loss.backward(); step(); optimizer.zero_grad()\n"
            "optimizer.step = at_limit"
        ),
    ),
    "no-environment": Attack(
        "the environment is emptied before the first iteration", after="import os; os.environ.clear()"
    ),
    "hooks-cleared": Attack(
        "somebody clears torch's table of optimizer hooks, and takes all finders but Python's own away",
        step=_at(
            50, "sys.modules['torch.optim.optimizer']._global_optimizer_post_hooks.clear()\n"
            "sys.meta_path[:] = [one for one in sys.meta_path if isinstance(one, type)]",
        ),
    ),
    "copied": Attack(
        "optimizer and loader are copied deeply and pickled, each iteration with the copy", step=(
            "import copy, pickle\nif i % 10 == 0:\n"
            "    print(len(pickle.dumps((copy.deepcopy(optimizer), copy.deepcopy(loader), list(vars(iter(loader)))))))"
        ),
    ),
    "spawned-loaders": Attack(
        "the loader's two children are spawned, not forked",
        after=(
            "loader = torch.utils.data.DataLoader(\n"
            "    data, batch_size=16, num_workers=2, multiprocessing_context='spawn')"
        ),
    ),
    "exec": Attack(
        "the training replaces itself by a new process image at iteration 60",
        step=_at(60, "import os\nif 'AGAIN' not in os.environ:\n"
                 "    os.environ['AGAIN'] = '1'; os.execv(sys.executable, [sys.executable, *sys.argv])"),
    ),
    "alarm": Attack(
        "a timer's handler, which prints nothing and raises nothing, comes 2,000 times a second", after=(
            "import signal\nticks = [0]\ndef tick(*_): ticks[0] += 1\nsignal.signal(signal.SIGALRM, tick)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)"
        ), end="signal.setitimer(signal.ITIMER_REAL, 0)",
    ),
    "isolated": Attack("the training's Python is isolated (-I), another without site (-S -E)", options=("-I",)),
    "failed": Attack("an exception leaves the loop, through an excepthook of the training's", after=(
        "import traceback\ndef hook(kind, error, trace): print(*traceback.format_exception(kind, error, trace))\n"
        "sys.excepthook = hook"
    ), step=_at(80, "raise ValueError('mine')")),
}  # fmt: skip


class Outcome(NamedTuple):
    """What came of a run."""

    status: int
    out: str
    err: str


def run(attack: Attack, watched: bool, place: Path) -> Outcome:
    """Run the training in a directory of its own."""
    work = place / ("with" if watched else "alone")
    work.mkdir()
    program = [sys.executable, *attack.options, str(TRAINING)]
    command = ["/bin/sh", "-c", attack.shell, "sh", *program] if attack.shell else program
    if watched:
        ours = [str(Path(sys.executable).with_name("eroica")), "run", "--quiet", "--out", str(place / "out"), *WINDOW]
        command = [*ours, "--", *command]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    code = {f"ATTACK_{part.upper()}": getattr(attack, part) for part in ("before", "after", "step", "end")}
    done = subprocess.run(
        command, cwd=work, env={**environment, **ENVIRONMENT, **code}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    said = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("eroica: "))
    return Outcome(done.returncode, done.stdout, re.sub(r"0x[0-9a-f]+|pid \d+", "0x", said).replace(str(work), "."))


def difference(alone: Outcome, watched: Outcome) -> str:
    """What the training noticed, in a few words; "" if nothing."""
    for name in Outcome._fields:
        before, after = getattr(alone, name), getattr(watched, name)
        if before != after:
            lines = [str(each).splitlines() for each in (before, after)]
            first = next((pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]), ("", ""))
            return f"{name}: {first[0][:80]!r} became {first[1][:80]!r} ({len(lines[0])} and {len(lines[1])} lines)"
    return ""


def main() -> None:
    """Run the attacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], help="default: all")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name in options.names or ATTACKS:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            root.chmod(0o755)
            alone, watched = (run(ATTACKS[name], ours, root) for ours in (False, True))
            found = difference(alone, watched)
            logs = sorted(path.name for path in (root / "out" / "log").glob("worker-*.log"))
            windows = len(list((root / "out" / "windows").glob("*")))
            results[name] = {
                "noticed": found, "status": alone.status, "lines": len(alone.out.splitlines()), "stopped": len(logs),
                "windows": windows,
            }  # fmt: skip
        print(f"{name}: {found or 'same'}", f"(status {alone.status}, {windows} windows)", flush=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def table(results: dict[str, dict[str, object]]) -> list[str]:
    """Lines of Markdown."""
    rows = ["| what was done | what the training saw | Eroica |", "|---|---|---|"]
    for name, attack in ATTACKS.items():
        if name in results:
            one = results[name]
            saw = f"**{one['noticed']}**" if one["noticed"] else f"same; {one['lines']} lines, status {one['status']}"
            ours = {None: "–", 0: "no window"}.get(one.get("windows"), "its window was captured")
            ours = "stopped watching, and logged why" if one["stopped"] else ours
            rows.append(f"| {attack.what} | {saw} | {ours} |")
    return rows


if __name__ == "__main__":
    main()
