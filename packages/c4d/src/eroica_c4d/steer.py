"""`eroica steer -- COMMAND`: the reference receiver of orders. Starts a job again without the host that is named.

Each host's command is started through words of the user's choice (`--reach 'ssh {host}'`), which run `sh -s` there and
pass standard input on: the command, its variables and the secret address of orders come in by it, so that nothing needs
quotes or is seen in a list of processes, and its end ends the command there (`eroica_c4d.steered`). An order to isolate
a host or a worker of a job that stands ends the command on all hosts, takes a spare for the host that is left out, and
starts the command again with other host numbers, another port and the same arguments; where the training begins is a
matter of its own checkpoints. Everything that is done stands in a file, a line each.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import click
import msgspec
from eroica.errors import UsageError
from eroica.wire.address import is_loopback
from eroica.wire.admission import ThreadFront

from eroica_c4d import steered
from eroica_c4d.records import Order

_MOST_BYTES = 100_000
_FIRST_BYTES = 4096
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_POLL_S = 0.2
#: What a host may take longer than the command to end.
_REACH_S = 5.0
#: torch 2.13 shares the launcher's store with the workers; started again under gloo, they do not find each other.
_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass
class Fleet:
    """Which hosts take part; pure.

    Attributes:
        hosts: Those that train, by number.
        spares: Those that wait, the next one first.
        left_out: Those that were isolated.
    """

    hosts: list[str]
    spares: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def obey(self, order: Order, least: int) -> str:
        """Leave the hosts of an order out, spares in their places.

        Returns:
            Why it cannot be followed; "" if it was.
        """
        if order.action == "avoid-path":
            return "a path is to be avoided, which is not for us: plan the job's paths anew (packages/c4p)"
        if not order.restart:
            return "the job goes on, only slower: it is not ended for that"
        named = [host for host in order.hosts if host in self.hosts]
        if not named:
            return f"it names no host that trains: {', '.join(order.hosts) or 'none'}"
        if len(self.hosts) - len(named) + min(len(named), len(self.spares)) < least:
            return f"fewer than {least} hosts would be left (--least)"
        for host in named:
            at = self.hosts.index(host)
            self.left_out.append(host)
            if self.spares:
                self.hosts[at] = self.spares.pop(0)
            else:
                self.hosts.pop(at)
        return ""


@click.command()
@click.option("--hosts", required=True, help="Hosts that train, with commas between; EROICA_HOST is set to the name.")
@click.option("--spares", default="", help="Hosts that wait, with commas between.")
@click.option("--reach", default="", help="Words that run `sh -s` on a host, as 'ssh {host}'; empty: here.")
@click.option("--address", default="{host}", help="Where a host's address is not its name, as '{host}.cluster'.")
@click.option("--port", default=29600, help="Master port of the first attempt; the next one is one higher.")
@click.option("--least", default=1, help="Hosts below which the job is not started again.")
@click.option("--attempts", default=4, help="Starts at most.")
@click.option("--stop-s", default=15.0, help="Time to end cleanly, before the command is killed.")
@click.option("--act-from", default=0.95, help="Confidence from which on verdicts become orders: EROICA_ACT_FROM.")
@click.option("--listen", default="", help="Where orders are awaited, HOST:PORT; default: where --address leads from.")
@click.option("--log", "log_file", type=click.Path(path_type=Path), default=Path("eroica-steer.jsonl"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def steer(  # noqa: PLR0913 - one for each option
    *,
    hosts: str,
    spares: str,
    reach: str,
    address: str,
    port: int,
    least: int,
    attempts: int,
    stop_s: float,
    act_from: float,
    listen: str,
    log_file: Path,
    command: tuple[str, ...],
) -> None:
    """Start COMMAND on each host, follow orders of `eroica run`, start it again without the named host.

    In COMMAND, {nnodes}, {node_rank}, {host}, {master_addr}, {master_port} and {attempt} are filled in; the address for
    orders is in EROICA_ON_VERDICT_URL. As in: eroica steer --hosts a,b,c --spares d --reach 'ssh {host}' -- eroica run
    -- torchrun --nnodes {nnodes} --node-rank {node_rank} --master-addr {master_addr} --master-port {master_port}
    --nproc-per-node 8 train.py
    """
    fleet = Fleet(_names(hosts), _names(spares))
    if not fleet.hosts:
        raise UsageError("--hosts names no host")
    words = shlex.split(reach)
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"--reach: there is no command {words[0]!r} here")
    addresses = [address.replace("{host}", host) for host in (*fleet.hosts, *fleet.spares)] if words else []
    receiver = Receiver(*_doors(listen, addresses))
    run = Steered(fleet, command, reach, address, port, receiver.url, log_file, act_from)
    try:
        sys.exit(run.follow(receiver.orders, attempts, least, stop_s))
    finally:
        receiver.close()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _doors(listen: str, addresses: Sequence[str]) -> tuple[str, str]:
    """HOST:PORT to listen at, and the address of this machine that hosts at `addresses` reach it by.

    Raises:
        UsageError: It is not known.
    """
    host, _, port = listen.rpartition(":")
    if host not in ("", "0.0.0.0"):
        return listen, host
    try:
        far = [own for own in map(_own_address, addresses) if not is_loopback(own)]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"no way is known here to {', '.join(addresses)} ({getattr(error, 'strerror', error)}): say with --listen "
            "HOST:0 which address of this machine its hosts reach, or with --address where they are"
        ) from error
    shown = far[0] if far else "127.0.0.1"
    return f"{host or shown}:{port or 0}", shown


def _own_address(address: str) -> str:
    """The address (IPv4, as the server's) of this machine on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((address, 9))
        return str(one.getsockname()[0])


class Receiver:
    """Awaits orders over HTTP; whoever does not know the path is refused.

    Args:
        listen: HOST:PORT, port 0 for a free one.
        shown: The host's part in the address, where that is another one.

    Attributes:
        url: Where to send orders; a secret.
        orders: What came.

    Raises:
        UsageError: Nobody can listen there.
    """

    def __init__(self, listen: str, shown: str = "") -> None:
        host, _, port = listen.rpartition(":")
        self.orders: Queue[Order] = Queue(100)
        path = f"/{secrets.token_urlsafe(24)}"
        orders = self.orders

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                body = self.rfile.read(min(int(length), _MOST_BYTES)) if length.isdecimal() else b""
                if not length.isdecimal() or int(length) > _MOST_BYTES:
                    self.send_error(413)
                else:
                    self._take(body)

            def _take(self, body: bytes) -> None:
                try:
                    orders.put_nowait(msgspec.json.decode(body, type=Order))
                except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
                    self.send_error(400, "this is no order")
                    return
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # the path is a secret
                pass

        try:
            self._server = ThreadingHTTPServer((host, int(port)), Handler, bind_and_activate=False)
            self._server.server_bind()
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(f"--listen {listen}: {error}; name HOST:PORT of this machine") from error
        self.url = f"http://{shown or host}:{self._server.server_address[1]}{path}"
        self._path = path.encode()
        self._front = ThreadFront(self._server.socket, self._judge, _FIRST_BYTES, "eroica-steer")

    def close(self) -> None:
        """Listen no more."""
        self._front.close()

    def _judge(self, caller: socket.socket, words: bytes) -> None:
        """Give a connection that knows the path a thread; close any other one."""
        method, _, rest = words.partition(b" ")
        if method == b"POST" and secrets.compare_digest(rest.partition(b" ")[0], self._path):
            caller.setblocking(True)
            self._server.process_request(caller, caller.getsockname())
            return
        with caller, contextlib.suppress(OSError):
            caller.recv(_FIRST_BYTES)  # what was not read would reset the connection, and with it the answer
            caller.send(_NOT_FOUND)


@dataclass
class Steered:
    """The job through all its attempts.

    Attributes:
        fleet: Which hosts take part.
        command: Words, with names to be filled in.
        reach: Words that run a shell on a host, "" for this one.
        address: Address of a host by its name.
        port: Master port of the first attempt.
        url: Where orders are awaited.
        log: Gets a line for everything that is done.
        act_from: Confidence from which on verdicts become orders.
        stop_s: Time to end cleanly.
    """

    fleet: Fleet
    command: Sequence[str]
    reach: str
    address: str
    port: int
    url: str
    log: Path
    act_from: float = 0.95
    stop_s: float = 0.0
    _attempt: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _started: list[str] = field(default_factory=list)

    def follow(self, orders: Queue[Order], attempts: int, least: int, stop_s: float) -> int:
        """Run until an attempt ends by itself.

        Returns:
            Its status, the first one that is not 0; 1 where a host that is to train again has not ended the attempt
            before, so that none was started.

        Raises:
            UsageError: A host's shell was given nothing to read.
        """
        self.stop_s = stop_s
        told_to_end: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: told_to_end.append(got))
        self._start()
        while True:
            order = None
            with contextlib.suppress(Empty):
                order = orders.get(timeout=_POLL_S)
            statuses = [one.poll() for one in self._processes]
            if 0 in statuses:
                self._stop()
                raise UsageError(
                    "--reach ended with 0, so it passes no standard input on (ssh with -n, docker exec without -i), "
                    "or does not end with the status of what it runs"
                )
            statuses = [0 if status == steered.DONE else status for status in statuses]
            if told_to_end:
                self._stop()
                return 128 + told_to_end[0]
            if all(status is not None for status in statuses):
                self._hang_up()
                self._note("ended", statuses=statuses)
                return next((status for status in statuses if status), 0)
            if order is None:
                continue
            why = "it has been started often enough (--attempts)" if self._attempt >= attempts else ""
            why = why or self.fleet.obey(order, least)
            self._note("order", order=msgspec.to_builtins(order), refused=why)
            if why:
                continue
            still = [host for host in self._stop() if host in self.fleet.hosts]
            if still:
                self._note("not started again", hosts=still, why="the command is not known to have ended there")
                return 1
            self._start()

    def _start(self) -> None:
        fleet, self._attempt = self.fleet, self._attempt + 1
        facts = {
            "nnodes": len(fleet.hosts),
            "master_addr": self.address.format(host=fleet.hosts[0]),
            "master_port": self.port + self._attempt - 1,
            "attempt": self._attempt,
        }
        self._note("start", hosts=fleet.hosts, spares=fleet.spares, left_out=fleet.left_out, attempt=self._attempt)
        variables = {**_VARIABLES, "EROICA_ON_VERDICT_URL": self.url, "EROICA_ACT_FROM": str(self.act_from)}
        self._processes, self._started = [], list(fleet.hosts)
        for number, host in enumerate(fleet.hosts):
            words = [_filled(word, {**facts, "node_rank": number, "host": host}) for word in self.command]
            reach = [word.replace("{host}", host) for word in shlex.split(self.reach)]
            told = {"words": words, "variables": {**variables, "EROICA_HOST": host}, "stop_s": self.stop_s}
            process = subprocess.Popen([*reach, "sh", "-s"], stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
            self._processes.append(process)
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended: its status tells
                process.stdin.write(_program(told, "python3" if reach else sys.executable))

    def _stop(self) -> list[str]:
        """End the commands where they run; who does not answer in time is given up, its way there is ended.

        Returns:
            Hosts where processes of the command may be left: those given up, and those that say so.
        """
        began = time.monotonic()
        self._hang_up()
        end = began + self.stop_s + _REACH_S
        while any(one.poll() is None for one in self._processes) and time.monotonic() < end:
            time.sleep(0.05)
        given_up = [host for host, one in zip(self._started, self._processes, strict=True) if one.poll() is None]
        for one in self._processes:
            with contextlib.suppress(OSError):
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        codes = zip(self._started, self._processes, strict=True)
        left = [host for host, one in codes if one.returncode == steered.LEFT]
        self._note("stopped", took_s=round(time.monotonic() - began, 3), given_up=given_up, left=left)
        return given_up + left

    def _hang_up(self) -> None:
        """End the standard input of each host: what runs there ends, too."""
        for one in self._processes:
            assert one.stdin is not None
            with contextlib.suppress(OSError):
                one.stdin.close()

    def _note(self, event: str, **facts: Any) -> None:
        line = {"event": event, "at": time.time(), **facts}
        with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        shown = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "order")
        click.echo(f"eroica steer: {event} {shown}", err=True)


def _filled(word: str, facts: dict[str, Any]) -> str:
    """Only our names are filled in: braces of the command's own stay."""
    for name, value in facts.items():
        word = word.replace("{" + name + "}", str(value))
    return word


def _program(told: dict[str, Any], python: str) -> bytes:
    """A line for a shell: it becomes `eroica_c4d.steered`, with what it is told in its environment."""
    text = Path(steered.__file__).read_text(encoding="utf-8")
    words = " ".join(map(shlex.quote, (python, "-c", text)))
    return f"export EROICA_STEER={shlex.quote(json.dumps(told))}; exec {words}\n".encode()
