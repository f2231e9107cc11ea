"""Talk with the job's collector; of several hosts, that of the host with worker 0: the job's *home*.

HTTP, never waiting long, never giving up.

Home opens its collector to the network and leaves word of it in the job's own store (the one that torch's rendezvous
uses). Every other host looks the word up, reports there, and lets its own collector end. Until then it reports to its
own collector, which opens no window meanwhile; if no word comes in minutes, the host goes on alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from eroica.agent.rendezvous import MOST_BYTES, Answer, Errand
from eroica.errors import InputError
from eroica.start import among_the_users
from eroica.wire.address import (
    AWAY,
    Address,
    announce,
    endpoint_of,
    good_token,
    is_loopback,
    outside_address,
    read_address,
    withdraw,
)
from eroica.wire.codec import decode_json, decode_message
from eroica.wire.messages import (
    AgentReport,
    CollectorReply,
    JobStatus,
    OpenReply,
    OpenRequest,
    SummaryFailure,
    refusal,
    spoken_in,
)
from eroica.wire.places import Places, write_private

log = logging.getLogger("eroica.agent")
_MOST_REPLY_BYTES = 4_000_000
_PATIENCE_S = 15.0
_NO_CONTENT, _STRANGER = 204, 401
Delivery = Literal["taken", "refused", "unanswered"]
_REPLY = "the collector's reply"


class CollectorLink:
    """Finds the collector and talks to it.

    The address comes from `EROICA_COLLECTOR` and `EROICA_TOKEN`, else from the run directory.

    Args:
        run: The run directory.
        host: This host's name, for who belongs to it. Default: any collector that can be reached; see
            `eroica.wire.address.read_address`.
    """

    def __init__(self, run: Path, host: str = "") -> None:
        self._run = run
        self._host = host
        self._client: httpx.AsyncClient | None = None
        self._refused: set[str] = set()

    async def report(self, report: AgentReport) -> CollectorReply | None:
        """Tell the collector; None if it could not be reached."""
        answer = await self._post("/v1/report", msgspec.msgpack.encode(report))
        if answer is None:
            return None
        if why := refusal(spoken_in(answer.content), "the job's collector", "this agent"):
            self._complain(_REPLY, f"is refused: {why}")
            return None
        try:
            reply = decode_message(answer.content, CollectorReply)
        except InputError as error:
            self._complain(_REPLY, f"is none: {error}")
            return None
        self._refused.discard(_REPLY)
        return reply

    async def deliver(self, pattern: bytes) -> Delivery:
        """Hand over a pattern as `encode_record` makes it."""
        answer = await self._send("/v1/patterns", pattern)
        if answer is None:
            return "unanswered"
        return "taken" if answer.is_success else "refused"

    async def hand_in(self, looks: bytes) -> bool:
        """Hand over what was seen of blocked workers; False if it could not be."""
        return await self._post("/v1/looks", looks) is not None

    async def regret(self, window_id: int, global_rank: int, note: str) -> None:
        """Say that a worker's pattern will not come."""
        failure = SummaryFailure(global_rank=global_rank, note=note)
        await self._post(f"/v1/windows/{window_id}/failures", msgspec.msgpack.encode(failure))

    async def finish(self) -> None:
        """Say that the job is over."""
        await self._post("/v1/finish", b"")

    async def close(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, path: str, body: bytes) -> httpx.Response | None:
        """The collector's answer; None if there is none, or it refuses."""
        answer = await self._send(path, body)
        return answer if answer is not None and answer.is_success else None

    async def _send(self, path: str, body: bytes) -> httpx.Response | None:
        """The collector's answer, a refusal among them; None if there is none, or somebody else gives it."""
        client = self._client = self._client or self._connect()
        if client is None:
            return None
        try:
            answer = await asyncio.wait_for(client.post(path, content=body), _PATIENCE_S)
        # not only errors of HTTP: another task may just have closed it, and an answer may be built to break a parser
        except (httpx.HTTPError, httpx.InvalidURL, asyncio.TimeoutError, RuntimeError, ValueError, LookupError):
            await self.close()  # look its address up again next time
            return None
        if answer.is_success:
            self._refused.discard(path)
            return answer
        self._complain(path, f"refused: {answer.text[:300]}")
        if answer.status_code == _STRANGER:  # one that was started again listens where the old one did
            await self.close()
            return None
        return answer

    def _complain(self, path: str, why: str) -> None:
        """Once, until it is accepted again: reports go out several times a second."""
        if path not in self._refused:
            self._refused.add(path)
            log.warning("%s %s", path, why)

    def _connect(self) -> httpx.AsyncClient | None:
        url, token = os.environ.get("EROICA_COLLECTOR", ""), os.environ.get("EROICA_TOKEN", "")
        if not url:
            address = read_address(self._run, self._host)
            if address is None:
                return None
            url, token = address.url, address.token
        return client_for(url, token)


