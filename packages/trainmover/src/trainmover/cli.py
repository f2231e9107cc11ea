"""The commands `trainmover run`, `standby`, `move` and `status`."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from trainmover.errors import TrainmoverError, UsageError, WireError
from trainmover.state_machine import Timeouts
from trainmover.wire import Message, bound, call

DEFAULT_FOLDER = Path("trainmover-job")
END_S = 5.0
#: Causes in the verdicts of Eroica that another machine would not mend.
PROGRAM_CAUSES = {
    "python-on-critical-path",
    "garbage-collection",
    "blocking-checkpoint",
    "blocking-logging",
    "host-device-sync",
    "load-imbalance",
    "stage-imbalance",
    "fragmented-collectives",
    "slow-collective-everywhere",
    "desynchronized-collective",
    "blocked-in-user-code",
}


def _checked_address(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Check the address of a controller."""
    if text is not None:
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise click.BadParameter(f"{text} is not HOST:PORT with a port from 1 to 65535")
    return text


_folder = click.option(
    "--folder", type=click.Path(path_type=Path), default=DEFAULT_FOLDER, show_default=True, help="Files of the job."
)
_join = click.option(
    "--join",
    "address",
    callback=_checked_address,
    envvar="TRAINMOVER_CONTROLLER",
    help="The controller, HOST:PORT; default: the folder's.",
)


@click.group()
def main() -> None:
    """Replace a machine in a running PyTorch job."""


