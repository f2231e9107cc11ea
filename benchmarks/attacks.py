"""Attacks on the promise that the training does not notice.

Most run a small training alone and under `eroica run`, with a window early on, and compare what it printed (every loss
to the bit, a hash of the parameters), standard error and the exit status. Those of `launcher_attacks.py` do the same
with commands of a shell; those of `process_attacks.py` are about the process and its interpreter. Lines that begin with `eroica:` are left out; more than one of them counts as noticed.

    python benchmarks/attacks.py [NAME...] [--json FILE] [--write-docs]

The results are kept in benchmarks/results/attacks.json, and `--write-docs` draws docs/results/attacks.md from them.
"""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from launcher_attacks import LAUNCHES
from process_attacks import PROCESSES

HERE = Path(__file__).parent
TRAINING = HERE / "jobs" / "attacked.py"
RESULTS = HERE / "results" / "attacks.json"
PAGE = HERE.parent / "docs" / "results" / "attacks.md"
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
        iterations: Of the training.
        code: Instead of a training: what a shell does. `$E` is empty or `eroica run ... --`, `$F` is without `--`, `$PY`
            is the Python, and `$T` the training.
    """

    what: str
    before: str = ""
    after: str = ""
    step: str = ""
    end: str = ""
    options: tuple[str, ...] = ()
    shell: str = ""
    iterations: int = 300
    code: str = ""


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

#: One iteration as a function, for loops of other kinds.
ITERATION = """
import asyncio, concurrent.futures as cf, ctypes, functools, gc, os, random, signal, threading, _thread
def iteration(i):
    optimizer.zero_grad(); loss = model(x0 * (1 + i % 7)).pow(2).mean(); loss.backward(); optimizer.step()
    print(i, loss.item().hex(), flush=True); pause(0.01)
def in_thread(work): one = threading.Thread(target=work); one.start(); one.join()
"""
#: A time limit that is tried again and again: how many limits are lost?
LIMIT = """
class Late(Exception): pass
set_off, count, lost = (lambda: signal.setitimer(signal.ITIMER_REAL, 0.002)), 400, 0
def handler(number, frame):
    del frame
    raise Late
HANDLER
signal.signal(signal.SIGALRM, handler)
p = torch.nn.Parameter(torch.ones(4)); p.grad = torch.ones(4)
class Quick(torch.optim.Optimizer):
    def step(self, closure=None): pass
quick = Quick([p], {})
for _ in range(50): quick.step()
def train():
    global lost
    for i in range(count):
        try:
            set_off(); end = time.perf_counter() + 1
            while time.perf_counter() < end: quick.step()
            lost += 1
        except (Late, OSError, KeyboardInterrupt, SystemExit): pass
    signal.setitimer(signal.ITIMER_REAL, 0); print('lost', lost)
"""
ASYNC_RAISE = """
me = threading.get_ident(); armed = threading.Event()
def raiser():
    while armed.wait():
        armed.clear(); pause(0.002); ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(WHAT))