def client_for(url: str, token: str) -> httpx.AsyncClient:
    """A client that trusts the collector with the token, but not to be short: it may be somebody else by now."""
    # the host's proxy settings are the user's, not ours
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
        timeout=5.0,
        trust_env=False,
        event_hooks={"response": [_refuse_long]},
    )


async def _refuse_long(answer: httpx.Response) -> None:
    """Before an answer is read: it must say how long it is, and that must be little."""
    length = answer.headers.get("content-length", "0" if answer.status_code == _NO_CONTENT else "")
    coded = "content-encoding" in answer.headers or "transfer-encoding" in answer.headers
    if coded or not length.isdigit() or len(length) > 9 or int(length) > _MOST_REPLY_BYTES:
        raise httpx.RemoteProtocolError("the collector's answer is too long", request=answer.request)


Role = Literal["undecided", "alone", "home", "away"]
ALL_HERE_S = 10.0
"""How long the workers of one host may take to appear after the first."""
PATIENCE_S = 300.0
"""How long word of home is waited for."""
GATHER_S = 30.0
"""How long home, once it has left word, waits for the other hosts before it opens windows."""
_LOST_S = 5.0
_ERRAND_S = 45.0
_PAUSE_S = 0.5
_RETRY_S = (2.0, 5.0, 15.0, 30.0)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the job's hosts on one worker's identity page."""

    global_rank: int
    world_size: int = 1
    local_world_size: int = 0
    master_addr: str = ""
    master_port: int = 0


def member_of(identity: Mapping[str, Any]) -> Member | None:
    """Read the facts of one identity page; None if they make no sense."""
    try:
        member = msgspec.convert(
            {name: identity[name] for name in Member.__struct_fields__ if name in identity}, Member
        )
    except msgspec.ValidationError:
        return None
    return member if len(member.master_addr) <= 253 and 0 <= member.master_port < 65536 else None


def decide(members: Sequence[Member], seen_s: float) -> Role:
    """Tell whether this host is alone, home, or one of the others.

    Args:
        members: This host's workers so far.
        seen_s: Seconds since the first of them was seen.
    """
    if not members:
        return "undecided"
    world = max(member.world_size for member in members)
    local = max(member.local_world_size for member in members)
    here = {member.global_rank for member in members}
    if max(local, len(here)) >= world:
        return "alone"
    everybody_came = len(here) >= local if local else False
    if not local and any(is_loopback(member.master_addr) for member in members):
        return "alone"  # whoever meets on loopback is on one host
    if not everybody_came and seen_s < ALL_HERE_S and not (local and 0 in here):
        return "undecided"
    return "home" if 0 in here else "away"


async def run_program(errand: Errand) -> Answer:
    """Have an errand done by `eroica.agent.rendezvous`."""
    environment = {**os.environ, "EROICA_DISABLE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = await asyncio.create_subprocess_exec(
        *among_the_users("eroica.agent.rendezvous"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        patience_s = errand.patience_s + _ERRAND_S
        out, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(errand)), patience_s)
        return decode_json(out[: 4 * MOST_BYTES], Answer)
    except (asyncio.TimeoutError, InputError) as error:
        return Answer(problem=f"the program that talks to the job's store failed: {type(error).__name__}")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


class HomeFinder:
    """Finds out where the job's collector is, and keeps up with it.

    Args:
        where: The job's directories on this host.
        reconnect: Makes the agent read the collector's address again.
        run_errand: Talks to the job's store.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        where: Places,
        reconnect: Callable[[], Awaitable[None]],
        run_errand: Callable[[Errand], Awaitable[Answer]] = run_program,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.role: Role = "alone" if os.environ.get("EROICA_COLLECTOR") else "undecided"
        self.notes: list[str] = []
        self._where = where
        self._reconnect = reconnect
        self._run_errand = run_errand
        self._clock = clock
        self._members: tuple[Member, ...] = ()
        self._seen_at = 0.0
        self._heard_at = clock()
        self._next_try = 0.0
        self._tries = 0
        self._known: tuple[Any, ...] = ()
        self._home: Address | None = None
        self._word = ""
        self._gathered_at = 0.0

    @property
    def waiting(self) -> bool:
        """True if windows must wait: not all hosts report to the job's collector yet."""
        if self.role == "home":
            ours = read_address(self._where.run, self._where.host)
            known = ours is not None and self._known[:1] == (ours.pid,)
            return not self._tries and (not known or self._clock() < self._gathered_at)
        return self.role == "undecided" or (self.role == "away" and self._home is None)

    @property
    def away(self) -> bool:
        """This host reports to another host's collector."""
        return self.role == "away" and self._home is not None

    def see(self, identities: Sequence[Mapping[str, Any]], heard: bool) -> None:
        """Take in this host's living workers, and whether the collector has answered."""
        now = self._clock()
        if heard:
            self._heard_at = now
        found = tuple(member for member in map(member_of, identities) if member is not None)
        if found and not self._members:
            self._seen_at = now
        self._members = found or self._members

    async def run(self) -> None:
        """Look for the job's home until cancelled."""
        while True:
            try:
                await self.step()
            except Exception:  # this host's own collector is still there
                log.exception("looking for the job's home failed")
                self._later("something failed")
            await asyncio.sleep(_PAUSE_S)

    async def step(self) -> None:
        """Do what is due."""
        now = self._clock()
        if self.role == "undecided":
            self.role = decide(self._members, now - self._seen_at)
            if self.role in ("home", "away") and not self._meeting_point:
                self._go_alone("the job has several hosts, but its store is none that others can look into")
            elif self.role != "undecided":
                log.info("this host is %s", self.role)
                self._mark()
        if now < self._next_try:
            return
        if self.role == "home":
            await self._receive()
            await self._count()
        elif self.role == "away":
            await self._go_there()

    def close(self) -> None:
        """The job is over: take back the address of another host's collector; `eroica run` does that itself."""
        if self._home is not None and not os.environ.get("EROICA_LAUNCHED"):
            with contextlib.suppress(OSError):
                withdraw(self._where.run, self._home, self._where.host)

    @property
    def _meeting_point(self) -> tuple[str, int] | None:
        """Host and port of the job's store, as the newest worker knows it."""
        for member in reversed(self._members):
            if member.master_addr and member.master_port:
                return member.master_addr, member.master_port
        return None

    def _later(self, problem: str) -> None:
        pause_s = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        self._next_try = self._clock() + pause_s
        log.info("%s; again in %.0f s", problem, pause_s)

    def _done(self) -> None:
        self._tries, self._next_try = 0, 0.0

    def _go_alone(self, why: str, remedy: str = "EROICA_COLLECTOR and EROICA_TOKEN") -> None:
        self.role = "alone"
        self._mark()
        self.notes.append(f"{why}; only workers of {self._where.host} are compared here. Set {remedy} on all hosts")
        log.warning("%s; going on alone", why)

    def _mark(self) -> None:
        """Tell `eroica run`, which may end before home is found."""
        mark = self._where.runtime / AWAY
        with contextlib.suppress(OSError):
            if self.role == "away":
                write_private(mark, b"")
            else:
                mark.unlink(missing_ok=True)

    # ------------------------------------------------------------------ at home

    async def _receive(self) -> None:
        """Open our collector and leave word of it; again if it or the job's store is another one."""
        ours, meeting = read_address(self._where.run, self._where.host), self._meeting_point
        if ours is None or meeting is None:
            return
        if self._known and (self._known[:2], self._known[3]) == ((ours.pid, ours.url), meeting):
            return
        try:
            request = OpenRequest(host=await asyncio.to_thread(outside_address, meeting[0]))
            answer = await _ask(ours, "POST", "/v1/open", msgspec.msgpack.encode(request))
            url = decode_message(answer, OpenReply).url
        except (OSError, httpx.HTTPError, InputError) as error:
            self._later(f"the collector does not listen for other hosts: {error}")
            return
        word = msgspec.json.encode(Address(url=url, token=ours.token, pid=0, host=self._where.host)).decode()
        if (word, meeting) != self._known[2:]:  # a collector that was started again listens where the old one did
            left = await self._run_errand(Errand(what="leave", host=meeting[0], port=meeting[1], word=word))
            if left.problem:
                self._later(f"no word left in the job's store: {left.problem}")
                return
            log.info("word of %s left in the job's store", url)
        self._gathered_at = self._clock() + GATHER_S
        self._known = (ours.pid, ours.url, word, meeting)
        self._done()

    async def _count(self) -> None:
        """Stop waiting for the other hosts once all workers of the job report."""
        ours = read_address(self._where.run, self._where.host)
        if self._clock() >= self._gathered_at or ours is None:
            return
        with contextlib.suppress(httpx.HTTPError, InputError):
            status = decode_json(await _ask(ours, "GET", "/v1/status"), JobStatus)
            here = {worker.worker.global_rank for worker in status.workers if not worker.ended}
            if len(here) >= max(member.world_size for member in self._members):
                self._gathered_at = 0.0

    # ------------------------------------------------------------------ away

    async def _go_there(self) -> None:
        """Find home; again when it does not answer any more."""
        if self._home is not None and self._clock() - self._heard_at < _LOST_S:
            return
        meeting = self._meeting_point
        assert meeting is not None
        errand = Errand(what="look_up", host=meeting[0], port=meeting[1], not_this=self._word)
        found = await self._run_errand(errand)
        problem = found.problem
        if not problem:
            try:
                home = _address_in(found.word)
                if home.host == self._where.host:  # home would take our reports for its own agent's
                    self._go_alone(
                        f"another host of the job is called {home.host}, too", "EROICA_HOST to a name of its own"
                    )
                    return
                await _ask(home, "GET", "/v1/status")
                await self._move_to(home)
                self._word = found.word
                return
            except (InputError, OSError, httpx.HTTPError) as error:
                problem = f"the job's home does not answer: {error}"
        if self._home is None and self._clock() - self._seen_at > PATIENCE_S:
            self._go_alone(f"the collector of the job's other hosts was not found ({problem})")
        else:
            self._later(problem)

    async def _move_to(self, home: Address) -> None:
        ours = read_address(self._where.run, self._where.host)
        if self._home is None and ours is not None and ours.host == self._where.host:
            with contextlib.suppress(httpx.HTTPError):  # it ends by itself if nobody talks to it
                await _ask(ours, "POST", "/v1/elsewhere", msgspec.msgpack.encode(home))
        announce(self._where.run, home, self._where.host)
        self._home, self._heard_at = home, self._clock()
        await self._reconnect()
        log.info("reporting to the collector of %s at %s", home.host, home.url)
        self._done()


def _address_in(word: str) -> Address:
    """The address that home has left.

    Raises:
        InputError: It is none that a collector of ours could have.
    """
    try:
        home = decode_json(word.encode(), Address)
    except (InputError, ValueError) as error:
        raise InputError(f"the word in the job's store is no address: {error}") from None
    endpoint_of(home.url)
    if not good_token(home.token) or not 0 < len(home.host) <= 255 or not home.host.isprintable():
        raise InputError("the word in the job's store is no address: its token or host is none")
    return home


async def _ask(collector: Address, method: str, path: str, body: bytes = b"") -> bytes:
    async with client_for(collector.url, collector.token) as client:
        answer = await client.request(method, path, content=body)
        answer.raise_for_status()
        return answer.content
