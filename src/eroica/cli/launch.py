"""One `eroica run`: the command as it is, collector and agent beside it, kept alive and ended with it.

Nothing here may delay or disturb the command: the loop sleeps in the kernel until a signal comes, and what goes wrong
with our own processes is said once it is known before the command begins, and after it has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import click
import msgspec

from eroica.cli.footer import Footer
from eroica.cli.helper import Helper
from eroica.cli.nodes import Part, home_of
from eroica.errors import EroicaError
from eroica.settings import Settings
from eroica.start import commands_environment, executor
from eroica.wire import address
from eroica.wire.patience import FAREWELL_S, REPORT_S
from eroica.wire.places import CLOSING_FILE, Places, places, private_directory, write_whole

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_SI_KERNEL = 0x80
_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP}
_ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGXCPU}
#: What is for us alone: faults of our own code, ends of our children, writing to who has gone, the terminal's turns.
_OURS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ),
    *(signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU, signal.SIGKILL, signal.SIGSTOP),
}
_PYTHONS_OWN = {signal.SIGPIPE, signal.SIGXFSZ}
"""Ignored by every Python; `subprocess` gives their default back to what it starts, whatever held before."""
#: All others are for the command, whoever sends them: schedulers' SIGXCPU, real-time signals of a framework.
FORWARDED = signal.valid_signals() - _OURS
_ANSWER_S = 3.0  # for one question to the collector at the end
_UP_S = 10.0  # for a collector that has just been started
_STOPPED_S = 0.5
_BEFORE_THE_KILL_S = 20.0  # from the first signal that asked the command to end
_CONCLUSION_S = 3.0
_CLOSING_S = 2.0  # for windows that are open when the command is told to end
_LOOK_AGAIN_S = 0.05
_PROBE_BYTES = 65_536
_LONGEST_PROBLEM = 500
_NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)


class Impatient(BaseException):
    """A signal came while we waited for the final verdict."""


def stop_waiting(number: int, frame: object) -> None:
    """Handler of signals that come after the command has ended."""
    raise Impatient(f"{signal.Signals(number).name} came while waiting for it")


class Launch:
    """Collector, agent and command of one `eroica run`.

    Whatever fails on Eroica's side, the command runs all the same; `problems` says what failed.

    Attributes:
        where: The places of this job.
        home: Where the verdict is made, "" if here.
        started: The command could be started at all.
    """

    def __init__(
        self,
        environment: dict[str, str],
        settings: Settings,
        part: Part = Part(),  # noqa: B008 - frozen
        footer: bool = False,
        mask: Collection[int] = (),
        ignored: Collection[int] = (),
    ) -> None:
        self.where: Places = places(environment)
        self.home = ""
        self._part = part
        self._own_problems: list[str] = [part.problem] if part.problem else []
        self._told: list[str] = []
        self._unwatched = part.refused
        self._environment = environment
        self._settings = settings
        self._footer = Footer(self.where, environment)
        self._has_footer = footer and part.speaks
        self.started = self._never_begun = self._failed = False
        self._exit_status: int | None = None
        self._asked_to_end_at: float | None = None
        self._held_back: signal.struct_siginfo | None = None
        self._children_ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        if self._children_ignored:  # inherited: the kernel would neither tell of the command's end nor keep its status
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask, self._ignored = set(mask), set(ignored)
        self._collector = Helper("collector", environment, self._mask)
        self._agent = Helper("agent", environment, self._mask)
        self._helpers: list[Helper] = []
        try:
            for directory in (self.where.run, self.where.run / "log", self.where.runtime):
                private_directory(directory)
            room = self.where.run / f".room-{os.getpid()}"  # find out now whether anything can be kept
            try:
                write_whole(room, bytes(_PROBE_BYTES))
            finally:
                room.unlink(missing_ok=True)
            self._forget_last_time()
            for helper, ours in ((self._collector, part.collector), (self._agent, part.agent)):
                if ours:
                    helper.start()
                    self._helpers.append(helper)
        except Exception as error:  # noqa: BLE001 - whatever it is, the command is run
            self._own_problems.append(f"the job runs unwatched: {error or type(error).__name__}")
            self._unwatched = True

    @property
    def problems(self) -> list[str]:
        """What went wrong with us, not with the command."""
        return [*self._own_problems, *(problem for helper in self._helpers for problem in helper.problems)]

    def _forget_last_time(self) -> None:
        """Remove what an earlier job of the same name left; other hosts of this job may have begun already."""
        from eroica.archive.forget import forget

        if not self._part.collector:
            return
        (self.where.runtime / address.AWAY).unlink(missing_ok=True)
        address.forget(self.where.run, self.where.host)
        if not (self.where.run / "collector.json").exists():
            if (self.where.run / "fleet").is_dir():  # what was not handed over is packed before it is forgotten
                from eroica.fleet.reporting.reporter import close_run

                with contextlib.suppress(OSError, EroicaError):  # a full disk must not keep the job from being watched
                    close_run(self.where.run)
            forget(self.where.run)

    # ------------------------------------------------------------------ the command

    def command(self, arguments: Sequence[str]) -> int:
        """Run the command; returns its status as `subprocess` gives it (negative: the signal that ended it)."""
        self._tell_problems()  # now, while they can be mended
        watched = FORWARDED | {signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        early = self._ended_early()
        if early:
            return -early
        become = executor(arguments, self._commands_environment())

        def begin() -> None:
            self._as_we_were()
            with contextlib.suppress(OSError):  # `subprocess` then tries it, too, and says why
                become()

        try:
            process = subprocess.Popen(
                arguments,
                close_fds=False,  # what we were given is for the command: Slurm's PMI_FD, make's jobserver, `3>file`
                preexec_fn=begin,  # noqa: PLW1509 - no threads here
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            if error.errno in _NO_PROCESS:
                self._end_helpers(patient=False)
                raise
            click.echo(f"eroica: cannot run {arguments[0]!r}: {error.strerror}", err=True)
            return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE
        self.started = True
        if self._has_footer:
            self._guarded(self._footer.start)
        while process.poll() is None:
            self._guarded(self._tend)  # first: a helper's end before signals were blocked told us nothing
            if os.getpid() == 1:
                self._bury_orphans(process.pid)
            caught = self._next_signal(watched)
            if caught is not None and not self._holds_back(caught):
                self._pass_on(caught, process)
            if self._held_back is not None and not self._closing():
                self._pass_on(self._held_back, process)
        for number in watched - {signal.SIGCHLD}:  # one that came while the command was ending was for the command
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop_waiting)
        self._exit_status = process.returncode
        return process.returncode

    def _guarded(self, act: Callable[[], object]) -> None:
        """Do something for ourselves beside the command. Where that fails (no memory), nothing is done any more."""
        if self._failed:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the command goes on, and its status is still ours to pass on
            self._failed = True
            self._own_problems.append(f"the job is watched no longer: {type(error).__name__}: {error}")

    def _ended_early(self) -> int:
        """A signal that came before there was a command, and that would have ended it; 0 if none did."""
        for number in sorted(signal.sigpending() & _ENDING_SIGNALS):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._exit_status, self._never_begun = -number, True
                self._asked_to_end_at = time.monotonic()
                return int(number)
        return 0

    def _as_we_were(self) -> None:
        """In the command's process: signals as we found them."""
        if self._children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for number in self._ignored & _PYTHONS_OWN:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _commands_environment(self) -> list[bytes]:
        from eroica.worker import bootstrap_directory

        before = self._environment.get("PYTHONPATH")
        paths = [str(bootstrap_directory()), *([before] if before else [])]
        wanted = {**self._environment, "PYTHONPATH": os.pathsep.join(paths)}
        changes: dict[str, str | None] = {
            name: value for name, value in wanted.items() if os.environ.get(name) != value
        }
        return commands_environment({**changes, **dict.fromkeys(os.environ.keys() - wanted.keys())})

    def _next_signal(self, watched: set[signal.Signals]) -> signal.struct_siginfo | None:
        """Sleep until a signal comes, or until a helper is to be started again."""
        due = [helper.due for helper in self._helpers if helper.due is not None and not self._failed]
        if self._held_back is not None:
            due.append(time.monotonic() + _LOOK_AGAIN_S)
        if not due:
            return signal.sigwaitinfo(watched)
        return signal.sigtimedwait(watched, max(0.0, min(due) - time.monotonic()))

    def _holds_back(self, caught: signal.struct_siginfo) -> bool:
        """A scheduler's SIGTERM waits until open windows are saved, 2 s at most; a second one passes at once."""
        if caught.si_signo != signal.SIGTERM or self._asked_to_end_at is not None:
            return False
        if self._held_back is not None or not self._agent.running:
            return False
        try:
            (self.where.runtime / CLOSING_FILE).touch()
        except OSError:
            return False
        self._held_back, self._asked_to_end_at = caught, time.monotonic()
        return True

    def _closing(self) -> bool:
        """Whether the agent still closes windows, and may."""
        if self._asked_to_end_at is None or time.monotonic() - self._asked_to_end_at > _CLOSING_S:
            return False
        return self._agent.running and (self.where.runtime / CLOSING_FILE).exists()

    def _tend(self) -> None:
        self._footer.tend()
        for helper in self._helpers:
            helper.tend(time.monotonic())

    def _bury_orphans(self, command: int) -> None:
        """Take the status of ended processes that came to us as the first process of a container, as a shell would."""
        ours = {command, *(helper.pid for helper in self._helpers)}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in ours:
                os.waitpid(ended.si_pid, 0)

    def _pass_on(self, caught: signal.struct_siginfo, process: subprocess.Popen[bytes]) -> None:
        if caught.si_signo == signal.SIGCHLD:
            return
        if caught.si_signo in _ENDING_SIGNALS and self._asked_to_end_at is None:
            self._asked_to_end_at = time.monotonic()
        if caught.si_signo == signal.SIGTERM and self._held_back is not None:
            self._held_back = None
            (self.where.runtime / CLOSING_FILE).unlink(missing_ok=True)  # the command may go on all the same
        from_terminal = caught.si_code == _SI_KERNEL and caught.si_signo in (*_TERMINAL_SIGNALS, signal.SIGWINCH)
        if not from_terminal:  # the terminal has told the command already
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(caught.si_signo)
        if caught.si_signo == signal.SIGTSTP:  # the shell waits for us, too, to stop
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    # ------------------------------------------------------------------ the end

    @property
    def concludes(self) -> bool:
        """The job's verdict is made here, not on another node; known once the command has ended."""
        return self._part.collector and self._part.speaks and not self.home

    def finish(self) -> bytes | None:
        """Let the collector conclude; returns the final verdict's JSON, None if there is none.

        A collector that answers has `window_deadline_s` for it, less if the command was told to end a while ago. One
        that is stopped, dead or mute costs a few seconds, and 30 at most. Who is told to end meanwhile tells the
        collector, which then concludes from what it has.
        """
        patient, verdict, reason = True, None, ""
        try:
            self._conclusion_is_elsewhere()
            if self._never_begun:
                raise Impatient("the job was ended before its command was started")
            if self._collector in self._helpers and self.concludes:
                verdict = self._final_verdict()
        except (OSError, EroicaError, Impatient) as error:
            reason, patient = str(error), not isinstance(error, Impatient)
        finally:
            self._footer.end()
            self._end_helpers(patient)
        if reason and self.concludes:  # what the collector concluded when it was told to end, if it did
            with contextlib.suppress(OSError):
                verdict = (self.where.run / "verdict.json").read_bytes()
        if reason and verdict is None:
            self._own_problems.append(f"no final verdict: {reason}; see {self.where.run / 'log'}")
        self._tell_problems()
        return verdict

    def _tell_problems(self) -> None:
        """Say in one line what has gone wrong and was not said; nothing more once the job was said to be unwatched."""
        new = [] if self._unwatched and self._told else [one for one in self.problems if one not in self._told]
        self._told += new
        if new:
            with contextlib.suppress(OSError, AttributeError):  # nobody listens
                click.echo(f"eroica: {' '.join('; '.join(new).split())[:_LONGEST_PROBLEM]}", err=True)

    def _conclusion_is_elsewhere(self) -> None:
        known = home_of(self.where, self._part.collector)
        if known is not None:
            self.home = known.host
            if self._part.agent:  # other tasks of this node may still train
                address.withdraw(self.where.run, known, self.where.host)
        elif self._part.collector and (self.where.runtime / address.AWAY).exists():  # it was not found so soon
            self.home = "another node"
            self._collector.drop()  # asked to end, it would conclude, maybe over the verdict of the others

    def _end_helpers(self, patient: bool) -> None:
        """The agent has been told, or another node concludes: it hands in what it is at, and goes."""
        from eroica.agent.scratch import Scratch

        if not patient:
            for helper in self._helpers:
                helper.ask_to_end()
        if self.concludes or not patient:
            self._agent.end(1.5)
        else:
            self._agent.ask_to_end()
            self._agent.end(min(self._patience_s, self._settings.window_deadline_s / 3))
        self._collector.end(FAREWELL_S + 1.0)
        own = address.read_address(self.where.run, self.where.host) if self._part.collector else None
        if own is not None and own.pid and own.host == self.where.host:  # a collector that was killed could not
            address.withdraw(self.where.run, own, self.where.host)
        runtime = self.where.runtime
        if self._part.agent and not any(runtime.glob("*.beat")):  # the agent tidies up, unless it was killed
            shutil.rmtree(runtime, ignore_errors=True)
            Scratch(self.where.scratch, self._settings).remove()

    @property
    def _patience_s(self) -> float:
        """How long a window under way is worth waiting for.

        A scheduler that sent SIGTERM sends SIGKILL half a minute later, which would change the command's exit status.
        """
        left_s = self._settings.window_deadline_s - _CONCLUSION_S
        if self._asked_to_end_at is not None:
            left_s = min(left_s, self._asked_to_end_at + _BEFORE_THE_KILL_S - _CONCLUSION_S - time.monotonic())
        return max(0.0, left_s)

    def no_verdict(self) -> bytes:
        """What stands for a final verdict that never came."""
        from eroica.collector.history import lost_verdict

        return lost_verdict(self.where.job, self.problems, was_watched=not self._unwatched).to_json()

    def _final_verdict(self) -> bytes:
        """Ask the collector, and once more a new one if it is dead or dies over it."""
        final = self.where.run / "verdict.json"
        for attempt in range(2):
            self._collector.revive()
            if self._collector.ended_in_order:
                break
            try:
                self._tell_collector()
                self._await(final)
                break
            except (OSError, EroicaError):
                if attempt or self._collector.running or self._collector.ended_in_order:
                    raise
                self._collector.tend(time.monotonic())
        return final.read_bytes()

    def _tell_collector(self) -> None:
        from eroica.wire.messages import FinishRequest

        def is_up() -> bool:
            known = address.read_address(self.where.run, self.where.host)
            return known is not None and known.pid == self._collector.pid

        self._wait_until(is_up, _UP_S, "the collector did not come up")  # the command may have ended before it was
        time.sleep(2 * REPORT_S)  # the agent's last report
        asked = self._asked_to_end_at is not None
        told = FinishRequest(exit_status=self._exit_status, asked_to_end=asked, patience_s=self._patience_s)
        self._ask("POST", "/v1/finish", msgspec.msgpack.encode(told))

    def _await(self, final: Path) -> None:
        """Wait for the verdict as long as the collector answers."""
        end = time.monotonic() + self._patience_s + _CONCLUSION_S
        while not final.exists() and time.monotonic() < end:
            try:
                self._wait_until(final.exists, 2.0, "")
            except TimeoutError:
                if not self._collector.running:
                    raise
                self._ask("GET", "/v1/status")

    def _ask(self, method: str, path: str, body: bytes = b"") -> None:
        from eroica.cli.jobs import call

        if self._collector.stopped:
            raise TimeoutError("the collector is stopped")
        call(self.where.run, method, path, body, timeout_s=_ANSWER_S)

    def _wait_until(self, condition: Callable[[], bool], patience_s: float, complaint: str) -> None:
        """Raises TimeoutError if the condition does not come true, or cannot any more."""
        end = time.monotonic() + patience_s
        stopped_since: float | None = None
        while not condition():
            now = time.monotonic()
            stopped_since = (stopped_since or now) if self._collector.stopped else None
            if stopped_since is not None and now - stopped_since >= _STOPPED_S:
                raise TimeoutError("the collector is stopped")
            if not self._collector.running and not condition():
                raise TimeoutError("the collector has ended")
            if now >= end:
                raise TimeoutError(complaint)
            time.sleep(0.05)
