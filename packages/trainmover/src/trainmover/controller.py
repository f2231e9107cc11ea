"""The controller's sockets, decision file and recordings. `state_machine` decides what it does.

`python -m trainmover.controller --folder DIR` writes DIR/controller.json (address), DIR/decision.json and
DIR/controller.log. A restarted controller continues from the decision in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import re
import socket
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

from trainmover import wire
from trainmover.admission import Front
from trainmover.errors import WireError
from trainmover.state_machine import Instruction, Log, Persist, Reply, Send, StateMachine, Timeouts
from trainmover.wire import Message, bound

TICK_S = 0.1
MOST_LOG_BYTES = 10_000_000
GREETING_BYTES = 1024
"""Longest first segment in which the token is looked for; the greetings have a few hundred bytes."""
_TOKEN = re.compile(rb'"token": ?("(?:[^"\\]|\\.){0,1000}")')
_WRONG_TOKEN = "the token is not this job's (TRAINMOVER_TOKEN, or the file token in the job's folder)"


class Controller:
    """Carries out the instructions of the state machine.

    Args:
        folder: Where decisions, recordings and the log are.
        token: Who does not know it is turned away.
        timeouts: How long to wait for what.
    """

    def __init__(self, folder: Path, token: str, timeouts: Timeouts) -> None:
        self._folder, self._token = folder, json.dumps(token).encode()
        self._decision = folder / "decision.json"
        last = json.loads(self._decision.read_text()) if self._decision.exists() else None
        self._machine = StateMachine(last, timeouts, time.monotonic())
        self._machine.recordings = {path.stem for path in folder.glob("*.recording")}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._orders: dict[str, asyncio.Future[Reply]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = (folder / "controller.log").open("a", buffering=1)
        self._log_is_full = False

    async def serve(self, listener: socket.socket, host: str) -> None:
        """Accept connections until cancelled.

        Args:
            listener: Bound, not listening yet.
            host: What others know it by.
        """
        address = listener.getsockname()
        loop = asyncio.get_running_loop()

        def judge(caller: socket.socket, words: bytes) -> None:
            """Refuse a client without the token at once, on the front's thread."""
            shown = _TOKEN.search(words)
            if shown is not None and hmac.compare_digest(shown.group(1), self._token):
                loop.call_soon_threadsafe(self._start, caller)
                return
            with caller, contextlib.suppress(OSError):
                caller.recv(1 << 16)  # what was not read would reset the connection, and with it the answer
                caller.send(wire.encode({"command": "refused", "reason": _WRONG_TOKEN}))

        front = Front(listener, judge, GREETING_BYTES, "trainmover-controller")
        file = self._folder / "controller.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"address": f"{host}:{address[1]}", "pid": os.getpid()}))
        part.replace(file)
        with contextlib.closing(front):
            while True:
                await asyncio.sleep(TICK_S)
                self._do(self._machine.tick(time.monotonic()))

    def _start(self, caller: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._connected(caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, caller: socket.socket) -> None:
        """Serve a connection that has shown the token."""
        key = ""
        with contextlib.suppress(OSError):
            wire.keep_alive(caller)
        reader, writer = await asyncio.open_connection(sock=caller, limit=wire.LINE_LIMIT)
        try:
            hello, _ = await _receive(reader)
            if hello.get("version") != wire.VERSION:
                reason = f"control channel {hello.get('version')}, here {wire.VERSION}: install the same trainmover"
                writer.write(wire.encode({"command": "refused", "reason": reason}))
                return
            kind = hello["kind"]
            if kind == "operator":
                writer.write(wire.encode({"command": "welcome"}))
                message, _ = await _receive(reader)
                writer.write(wire.encode(await self._operate(message)))
                return
            key = hello["key"]
            self._writers[key] = writer
            if kind == "supervisor":
                writer.write(wire.encode({"command": "welcome"}))
                self._do(self._machine.supervisor_joined(int(hello["rank"]), key, time.monotonic()))
            else:
                self._do(self._machine.joined(key, hello, time.monotonic()))
            while True:
                message, blob = await _receive(reader)
                self._said(key, kind, message, blob)
        except (WireError, OSError, asyncio.IncompleteReadError):
            pass
        except Exception:  # noqa: BLE001 - the connection ends, its process reconnects and reports its state
            self._say(f"an error while dealing with {key or 'a caller'}:\n{traceback.format_exc()}")
        finally:
            if key and self._writers.get(key) is writer:
                del self._writers[key]
                self._do(self._machine.gone(key, time.monotonic()))
            with contextlib.suppress(OSError, RuntimeError):
                await writer.drain()
            writer.close()

    def _said(self, key: str, kind: str, message: Message, blob: bytes) -> None:
        now = time.monotonic()
        if message.get("event") == "recording":
            (self._folder / f"{message['signature']}.recording").write_bytes(blob)
        if kind == "supervisor":
            if message["event"] == "started":
                self._do(self._machine.started(key, message["member"], now))
            else:
                self._do(self._machine.exited(key, message["member"], message["status"], now))
        else:
            self._do(self._machine.said(key, message, now))

    async def _operate(self, message: Message) -> Message:
        if message.get("ask") == "status":
            return {"status": self._machine.status()}
        order = uuid.uuid4().hex[:8]
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._orders[order] = answer
        now = time.monotonic()
        hosts = [(str(source), str(target)) for source, target in message["hosts"]]
        self._do(self._machine.ordered(order, hosts, now))
        done = await answer
        return {"done": done.done, "text": done.text}

    def _do(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Persist):
                self._keep(one.decision)
            elif isinstance(one, Send):
                self._tell(one)
            elif isinstance(one, Log):
                self._say(one.text)
            elif isinstance(one, Reply):
                self._say(one.text)
                future = self._orders.pop(one.order, None)
                if future is not None and not future.done():
                    future.set_result(one)

    def _tell(self, tell: Send) -> None:
        writer = self._writers.get(tell.key)
        if writer is None or writer.is_closing():
            return
        blob = (self._folder / f"{tell.recording}.recording").read_bytes() if tell.recording else b""
        writer.write(wire.encode(tell.message, blob))

    def _keep(self, decision: dict[str, Any]) -> None:
        """Write a decision durably. If that fails, end the process before anybody hears of the decision."""
        try:
            part = self._decision.with_suffix(".part")
            with part.open("w") as file:
                json.dump(decision, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._decision)
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)  # else the rename may not outlast a power cut
            os.close(folder)
        except OSError as error:
            self._say(f"a decision cannot be written down, so this controller ends: {error}")
            os._exit(1)

    def _say(self, text: str) -> None:
        """Write a line into the log, up to `MOST_LOG_BYTES`."""
        if self._log_is_full:
            return
        if os.fstat(self._log.fileno()).st_size >= MOST_LOG_BYTES:
            self._log_is_full, text = True, "this log is full: nothing more is written"
        self._log.write(f"{time.strftime('%H:%M:%S')}.{int(time.time() * 1000) % 1000:03d} {text}\n")


async def _receive(reader: asyncio.StreamReader) -> tuple[Message, bytes]:
    try:
        message = wire.decode(await reader.readline())
        n_bytes = int(message.pop("blob", 0))
    except (ValueError, RecursionError) as error:
        raise WireError(f"what came is no message: {error}") from error
    return message, await reader.readexactly(n_bytes) if n_bytes else b""


def main() -> None:
    """Run `python -m trainmover.controller --folder DIR`; TRAINMOVER_TOKEN holds the token."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--timeouts", type=json.loads, default={})
    options = parser.parse_args()
    token = os.environ.get("TRAINMOVER_TOKEN", "")
    if not token:
        parser.error("set TRAINMOVER_TOKEN: without a token, any client could give orders")
    options.folder.mkdir(parents=True, exist_ok=True)
    controller = Controller(options.folder, token, Timeouts(**options.timeouts))
    try:
        listener = bound(options.host, options.port)
    except OSError as error:
        raise SystemExit(f"the controller cannot listen at {options.host}:{options.port}: {error.strerror}") from None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(controller.serve(listener, options.host))


if __name__ == "__main__":
    main()