@main.command(context_settings={"ignore_unknown_options": False})
@_folder
@click.option("--host", default="127.0.0.1", show_default=True, help="Address at which the controller listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Its port; any free one by default.")
@click.option(
    "--timeout",
    "timeouts",
    type=(click.Choice([one.name for one in fields(Timeouts)]), click.FloatRange(0, min_open=True)),
    multiple=True,
    metavar="NAME SECONDS",
    help="Such as heartbeat_timeout_s 5; see docs/how-it-works.md.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(*, folder: Path, host: str, port: int, timeouts: Sequence[tuple[str, float]], command: Sequence[str]) -> None:
    """Run COMMAND (torchrun …) with a controller beside it.

    On further machines of the same job set TRAINMOVER_CONTROLLER and TRAINMOVER_TOKEN instead: no second controller
    is started.
    """
    environment = dict(os.environ)
    launcher = supervisor_command(list(command), environment)
    if "TRAINMOVER_CONTROLLER" in environment:
        raise SystemExit(_start(launcher, environment).wait())
    with ControllerProcess(folder, host, port, dict(timeouts)) as controller:
        environment.update(controller.environment)
        child = _start(launcher, environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: child.send_signal(number))
        while child.poll() is None:
            controller.watch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
    raise SystemExit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


@main.command()
@_join
@_folder
@click.option("--host", "name", help="Name of this host, for `move --to`.")
@click.option("--nproc", type=click.IntRange(1, 64), default=1, show_default=True, help="Ranks that can be taken.")
def standby(*, address: str | None, folder: Path, name: str | None, nproc: int) -> None:
    """Wait, warmed up in every role, to take over ranks of a job."""
    environment = {**os.environ, **_access(folder, address)}
    if name:
        environment["TRAINMOVER_HOST"] = name
    command = [sys.executable, "-m", "trainmover.standby"]
    children = [subprocess.Popen(command, env=environment) for _ in range(nproc)]

    def pass_on(number: int, _frame: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    raise SystemExit(max(abs(child.wait()) for child in children))


@main.command()
@click.option("--from", "sources", multiple=True, help="Host to leave; may be given several times.")
@click.option("--to", "targets", multiple=True, help="Host of the standby, one for each --from; any by default.")
@click.option("--on-verdict", type=click.File("r"), help="Take the host from a verdict of Eroica (JSON; - for stdin).")
@click.option("--min-confidence", type=click.FloatRange(0, 1), default=0.8, show_default=True)
@_join
@_folder
def move(
    *,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    on_verdict: Any,
    min_confidence: float,
    address: str | None,
    folder: Path,
) -> None:
    """Move the ranks of hosts to standbys at one iteration boundary, and wait for it."""
    if bool(sources) == (on_verdict is not None):
        raise click.UsageError("name the host with --from, or give a verdict with --on-verdict")
    if len(targets) > 1 and len(targets) != len(sources):
        raise click.UsageError(
            f"{len(sources)} hosts to leave and {len(targets)} to go to; give one --to for each --from"
        )
    access = _access(folder, address)
    try:
        if on_verdict is not None:
            worker, cause = from_verdict(on_verdict.read(), min_confidence)
            holders = {one["rank"]: one["host"] for one in ask(access, {"ask": "status"})["status"]["members"]}
            if worker not in holders:
                raise UsageError(f"the verdict names worker {worker}, which is not a rank of this job")
            sources = (holders[worker],)
            click.echo(f"verdict: {cause} on worker {worker}, so {sources[0]} is moved")
        to = targets if len(targets) > 1 else (targets or ("",)) * len(sources)
        answer = ask(access, {"ask": "move", "hosts": list(zip(sources, to, strict=True))})
    except TrainmoverError as error:
        raise click.ClickException(str(error)) from error
    click.echo(answer["text"])
    raise SystemExit(0 if answer["done"] else 1)


@main.command()
@click.option("--json", "as_json", is_flag=True)
@_join
@_folder
def status(*, as_json: bool, address: str | None, folder: Path) -> None:
    """Show which host holds which rank, the standbys, and what is under way."""
    try:
        found = ask(_access(folder, address), {"ask": "status"})["status"]
    except TrainmoverError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"generation {found['generation']}; under way: {found['under_way'] or 'nothing'}")
    for one in found["members"]:
        click.echo(f"  rank {one['rank']:<4} {one['host']:<20} step {one['step']:<8} {one['iteration_s'] * 1e3:.1f} ms")
    for one in found["standbys"]:
        state = f"ready, warm as rank {one['rank']}" if one["ready"] else "warming up"
        click.echo(f"  standby   {one['host']:<20} {state}")


def from_verdict(text: str, min_confidence: float) -> tuple[int, str]:
    """Return the worker whose host is to be left, and why: of a verdict, or of what Eroica gives to a command.

    Args:
        text: Public JSON of schema version 1: a verdict, or an order of Eroica's extra c4d (`EROICA_ON_VERDICT`).
        min_confidence: A cause that is less certain moves nothing.

    Raises:
        UsageError: It is neither, or it names no single worker that another machine would help.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        version, action = told["schema_version"], told.get("action", "isolate-worker")
        found = [{**told, "scope": "some"}] if "action" in told else told["findings"]
        causes = [
            (str(one["cause"]), list(one.get("workers", ())), float(one.get("confidence") or 0.0), one.get("scope"))
            for one in found
            if "action" in told or one.get("role") == "cause"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"this is not a verdict of Eroica (`eroica run --json FILE` writes one): {error}") from error
    if version != 1:
        raise UsageError(f"a verdict of schema version {version}; version 1 is understood")
    if action not in ("isolate-worker", "isolate-host"):
        raise UsageError(f"the order is {action}, which no move of a worker would do")
    if not causes:
        raise UsageError(f"the verdict is {told.get('verdict')} and names no cause, so nothing is moved")
    cause, workers, confidence, scope = causes[0]
    if scope != "some" or len(workers) != 1:
        raise UsageError(f"{cause} is not the fault of one worker ({scope}), so nothing is moved")
    if cause in PROGRAM_CAUSES:
        raise UsageError(f"{cause} comes from the program: on another machine it would be the same")
    if confidence < min_confidence:
        raise UsageError(
            f"{cause} on worker {workers[0]} with confidence {confidence:.2f}, below {min_confidence:.2f}; "
            "--min-confidence sets how sure it has to be"
        )
    return int(workers[0]), cause


def ask(access: dict[str, str], message: Message) -> Message:
    """Send one question to the controller and return its answer.

    Raises:
        RefusedError: It turned the question down.
        WireError: It cannot be reached.
    """
    try:
        channel, _ = call(access["TRAINMOVER_CONTROLLER"], {"kind": "operator", "token": access["TRAINMOVER_TOKEN"]})
        with contextlib.closing(channel):
            channel.send(message)
            return channel.receive()[0]
    except OSError as error:
        raise WireError(f"no controller answers at {access['TRAINMOVER_CONTROLLER']}: {error}") from error


def _access(folder: Path, address: str | None) -> dict[str, str]:
    """Return address and token: given, from the environment, or from the job's folder."""
    token = os.environ.get("TRAINMOVER_TOKEN")
    try:
        if not (token and address):
            check_folder(folder)
        if not token:
            file = folder / "token"
            facts = file.lstat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
                raise UsageError(f"{file} is not yours alone: remove it, or give another --folder")
            token = file.read_text().strip()
        address = address or json.loads((folder / "controller.json").read_text())["address"]
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(
            f"no job in {folder}: give --folder, or --join HOST:PORT and the token in TRAINMOVER_TOKEN"
        ) from error
    return {"TRAINMOVER_CONTROLLER": address, "TRAINMOVER_TOKEN": token}


def check_folder(folder: Path) -> None:
    """Check that nobody but the user could have put files into a job's folder.

    Raises:
        OSError: There is no such folder.
        UsageError: Another user could have.
    """
    facts = folder.stat()
    for owner in (folder.lstat().st_uid, facts.st_uid):
        if owner != os.getuid():
            raise UsageError(f"{folder} belongs to user {owner}: give --folder a folder of your own")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"other users may write into {folder}: give --folder a folder of your own, or chmod go-w it")


