"""How `eroica` and the programs that it starts begin: isolated from whatever surrounds the user's command.

Their `PYTHONPATH`, their working directory, their `PYTHON...` variables and their own `sitecustomize` are for the
command. In our processes other versions of our libraries, or modules that bear the names of ours, could keep a training
from being started at all. Standard library only, and little of it.

As a program, `python -I start.py [--niceness=N] MODULE [ARGUMENT...]` runs a module as `python -m` would.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module

IGNORED = "EROICA_IGNORED_SIGNALS"
"""Variable by which `scripts/eroica` says which signals were ignored when it was started, as /proc shows it: hex."""
_OURS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
_PACKAGES = ("site-packages", "dist-packages")
_NICENESS = "--niceness="
COLLECTOR_NICENESS = 5


def isolated(module: str, *arguments: str, niceness: int = 0) -> list[str]:
    """Command that runs a module of ours in this Python and nothing of the user's.

    Args:
        module: Its name.
        arguments: For it.
        niceness: By how much its priority is lower than ours, from its first import on; see `step_back`.
    """
    options = [f"{_NICENESS}{niceness}"] if niceness else []
    return [sys.executable, "-I", os.path.join(_OURS, "start.py"), *options, module, *arguments]  # noqa: PTH118


def among_the_users(module: str) -> list[str]:
    """The same with the user's own modules in reach, torch before all, but not with the working directory's."""
    return [sys.executable, *isolated(module)[2:]]


def step_back(niceness: int) -> None:
    """Lower the priority of this process, and of its session if it is the first in it; where forbidden, do nothing.

    Where the kernel groups processes by session ("The autogroup feature" in sched(7); on in most distributions),
    niceness counts within a session only: a program of ours in its own would get as much of the cores as all workers of
    a host together.

    Args:
        niceness: Added to that of the process, 1-19.
    """
    with contextlib.suppress(OSError):
        ours = os.nice(niceness)
        if os.getsid(0) == os.getpid():
            with open("/proc/self/autogroup", "w") as file:  # noqa: PTH123
                file.write(str(ours))


def main() -> None:
    """The command `eroica`; where it cannot begin, the command that it was to run does."""
    if sys.argv[1:2] == ["run"]:
        _let_ctrl_c_end_us()
    if not sys.flags.isolated:
        os.execv(sys.executable, isolated("eroica", *sys.argv[1:]))
    try:
        command = import_module("eroica.cli").main
    except Exception as error:
        run_unwatched(sys.argv[1:], f"{type(error).__name__}: {error}")
        raise
    command()


def _let_ctrl_c_end_us() -> None:
    """As it would end the command, had that begun: not by an exception out of some import."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_unwatched(arguments: list[str], problem: str) -> None:
    """Become the command of `eroica run ... -- COMMAND`; returns where this is none."""
    if arguments[:1] != ["run"] or "--" not in arguments[:-1]:
        return
    command = arguments[arguments.index("--") + 1 :]
    with contextlib.suppress(OSError):  # nobody listens
        os.write(2, f"eroica: the job runs unwatched: {problem}\n".encode("utf-8", "replace"))
    _give_signals_back()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"eroica: cannot run {command[0]!r}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _give_signals_back() -> None:
    """What Python ignores for itself is not the command's, unless it was ignored before."""
    import signal

    before = ignored_before(os.environ.pop(IGNORED, ""))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        if number not in before:
            signal.signal(number, signal.SIG_DFL)


def ignored_before(mask: str) -> frozenset[int]:
    """Numbers of the signals in a mask as the kernel writes it; none where it is no mask."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return frozenset()
    return frozenset(number for number in range(1, 65) if bits >> (number - 1) & 1)


def _see_our_libraries() -> None:
    """Let the modules beside ours be found, after those of the interpreter: it may know neither, isolated as it is.

    So are packages that were installed for this user only, and a folder of them that a PYTHONPATH led to.
    """
    root = os.path.dirname(_OURS)  # noqa: PTH120
    if root not in sys.path:
        first = (at for at, place in enumerate(sys.path) if place.endswith(_PACKAGES))
        sys.path.insert(next(first, len(sys.path)), root)
    if not os.environ.get("PYTHONNOUSERSITE"):
        import site

        sys.path.append(site.getusersitepackages())


def _run_module() -> None:
    if not sys.flags.isolated and _OURS in sys.path:
        sys.path.remove(_OURS)  # put first for a program
    _see_our_libraries()
    import runpy

    del sys.argv[0]
    if sys.argv[0].startswith(_NICENESS):
        step_back(int(sys.argv.pop(0).removeprefix(_NICENESS)))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module()
