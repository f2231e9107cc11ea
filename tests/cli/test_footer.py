"""The live line of `eroica run` in real terminals: where it comes, that it goes, and that the output stays the same."""

from __future__ import annotations

import errno
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from eroica.cli.run import run
from eroica.errors import UsageError
from eroica.model.worker import Worker
from eroica.wire.messages import JobStatus, WorkerStatus

#: Runs a command under the line alone; the job's status is one that the test has written.
DRIVER = """
import os, signal, subprocess, sys
from pathlib import Path
from eroica.cli.footer import Footer
from eroica.wire.places import places
footer = Footer(places(os.environ), os.environ)
command = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGINT, signal.SIG_IGN)
footer.start()
Path(os.environ["EROICA_RUN_DIR"], "pids").write_text(f"{os.getpid()} {footer._pid} {command.pid}")
while command.poll() is None:
    footer.tend()
    try:
        command.wait(0.1)
    except subprocess.TimeoutExpired:
        pass
footer.end()
sys.exit(command.returncode)
"""
COUNTING = "import time\nfor i in range(300): print('step', i, flush=True); time.sleep(0.05)"
SHORT = (
    "import time\nfor i in range(30): print('step', i, flush=True); time.sleep(0.03)\nprint('end', end='', flush=True)"
)
OURS = re.compile(
    rb"\x1b7\x1b\[r\x1b8\x1bD(?:\x1b7\x1b\[1G\x1b\[m\x1b\[J\x1b8)?\x1b\[A"
    rb"(?:\x1b7\x1b\[1;\d+r\x1b\[\d+;1H\x1b\[m\x1b\[2K.*?\x1b\[m\x1b8)?"
    rb"|\x1b7\x1b\[r\x1b\[\d+;1H\x1b\[m\x1b\[2K\x1b8"
)
GIVEN_BACK = b"\x1b7\x1b[r\x1b["


