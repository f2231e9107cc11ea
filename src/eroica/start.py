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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Variable by which `scripts/eroica` hands over the environment: entries, each with "\\0" for its end, and a final dot.
ENVIRONMENT = "EROICA_ENVIRONMENT"
IGNORED = "EROICA_IGNORED_SIGNALS"
"""Variable by which `scripts/eroica` says which signals were ignored when it was started, as /proc shows it: hex."""
_OURS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
_PACKAGES = ("site-packages", "dist-packages")
_NICENESS = "--niceness="
_COMMAND = "eroica"
COLLECTOR_NICENESS = 5
_LONGEST_PROBLEM = 300
#: Options of `eroica run` that take the next word; `scripts/eroica` has the same.
_OPTIONS_WITH_VALUES = frozenset(("--job", "--out", "--json", "--set", "--expected-iteration-s", "--fleet"))


def isolated(module: str, *arguments: str, niceness: int = 0) -> list[str]:
    """Return the command that runs a module of Eroica in this Python without anything of the user's.

    Args:
        module: Its name.
        arguments: For it.
        niceness: By how much its priority is lower than ours, from its first import on; see `step_back`.
    """
    options = [f"{_NICENESS}{niceness}"] if niceness else []
    return [sys.executable, "-I", os.path.join(_OURS, "start.py"), *options, module, *arguments]  # noqa: PTH118


def among_the_users(module: str) -> list[str]:
    """Return the same with the user's installed modules (torch), but without the working directory's."""
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


def go_first() -> None:
    """Let the kernel end this process, and what it starts, before the job where memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")


def main() -> None:
    """Run the command `eroica`; if it cannot start, become the command that it was to run."""
    global _is_the_command  # noqa: PLW0603 - one fact of the process
    _is_the_command = True
    if sys.argv[1:2] == ["run"]:
        _let_ctrl_c_end_us()
    if not sys.flags.isolated:
        keep_environment()
        os.execv(sys.executable, isolated(_COMMAND, *sys.argv[1:]))
    try:
        if sys.argv[1:2] == ["run"]:
            import_module("eroica.cli.run")
        command = import_module("eroica.cli").main
    except Exception as error:
        run_unwatched(sys.argv[1:], f"{type(error).__name__}: {error}")
        raise
    command()


def _let_ctrl_c_end_us() -> None:
    """Restore the default action of Ctrl-C, so that it does not raise out of some import."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# ---------------------------------------------------------------------- the command and its environment


def keep_environment() -> None:
    """Keep the environment as the kernel holds it for a Python that takes this one's place: it may change its own."""
    with contextlib.suppress(OSError):
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
            block = file.read()
        os.environb[ENVIRONMENT.encode()] = block.replace(b"\\", b"\\\\").replace(b"\0", b"\\0") + b"."


def given_environment() -> list[bytes]:
    """Return the entries of the environment that `eroica` was started with, unchanged and in their order.

    `scripts/eroica` and `keep_environment` hand them over. Without that they are those of this process, of which a
    shell has dropped what it cannot name.
    """
    global _given  # noqa: PLW0603 - one fact of the process
    if _given is None:
        text = os.environb.pop(ENVIRONMENT.encode(), b"")
        if text.endswith(b"."):
            pieces = [piece.replace(b"\\0", b"\0") for piece in text[:-1].split(b"\\\\")]
            _given = [entry for entry in b"\\".join(pieces).split(b"\0") if entry]
        else:
            ours = IGNORED.encode()
            _given = [name + b"=" + value for name, value in os.environb.items() if name != ours]
    return _given


_given: list[bytes] | None = None
_is_the_command = False


def commands_environment(changes: Mapping[str, str | None]) -> list[bytes]:
    """Return the given environment with other values of some variables.

    Args:
        changes: Values by name; None for a variable that shall not be there.
    """
    values = {os.fsencode(name): value for name, value in changes.items()}
    block = []
    for entry in given_environment():
        name, equals, _ = entry.partition(b"=")
        if not equals or name not in values:
            block.append(entry)
            continue
        value = values[name]
        if value is not None:
            block.append(name + b"=" + os.fsencode(value))
            values[name] = None  # a second entry of the name goes: it is the first one that counts
    there = {entry.partition(b"=")[0] for entry in block}
    new = [(name, value) for name, value in values.items() if value is not None and name not in there]
    return [*block, *(name + b"=" + os.fsencode(value) for name, value in new)]


def executor(command: Sequence[str], environment: Sequence[bytes]) -> Callable[[], None]:
    """Prepare what replaces this process, or a child that was just forked, by a command.

    Args:
        command: Its words; it is found as `execvp` finds it.
        environment: Entries, passed on byte by byte.

    Returns:
        A function that returns only by an OSError: there is no such command, or it cannot be executed.
    """
    pairs = [entry.partition(b"=") for entry in environment]
    named = {name: value for name, equals, value in reversed(pairs) if equals and name}
    try:
        import ctypes

        execute = ctypes.CDLL(None).execvpe
        words = [os.fsencode(word) for word in command]
        arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        entries = (ctypes.c_char_p * (len(environment) + 1))(*environment, None)
    except Exception:  # noqa: BLE001 - a Python without ctypes, or another C library: all but odd entries
        return lambda: os.execvpe(command[0], list(command), named)

    def become() -> None:
        execute(arguments[0], arguments, entries)
        os.execvpe(command[0], list(command), named)  # which says why

    return become


def command_of(arguments: Sequence[str]) -> list[str]:
    """Return the command of `eroica run`: what follows `--`, else from the first word that is no option on."""
    rest = list(arguments[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            return rest
        if not word.startswith("-") or word == "-":
            return [word, *rest]
        if word in _OPTIONS_WITH_VALUES:
            del rest[:1]
    return []


def run_unwatched(arguments: Sequence[str], problem: str) -> None:
    """Become the command of `eroica run`; returns where there is none, or this process is another program.

    Args:
        arguments: Those of `eroica`.
        problem: Why nobody watches it; empty if that was said.
    """
    command = command_of(arguments) if arguments[:1] == ["run"] else []
    if not command or not _is_the_command:
        return
    if problem:
        with contextlib.suppress(OSError):  # nobody listens
            text = " ".join(problem.split())[:_LONGEST_PROBLEM]
            os.write(2, f"eroica: the job runs unwatched: {text}\n".encode("utf-8", "replace"))
    _give_signals_back()
    try:
        try:
            execute = executor(command, given_environment())
        except MemoryError:  # no room for a second copy of the environment
            os.execvp(command[0], list(command))
        execute()
    except OSError as error:
        os.write(2, f"eroica: cannot run {command[0]!r}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _give_signals_back() -> None:
    """Ignore what was ignored before, whatever Python and we have made of it."""
    import signal

    before = ignored_before(os.environ.get(IGNORED, ""))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN if number in before else signal.SIG_DFL)


def ignored_before(mask: str) -> frozenset[int]:
    """Return the numbers of the signals in a mask as the kernel writes it; none if it is no mask."""
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
    if sys.argv[0] != _COMMAND:  # whose command inherits it
        go_first()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module()
