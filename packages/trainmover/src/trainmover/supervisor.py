"""The process that torchrun starts instead of a worker. It starts the worker and outlives it.

Elastic launchers end a job when one worker ends. The supervisor does not end with its worker: the controller tells it
when the job is over, or to start another process on this machine if there is no standby.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

from trainmover.errors import RefusedError, WireError
from trainmover.wire import Channel, Message, call

_AWAY_S = 60.0


class Supervisor:
    """Runs the process of one rank on this machine, and replacements of it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._rank = int(os.environ["RANK"])
        self._changed = threading.Condition()
        self._channel: Channel | None = None
        self._heard_s = time.monotonic()
        self._over: int | None = None
        self._spawn = False
        self._member = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._exit: Message | None = None

    def run(self) -> int:
        """Start the worker and stay until the job is over.

        Returns:
            The status for the launcher.
        """
        threading.Thread(target=self._listen, daemon=True).start()
        signal.signal(signal.SIGTERM, self._pass_on)
        signal.signal(signal.SIGINT, self._pass_on)
        command = self._command
        while True:
            status = self._work(command)
            self._exit = {"event": "exited", "member": self._member, "status": status}
            self._tell(self._exit)
            with self._changed:
                while self._over is None and not self._spawn:
                    self._changed.wait(0.5)
                    if self._channel is None and time.monotonic() - self._heard_s > _AWAY_S:
                        return _status(status)
                if self._over is not None:
                    return self._over
                self._spawn, self._exit = False, None
            command = [sys.executable, "-m", "trainmover.standby"]

    def _work(self, command: list[str]) -> int:
        self._member = uuid.uuid4().hex[:12]
        self._tell({"event": "started", "member": self._member})
        environment = {**os.environ, "TRAINMOVER_MEMBER": self._member, "TRAINMOVER_SUPERVISOR": str(os.getpid())}
        self._child = subprocess.Popen(command, env=environment)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(1.0)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._over = 128 + number
        if self._child is not None:
            self._child.send_signal(number)

    def _tell(self, message: Message) -> None:
        with self._changed:
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.send(message)

    def _listen(self) -> None:
        hello = {
            "kind": "supervisor",
            "token": os.environ.get("TRAINMOVER_TOKEN", ""),
            "rank": self._rank,
            "key": f"supervisor-{self._rank}-{uuid.uuid4().hex[:6]}",
        }
        while True:
            try:
                channel, _ = call(os.environ["TRAINMOVER_CONTROLLER"], hello)
                with self._changed:
                    self._channel = channel
                    if self._member:
                        channel.send({"event": "started", "member": self._member})
                    if self._exit is not None:
                        channel.send(self._exit)
                while True:
                    self._heard(channel.receive()[0])
            except RefusedError:
                return
            except (OSError, WireError):
                with self._changed:
                    if self._channel is not None:
                        self._heard_s = time.monotonic()
                    self._channel = None
                time.sleep(0.2)

    def _heard(self, message: Message) -> None:
        with self._changed:
            if message.get("command") == "over":
                self._over = int(message["status"])
            elif message.get("command") in ("spawn", "end") and message["member"] == self._member:
                self._spawn = message["command"] == "spawn"
                if self._child is not None:
                    self._child.kill()  # it is lost to the job, perhaps stopped or cut off
            self._changed.notify_all()


def _status(status: int) -> int:
    return status if status >= 0 else 128 - status


def main() -> None:
    """Run `python -m trainmover.supervisor SCRIPT ARGUMENTS`, as torchrun does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the launcher, as the worker ends with its supervisor
    module = ["-m"] if os.environ.pop("TRAINMOVER_MODULE", "") else []
    raise SystemExit(Supervisor([sys.executable, *module, *sys.argv[1:]]).run())


if __name__ == "__main__":
    main()