class Job:
    """A run directory with a status, and how to start a command under the line."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "run"
        self.run.mkdir(mode=0o700)
        self._driver = directory / "driver.py"
        self._driver.write_text(DRIVER)
        worker = WorkerStatus(worker=Worker(global_rank=0, pid=1, host="n"), state="steady", iteration=40)
        status = JobStatus(job="j", phase="watching", message="", iteration=40, mean_ms=34.2, workers=(worker,))
        (self.run / "status.json").write_bytes(msgspec.json.encode(status))

    def arguments(self, code: str) -> list[str]:
        return [sys.executable, str(self._driver), sys.executable, "-c", code]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "INSIDE_EMACS")}
        ours = {"EROICA_JOB": "j", "EROICA_RUN_DIR": str(self.run), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        return {**kept, **ours, **more}

    def pids(self) -> list[int]:
        """Of the driver, of the line's process, of the command."""
        return [int(word) for word in (self.run / "pids").read_text().split()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def drawn_on_a_terminal(arguments: list[str], environment: dict[str, str], size: tuple[int, int] = (24, 80)) -> bytes:
    """All bytes that a terminal of its own is sent."""
    pid, handle = pty.fork()
    if pid == 0:
        os.execve(arguments[0], arguments, environment)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    data = b""
    while True:
        try:
            more = os.read(handle, 65_536)
        except OSError as error:
            assert error.errno == errno.EIO
            break
        if not more:
            break
        data += more
    os.close(handle)
    assert os.waitpid(pid, 0)[1] == 0
    return data


def test_it_is_drawn_and_given_back_and_the_commands_bytes_are_unchanged(job: Job) -> None:
    data = drawn_on_a_terminal(job.arguments(SHORT), job.environment())
    expected = b"".join(b"step %d\r\n" % at for at in range(30)) + b"end"
    assert b"34.2 ms" in data and b"\x1b[1;23r" in data
    assert OURS.sub(b"", data) == expected
    assert OURS.findall(data)[-1].startswith(GIVEN_BACK)


@pytest.mark.parametrize(
    "more", [{"TERM": "dumb"}, {"TERM": "unheard-of"}, {"CI": "true"}, {"INSIDE_EMACS": "29,term"}, {"TERM": ""}]
)
def test_where_it_might_not_be_borne_not_a_byte_is_written(job: Job, more: dict[str, str]) -> None:
    code = "import time; time.sleep(0.6); print('end', end='')"
    assert drawn_on_a_terminal(job.arguments(code), job.environment(**more)) == b"end"


@pytest.mark.parametrize("target", ["> out", "2> out", "| cat"])
def test_with_output_or_errors_elsewhere_not_a_byte_is_written(job: Job, tmp_path: Path, target: str) -> None:
    code = "import time; time.sleep(0.6)"
    words = shlex.join(job.arguments(code))
    shell = ["/bin/sh", "-c", f"cd '{tmp_path}'; {words} {target}"]
    assert drawn_on_a_terminal(shell, job.environment()) == b""
    assert not (tmp_path / "out").exists() or (tmp_path / "out").read_bytes() == b""


def test_while_a_program_reads_single_keys_and_before_any_worker_trains_it_stays_away(job: Job) -> None:
    code = "import time, tty; tty.setcbreak(0); time.sleep(0.8); print('end', end='')"
    data = drawn_on_a_terminal(job.arguments(code), job.environment())
    assert OURS.sub(b"", data) == b"end" and data.count(b"34.2 ms") <= 1  # once, if it came before the command's mode
    (job.run / "status.json").write_bytes(msgspec.json.encode(JobStatus(job="j", phase="waiting", message="")))
    assert drawn_on_a_terminal(job.arguments("import time; time.sleep(0.6); print(1)"), job.environment()) == b"1\r\n"


@pytest.mark.parametrize(("off", "wanted"), [([], True), (["--no-footer"], False), (["--set", "footer=no"], False)])
def test_whoever_does_not_want_it_says_so(monkeypatch: pytest.MonkeyPatch, off: list[str], wanted: bool) -> None:
    asked = []

    def launch(environment: object, settings: object, part: object, footer: bool, *_: object) -> None:
        asked.append(footer)
        raise UsageError("seen")

    monkeypatch.setattr("eroica.cli.run.Launch", launch)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        CliRunner().invoke(run, [*off, "--", "true"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # every later process would inherit what is blocked
    assert asked == [wanted]


# ---------------------------------------------------------------------- a shell in tmux


class Terminal:
    """A shell in a tmux of its own."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(directory / "tmux")]
        shell = ["env", "PS1=$ ", "bash", "--norc", "--noprofile"]
        subprocess.run(
            [*self._tmux, "new-session", "-d", "-x", "80", "-y", "16", *shell], env=environment, check=True, timeout=20
        )

    def type(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=20)

    def resize(self, columns: int, rows: int) -> None:
        subprocess.run([*self._tmux, "resize-window", "-x", str(columns), "-y", str(rows)], check=True, timeout=20)

    @property
    def screen(self) -> list[str]:
        """All rows, the empty ones at the end, too."""
        shown = subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, check=True, timeout=20)
        return shown.stdout.decode().split("\n")[:-1]

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        end = time.monotonic() + 20
        while not condition(screen := self.screen):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen  # the one that was looked at: the next one may be half drawn

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, timeout=20)


@pytest.fixture
def terminal(job: Job, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: no terminal to look at")
    environment = job.environment()
    environment.pop("TMUX", None)
    opened = Terminal(tmp_path, environment)
    yield opened
    opened.close()


def is_shown(screen: list[str]) -> bool:
    return screen[-1].startswith(" eroica  watching")


def is_clean(screen: list[str]) -> bool:
    return not any(" eroica " in row for row in screen)


def start(terminal: Terminal, job: Job, tmp_path: Path, code: str) -> None:
    (tmp_path / "go").write_text(shlex.join(job.arguments(code)))
    terminal.type("export TERM=screen-256color; clear; . " + str(tmp_path / "go"), "Enter")
    terminal.until(is_shown)


def test_stopped_continued_resized_and_interrupted(terminal: Terminal, job: Job, tmp_path: Path) -> None:
    start(terminal, job, tmp_path, COUNTING)
    terminal.type("C-z")
    terminal.until(lambda screen: is_clean(screen) and any("Stopped" in row for row in screen))
    terminal.type("fg", "Enter")
    terminal.until(is_shown)
    for columns, rows in ((60, 10), (110, 20), (80, 16)):
        terminal.resize(columns, rows)
        screen = terminal.until(lambda screen, rows=rows: len(screen) == rows and is_shown(screen))  # type: ignore[misc]
        assert sum(" eroica " in row for row in screen) == 1
    screen = terminal.screen
    steps = [int(row.split()[1]) for row in screen if row.startswith("step")]
    assert steps and steps == list(range(steps[0], steps[0] + len(steps)))
    terminal.type("C-c")
    terminal.until(lambda screen: is_clean(screen) and screen != [""] and any("KeyboardInterrupt" in r for r in screen))
    terminal.type("clear; seq 30", "Enter")
    terminal.until(lambda screen: [row for row in screen if row][-2:] == ["30", "$"])
    assert terminal.screen[-1] == "$"  # the last row is the shell's again


@pytest.mark.parametrize("victim", [0, 1])
def test_whoever_is_killed_the_terminal_is_given_back(
    terminal: Terminal, job: Job, tmp_path: Path, victim: int
) -> None:
    start(terminal, job, tmp_path, COUNTING)
    os.kill(job.pids()[victim], signal.SIGKILL)
    try:
        terminal.until(is_clean)
    finally:
        os.kill(job.pids()[2], signal.SIGKILL)
    terminal.type("clear; seq 30", "Enter")
    terminal.until(lambda screen: [row for row in screen if row][-2:] == ["30", "$"] and screen[-1] != "")