threading.Thread(target=raiser, daemon=True).start(); set_off = armed.set
"""
WATCHDOG = """
idle = threading.Event(); threading.Thread(target=idle.wait, daemon=True, name='mine').start()
def names(): known = {t.ident: t.name for t in threading.enumerate()}; return sorted(known[i] for i in sys._current_frames())
"""


def _loop(what: str, train: str, **more: str) -> Attack:
    """A training with a loop of its own."""
    return Attack(what, after=ITERATION + "def train():\n" + textwrap.indent(train, "    "), iterations=1, **more)


def _limit(what: str, handler: str = "") -> Attack:
    return Attack(what, after=ITERATION + LIMIT.replace("HANDLER", handler), iterations=1)


ATTACKS |= {
    "one-thread": _loop("all of the training runs in a thread", "in_thread(lambda: [iteration(i) for i in range(300)])"),
    "two-pools": _loop("iterations run in two threads, seven at a time", (
        "pools = [cf.ThreadPoolExecutor(1) for _ in range(2)]\nfor i in range(300): pools[i // 7 % 2].submit(iteration, i).result()"
    )),
    "random-pool": _loop("iterations run in one of eight threads at random", (
        "pools = [cf.ThreadPoolExecutor(1) for _ in range(8)]\nfor i in range(300): random.choice(pools).submit(iteration, i).result()"
    )),
    "long-turns": _loop("iterations run in two threads, sixty at a time", (
        "pools = [cf.ThreadPoolExecutor(1) for _ in range(2)]\nfor i in range(400): pools[i // 60 % 2].submit(iteration, i).result()"
    )),
    "to-thread": _loop("iterations run in asyncio.to_thread", (
        "async def run():\n    for i in range(300): await asyncio.to_thread(iteration, i)\nasyncio.run(run())"
    )),
    "thread-each": _loop("each iteration runs in a thread of its own", "for i in range(300): in_thread(lambda: iteration(i))"),
    "threads-end": _loop("a thread ends after each 45 iterations", (
        "for n in range(7): in_thread(lambda: [iteration(45 * n + i) for i in range(45)])"
    )),
    "thread-then-main": _loop("a thread trains, ends, and the main thread goes on", (
        "in_thread(lambda: [iteration(i) for i in range(120)])\nfor i in range(120, 300): iteration(i)"
    )),
    "main-then-thread": _loop("the main thread trains, then another one, which the process does not wait for", (
        "for i in range(120): iteration(i)\nthreading.Thread(target=lambda: [iteration(i) for i in range(120, 300)]).start()\n"
        "while threading.active_count() > 1: pause(0.05)"
    )),
    "daemon": _loop("a daemon thread trains while the process ends", (
        "go = threading.Event()\ndef endless():\n    i = 0\n    while True:\n        quiet(); i += 1\n        i < 250 or go.set()\n"
        "def quiet(): optimizer.zero_grad(); model(x0).sum().backward(); optimizer.step(); pause(0.01)\n"
        "threading.Thread(target=endless, daemon=True).start(); go.wait(); print('ended', flush=True); os._exit(0)"
    )),
    "two-trainings": _loop("two threads train a model each", (
        "q = torch.nn.Linear(8, 8); other = torch.optim.SGD(q.parameters(), 0.1)\ndef second():\n"
        "    for _ in range(400): other.zero_grad(); q(torch.ones(8)).sum().backward(); other.step(); pause(0.007)\n"
        "one = threading.Thread(target=second); one.start()\nfor i in range(300): iteration(i)\none.join()"
    )),
    "common-optimizer": _loop("four threads step one optimizer as fast as they can", (
        "q = torch.nn.Parameter(torch.zeros(2)); q.grad = torch.zeros(2); other = torch.optim.SGD([q], 0.1)\n"
        "def many():\n    for _ in range(20000): other.step()\n"
        "all4 = [threading.Thread(target=many) for _ in range(4)]\n[t.start() for t in all4]\n[t.join() for t in all4]"
    )),
    "hasty-switches": _loop("three threads train, and the interpreter switches between them all the time", (
        "sys.setswitchinterval(1e-6)\ndef own():\n    q = torch.nn.Parameter(torch.zeros(2)); q.grad = torch.zeros(2)\n"
        "    o = torch.optim.SGD([q], 0.1)\n    for _ in range(3000): o.step()\n"
        "all3 = [threading.Thread(target=own) for _ in range(3)]\n[t.start() for t in all3]\nfor i in range(200): iteration(i)\n[t.join() for t in all3]"
    )),
    "profiler-elsewhere": _loop("the training profiles in another thread, again and again", (
        "def profiled():\n    from torch.profiler import profile\n    for _ in range(5):\n"
        "        with profile() as p: torch.ones(9).sum(); pause(0.2)\n        pause(0.3)\n"
        "one = threading.Thread(target=profiled); one.start()\nfor i in range(300): iteration(i)\none.join()"
    )),
    "small-stacks": _loop("threads have stacks of 128 kB", (
        "threading.stack_size(131072)\nin_thread(lambda: print('began'))\nfor i in range(300): iteration(i)"
    )),
    "forks-in-threads": _loop("another thread forks children, which step the optimizer", (
        "def forks():\n    for _ in range(10):\n        child = os.fork()\n        if not child: optimizer.step(); os._exit(0)\n"
        "        os.waitpid(child, 0); pause(0.1)\n"
        "one = threading.Thread(target=forks); one.start()\nfor i in range(300): iteration(i)\none.join()"
    ), options=("-W", "ignore")),
    "exit-in-thread": _loop("the thread that trains ends by SystemExit", (
        "def leaves():\n    for i in range(200): iteration(i)\n    sys.exit(3)\nin_thread(leaves)"
    )),
    "limit-deleted-frame": _limit("a time limit's handler deletes its frame"),
    "limit-async": _limit("another thread raises a class of its own", ASYNC_RAISE.replace("WHAT", "Late")),
    "limit-async-builtin": _limit("another thread raises TimeoutError", ASYNC_RAISE.replace("WHAT", "TimeoutError")),
    "limit-interrupt": _limit("a handler raises KeyboardInterrupt", "def handler(*_): raise KeyboardInterrupt"),
    "limit-exit": _limit("a handler raises SystemExit", "def handler(*_): raise SystemExit(1)"),
    "limit-words": _limit("a handler raises TimeoutError with a text, without its frame",
                          "def handler(number, frame):\n    del frame\n    raise TimeoutError('late')"),
    "limit-partial": _limit("a handler is an object that is called",
                            "class Handler:\n    def __call__(self, *_): raise OSError(5, 'mine')\nhandler = functools.partial(Handler())"),
    "limit-below": _limit("a handler fails further down", "def handler(*_): next(iter([open('/nowhere')]))"),
    "watchdog": Attack("a watchdog looks up every frame in the list of threads, at each iteration",
                       after=ITERATION + WATCHDOG, step="found = names(); assert found == ['MainThread', 'mine'] or 'eroica' in found, found"),
    "joins-all": Attack("all threads but the main one are joined at the end", after=ITERATION, end=(
        "pause(1)\n[t.join(20) for t in threading.enumerate() if t is not threading.main_thread()]\nprint(threading.active_count())"
    )),
    "waits-for-none": Attack("the process waits until it has one thread", after=(
        ITERATION + "one = threading.Thread(target=pause, args=(2,)); one.start()"
    ), end="while threading.active_count() > 1: pause(0.01)"),
    "traced-threads": Attack("all threads are traced", after=(
        ITERATION + "seen = set()\ndef trace(frame, event, value): seen.add(frame.f_code.co_filename)\nthreading.settrace(trace)"
    ), end="in_thread(lambda: None); print(sorted(one for one in seen if 'eroica/' in one))"),
    "traced-memory": Attack("tracemalloc counts the training's own lines", options=("-X", "tracemalloc=4"), end=(
        "import tracemalloc; print(len(tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])"
        ".statistics('filename')) <= 1)"
    )),
    "waits-for-signals": Attack("a thread waits for signals, which no other thread may take", after=(
        ITERATION + "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGRTMIN]); got = []\n"
        "def take():\n    while len(got) < 200: got.append(signal.sigwait([signal.SIGUSR1, signal.SIGRTMIN]))\n"
        "one = threading.Thread(target=take); one.start()"
    ), step="i < 300 and os.kill(os.getpid(), signal.SIGRTMIN)", end="one.join(); print(len(got))"),
    "dumped-threads": Attack("faulthandler writes the stacks of several threads to standard output", after=ITERATION + WATCHDOG, end=(
        "import faulthandler; faulthandler.dump_traceback(file=sys.__stdout__, all_threads=True)"
    )),
    "no-more-threads": Attack("user 1501 may have no more threads, from the start", after=(
        "import os, resource; os.setgroups([]); os.setgid(1501); os.setuid(1501); resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))"
    )),
    "no-more-files": Attack("no more files may be opened, from the start", after=(
        "import os, resource; n = len(os.listdir('/proc/self/fd')) - 1; resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))"
    )),
    "no-more-memory": Attack("200 MB more may be mapped, from the start", after=(
        "import resource; n = int(open('/proc/self/statm').read().split()[0]) * 4096 + 200_000_000; resource.setrlimit(resource.RLIMIT_AS, (n, n))"
    )),
    "full-shm": Attack("/dev/shm is full", shell=(
        "unshare -m sh -c 'mount -t tmpfs -o size=4k none /dev/shm; head -c 9999 /dev/zero >/dev/shm/x 2>/dev/null; \"$@\"' sh \"$@\""
    )),
}  # fmt: skip
ATTACKS |= {f"start-{name}": Attack(what, code=code) for name, (what, code) in LAUNCHES.items()}
ATTACKS |= {name: Attack(**{"iterations": 250, **attack}) for name, attack in PROCESSES.items()}

#: Differences that stay.
EXPLAINED = {
    "dumped-threads": "a process of several threads has one thread of ours more. It sleeps in the kernel, so its line is"
    " `<no Python frame>`. A process of one thread gets none.",
    "start-ignored-children": "the script `eroica` is run by dash, which takes SIGCHLD back from being ignored, and"
    " shows nobody that it was.",
    "start-removed-directory": "the shell that runs the script `eroica` writes that it cannot find its directory.",
    "inherited-descriptors": "while torch's profiler saves a window, its file is open without close-on-exec.",
    "all-profiled": "a profile function of the whole process sees the ten calls that start and stop a window.",
    "own-profiler-late": "a warning of torch's own, with the time of day in it.",
    "shown-path": "the first entry of `sys.path` is the directory through which the guest starts.",
    "missing-preload": "the dynamic loader writes its line for each program, and the script `eroica` starts three.",
    "temporary-counted": "the directory `eroica-<uid>`, which is empty, stays for the next job.",
}


class Outcome(NamedTuple):
    """What came of a run."""

    status: int
    out: str
    err: str


def run(attack: Attack, watched: bool, place: Path) -> Outcome:
    """Run the training in a directory of its own."""
    work = place / ("with" if watched else "alone")
    work.mkdir()
    options = ["--quiet", "--no-footer", "--out", str(place / "out"), *WINDOW]
    eroica = [str(Path(sys.executable).with_name("eroica")), "run", *options] if watched else []
    if attack.code:
        prefix = shlex.join(eroica)
        ours = {"E": f"{prefix} --" if watched else "", "F": prefix, "PY": sys.executable, "T": str(TRAINING)}
        done = subprocess.run(
            ["/bin/bash", "-c", attack.code], cwd=work, env={**_surroundings(), **ours}, capture_output=True,
            timeout=600, check=False, start_new_session=True,
        )  # fmt: skip
        out, err = (text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr))
        return _outcome(done.returncode, out, err, work)
    program = [sys.executable, *attack.options, str(TRAINING)]
    command = ["/bin/sh", "-c", attack.shell, "sh", *program] if attack.shell else program
    if watched:
        command = [*eroica, "--", *command]
    code = {f"ATTACK_{part.upper()}": getattr(attack, part) for part in ("before", "after", "step", "end")}
    done = subprocess.run(
        command, cwd=work, env={**_surroundings(), **code, "ATTACK_ITERATIONS": str(attack.iterations)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return _outcome(done.returncode, done.stdout, done.stderr, work)


def _surroundings() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    return {**kept, **ENVIRONMENT}


def _outcome(status: int, out: str, err: str, work: Path) -> Outcome:
    ours = [line for line in err.splitlines(True) if line.startswith("eroica: ")]
    said = "".join(ours if len(ours) > 1 else []) + "".join(line for line in err.splitlines(True) if line not in ours)
    texts = (
        re.sub(
            r"USDT:[-\d :]+|0x[0-9a-f]+|W\d{4} [\d:.]+ \d+|pid \d+|line 1: +\d+|\(-?\d+ != -?\d+\)", "0x", text
        ).replace(str(work), ".")
        for text in (out, said)
    )
    return Outcome(status, *texts)


def difference(alone: Outcome, watched: Outcome) -> str:
    """What the training noticed, in a few words; "" if nothing."""
    for name in Outcome._fields:
        before, after = getattr(alone, name), getattr(watched, name)
        if before != after:
            lines = [str(each).splitlines() for each in (before, after)]
            first = next((pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]), ("", ""))
            told = [re.sub(r"/(?:[^\\s\"']+/)+", "", one)[:80] for one in first]  # where things lie is this machine's
            return f"{name}: {told[0]!r} became {told[1]!r} ({len(lines[0])} and {len(lines[1])} lines)"
    return ""


def main() -> None:
    """Run the attacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], help="default: all")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-docs", action="store_true", help="draw docs/results/attacks.md and run nothing")
    options = parser.parse_args()
    if options.write_docs:
        write_page(json.loads(options.json.read_text()))
        return
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name in options.names or ATTACKS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            root = Path(place)
            root.chmod(0o755)
            try:
                alone, watched = (run(ATTACKS[name], ours, root) for ours in (False, True))
                found = difference(alone, watched)
            except subprocess.TimeoutExpired as error:
                alone, found = Outcome(0, "", ""), f"no end within {error.timeout:.0f} s"
            logs = sorted(path.name for path in (root / "out" / "log").glob("worker-*.log"))
            windows = len(list((root / "out" / "windows").glob("*")))
            results[name] = {
                "noticed": found, "status": alone.status, "lines": len(alone.out.splitlines()), "stopped": len(logs),
                "windows": windows,
            }  # fmt: skip
        print(f"{name}: {found or 'same'}", f"(status {alone.status}, {windows} windows)", flush=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def write_page(results: dict[str, dict[str, object]]) -> None:
    """Draw the page of results."""
    held = sum(not one["noticed"] for name, one in results.items() if name in ATTACKS)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(
        "# Results: attacks\n\n`python benchmarks/attacks.py`: a training or a command, alone and under `eroica run`."
        f" {held} of {len(results)} see no difference in output, standard error and status. Differences stand in bold."
        " Results accumulate over revisions; an attack that was not run has no row."
        "\n\n"
        + "\n".join(table(results))
        + "\n\n## Differences, and why\n\n"
        + "".join(f"- {ATTACKS[name].what}: {why}\n" for name, why in EXPLAINED.items())
    )


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