class ControllerProcess:
    """The controller as a process beside the launcher, restarted when it ends."""

    def __init__(self, folder: Path, host: str, port: int, timeouts: Mapping[str, float]) -> None:
        self._folder, self._host, self._port, self._timeouts = folder, host, port, timeouts
        self._child: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    def __enter__(self) -> ControllerProcess:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(self._folder)
            self._lock = (self._folder / "run.lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise click.ClickException(f"a job is running in {self._folder}: give --folder for another one") from error
        except (UsageError, OSError) as error:
            raise click.ClickException(str(error)) from error
        try:
            bound(self._host, self._port).close()
        except OSError as error:
            raise click.ClickException(
                f"the controller cannot listen at {self._host}:{self._port}: {error.strerror}; give another --port "
                "(0 takes any free one) or --host"
            ) from error
        for stale in ("decision.json", "controller.json", "token"):
            (self._folder / stale).unlink(missing_ok=True)
        for recording in self._folder.glob("*.recording"):
            recording.unlink()
        token = os.environ.get("TRAINMOVER_TOKEN") or secrets.token_hex(16)
        handle = os.open(self._folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token)
        self.environment = {"TRAINMOVER_TOKEN": token}
        address = self._start()
        self._port = int(address.rsplit(":", 1)[1])
        self.environment["TRAINMOVER_CONTROLLER"] = address
        return self

    def watch(self) -> None:
        """Restart the controller if it has ended; it keeps its port and decisions."""
        if self._child is not None and self._child.poll() is not None:
            try:
                self._start()
            except click.ClickException as error:  # its port is taken for the moment, or the disk is full
                click.echo(f"trainmover: {error.message}; it is tried again", err=True)
                time.sleep(1.0)

    def __exit__(self, *_args: object) -> None:
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(END_S)
            except subprocess.TimeoutExpired:  # a stopped process ends by nothing else
                self._child.kill()
                self._child.wait()
        self._lock.close()

    def _start(self) -> str:
        command = [sys.executable, "-m", "trainmover.controller", "--folder", str(self._folder), "--host", self._host]
        command += ["--port", str(self._port), "--timeouts", json.dumps(self._timeouts)]
        file = self._folder / "controller.json"
        file.unlink(missing_ok=True)
        self._child = subprocess.Popen(command, env={**os.environ, **self.environment})
        for _ in range(600):
            if file.exists():
                return str(json.loads(file.read_text())["address"])
            if self._child.poll() is not None:
                raise click.ClickException("the controller did not start")
            time.sleep(0.1)
        raise click.ClickException("the controller did not start within 60 s")


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error.strerror}") from error


def supervisor_command(command: list[str], environment: dict[str, str]) -> list[str]:
    """Return the launcher's command with a supervisor in front of the script.

    Args:
        command: `torchrun OPTIONS SCRIPT ARGUMENTS`, or `python -m torch.distributed.run …`.
        environment: TRAINMOVER_MODULE is set in it if the script is a module.
    """
    name = Path(command[0]).name
    start = 1 if name == "torchrun" else 3 if command[1:3] == ["-m", "torch.distributed.run"] else 0
    if not start:
        raise click.UsageError(f"{name}: the command has to begin with torchrun or python -m torch.distributed.run")
    from torch.distributed.run import get_args_parser

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed = get_args_parser().parse_args(command[start:])
    except SystemExit:
        reason = complaint.getvalue().strip().rpartition("\n")[2].rpartition("error: ")[2]
        raise click.UsageError(f"{name}: {reason or 'name a script to run'}") from None
    if parsed.no_python:
        raise click.UsageError("torchrun --no-python: the worker has to be a Python script")
    script = [parsed.training_script, *parsed.training_script_args]
    options = command[start : len(command) - len(script)]
    if parsed.module:
        environment["TRAINMOVER_MODULE"] = "1"
        options = [one for one in options if one not in ("-m", "--module")]
    return [*command[:start], *options, "-m", "trainmover.supervisor", *script]


if __name__ == "__main__":
    main()
