"""The controller's decisions: events and time in, instructions out, no I/O.

A *generation* numbers the assignment of ranks to processes. It changes only by a decision that is on disk (`Persist`)
before any process hears of it. A process with an older generation is brought up to date or sent away, so no two
processes ever act as one rank, however often the controller restarts.

A planned move: becoming (a standby takes the role in its sandbox) -> preparing (connections beside the running ones) ->
holding (all members promise to stop at one boundary, copy their state there, and the leaver's state goes to the joiner)
-> the decision -> switched. A failure before the decision ends in `abort`; training continues as before.

A recovery: gathering (all members stop; a standby takes each lost rank) -> the decision, with the newest iteration for
which every rank's state exists -> restoring (connections to joiners, states) -> all members continue. A loss on the way
starts it again.

A connection can end at any moment, and messages on it are lost. A member repeats its state in a recovery until all
continue. The controller repeats to a process that reconnects what its `hello` shows that it has not received.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmover.wire import Message

MOST_FAILURES = 5
"""So many recoveries in succession may fail; then the job ends."""


@dataclass(frozen=True)
class Timeouts:
    """The controller's timeouts, in seconds.

    Attributes:
        reconnect_s: A member whose control connection has ended may come back within this time.
        heartbeat_timeout_s: A member that has said nothing for this long is lost.
        suspicion_s: Members who accuse each other and are both alive: one is replaced after this time.
        become_s: A standby has this long to take a role in its sandbox.
        prepare_s: Connections to a joiner.
        hold_s: From the order to stop at a boundary to the decision.
        restore_s: Bringing all members to one iteration.
        standby_s: Waiting for a standby when a rank is lost and none is there.
    """

    reconnect_s: float = 1.0
    heartbeat_timeout_s: float = 5.0
    suspicion_s: float = 2.0
    become_s: float = 120.0
    prepare_s: float = 30.0
    hold_s: float = 30.0
    restore_s: float = 60.0
    standby_s: float = 180.0


@dataclass(frozen=True)
class Send:
    """Send a message to one process, and the named recording with it."""

    key: str
    message: Message
    recording: str = ""


@dataclass(frozen=True)
class Persist:
    """Write a decision durably before the next instruction is carried out."""

    decision: dict[str, Any]


@dataclass(frozen=True)
class Log:
    """Write one line into the log."""

    text: str


@dataclass(frozen=True)
class Reply:
    """Answer a command."""

    order: str
    done: bool
    text: str


Instruction = Send | Persist | Log | Reply


@dataclass
class Process:
    """A process that holds a rank, or could.

    Attributes:
        key: Its own, for life.
        host: Where it runs.
        rank: The global rank that it holds, or is ready to hold; -1 for none yet.
        address: Where it listens for other members.
        connected: Whether its control connection stands.
        heard_s: When it last said something.
        step: Iterations done.
        iteration_s: What one takes at present.
        ready: A standby that waits in its role's sandbox.
        target_rank: A standby that comes in a recovery warms up as this rank; -1 for all roles.
        done: It has come to the end of the training loop.
        silent: A standby that says nothing; it is not waited for until it speaks again.
    """

    key: str
    host: str
    rank: int
    address: tuple[str, int]
    connected: bool = True
    heard_s: float = 0.0
    gone_s: float = 0.0
    step: int = 0
    iteration_s: float = 0.0
    ready: bool = False
    warming: bool = False
    target_rank: int = -1
    done: bool = False
    silent: bool = False
    disk: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Supervisor:
    """A supervisor and the process that it started last, whatever rank that holds.

    Attributes:
        rank: Of its place in the launcher.
        member: The process's key; empty until it has told it.
        over: The process has ended.
        asked: In the present recovery it was told to start another one and has not yet.
    """

    rank: int
    member: str = ""
    over: bool = False
    asked: bool = False


@dataclass
class Move:
    """A planned move under way; `joiners` maps ranks to the joiners' keys."""

    order: str
    generation: int
    joiners: dict[int, str]
    stage: str
    deadline_s: float
    at: int = -1
    waiting: set[str] = field(default_factory=set)
    copies: bool = False
    began_s: float = 0.0


@dataclass
class Recovery:
    """A recovery under way: all members go back to one iteration."""

    generation: int
    began_s: float
    deadline_s: float
    stage: str = "gathering"
    lost: set[int] = field(default_factory=set)
    joiners: dict[int, str] = field(default_factory=dict)
    stopped: dict[int, Message] = field(default_factory=dict)
    accused: Counter[int] = field(default_factory=Counter)
    waiting: set[str] = field(default_factory=set)
    order: Message = field(default_factory=dict)


class StateMachine:
    """The controller without its sockets and files.

    Args:
        decision: The last decision that was written down, or an empty one for a new job.
        timeouts: How long to wait for what.
        now_s: The clock at the start.
    """

    def __init__(self, decision: dict[str, Any] | None, timeouts: Timeouts, now_s: float) -> None:
        kept = decision or {}
        self.timeouts = timeouts
        self.generation: int = kept.get("generation", 0)
        self.attempt: int = kept.get("attempt", self.generation)
        self.what: str = kept.get("what", "start")
        self.owners: dict[int, str] = {int(rank): key for rank, key in kept.get("owners", {}).items()}
        self.world: int = kept.get("world", 0)
        self.processes: dict[str, Process] = {}
        self.supervisors: dict[str, Supervisor] = {}
        self.move: Move | None = None
        self.recovery: Recovery | None = None
        self.ended, self.exit_status = kept.get("what") == "end", int(kept.get("status", 0))
        self.signatures: dict[int, str] = {int(rank): one for rank, one in kept.get("signatures", {}).items()}
        self.recordings: set[str] = set()
        self._n_failed = 0  # recoveries since one came to its end
        self.copied: dict[int, set[int]] = {}
        self.copied_from = 0  # snapshots of earlier iterations belong to other members
        self.void: set[int] = set()
        self.stable = -1
        self.digests: dict[int, str] = {int(rank): one for rank, one in kept.get("digests", {}).items()}
        self.history: list[dict[str, Any]] = []
        self.fresh: set[int] = set(kept.get("fresh", ()))  # not all members are known to be connected with these ranks
        self.went_on = -1  # the last recovery that this controller has ended
        self._switching: set[str] = set()
        self._began_s = now_s
        self._crashes: Counter[int] = Counter()
        self._roles: dict[int, Message] = {}

    # -- events --------------------------------------------------------------------------------------------------------

    def joined(self, key: str, hello: Message, now_s: float) -> list[Instruction]:
        """Handle a member or standby that connects or reconnects."""
        reason = self._unfit(hello)
        if reason:
            return [Send(key, {"command": "refused", "reason": reason}), Log(f"refused {hello.get('host')}: {reason}")]
        rank = int(hello.get("rank", -1))
        process = Process(key, hello["host"], rank, (hello["address"][0], hello["address"][1]), heard_s=now_s)
        known, before = self.processes.get(key), list[Instruction]()
        if known is not None and hello["kind"] == "standby" and not self._holds(known):
            known, before = None, self.gone(key, now_s)  # the end of its former connection has not been seen yet
        process.step = int(hello.get("step", 0))
        process.disk = hello.get("disk", {})
        if known is not None:
            process.ready, process.iteration_s = known.ready, known.iteration_s
            process.rank, process.warming, process.target_rank = known.rank, known.warming, known.target_rank
        elif hello["kind"] == "standby":
            process.ready = bool(hello.get("ready"))
        self.processes[key] = process
        if hello["kind"] == "member" and not self.ended:
            told = self._member(process, hello, now_s)
            return [*told, *self._on_done(process, hello, now_s)] if hello.get("done") else told
        out: list[Instruction] = [*before, Send(key, {"command": "welcome", "generation": self.generation})]
        if self.ended:
            return [*out, Send(key, {"command": "finished", "status": self.exit_status, "reason": "the job has ended"})]
        if self.owners.get(rank) == key and int(hello.get("generation", 0)) < self.generation:
            return [*out, *self._update(process, hello, now_s)]
        if hello.get("prepared"):  # for a move that was called off when its connection, or the controller, ended
            out.append(Send(key, {"command": "abort", "generation": int(hello["prepared"])}))
        return [*out, Log(f"standby on {process.host}"), *self._warm(process), *self._assign(now_s)]

    def said(self, key: str, message: Message, now_s: float) -> list[Instruction]:
        """Handle a message of a process."""
        process = self.processes.get(key)
        if process is None or self.ended:
            return []
        process.heard_s, was_silent, process.silent = now_s, process.silent, False
        handler = getattr(self, f"_on_{message.get('event')}", None)
        out = [] if handler is None else list(handler(process, message, now_s))
        return [*out, *self._assign(now_s)] if was_silent else out

    def gone(self, key: str, now_s: float) -> list[Instruction]:
        """Handle the end of a control connection."""
        self.supervisors.pop(key, None)
        process = self.processes.get(key)
        if process is None:
            return []
        process.connected, process.gone_s = False, now_s
        if self._holds(process):
            return self.tick(now_s) if self.recovery and process.rank in self.recovery.accused else []
        del self.processes[key]
        return [Log(f"standby on {process.host} is gone"), *self._joiner_lost(key, "the joiner is gone", now_s)]

    def supervisor_joined(self, rank: int, key: str, now_s: float) -> list[Instruction]:
        """Handle a supervisor that connects or reconnects."""
        self.supervisors[key] = Supervisor(rank)  # what it was told may have been lost with its former connection
        return [Send(key, {"command": "over", "status": self.exit_status})] if self.ended else []

    def started(self, supervisor: str, member: str, now_s: float) -> list[Instruction]:
        """Handle a supervisor's report of the process that it runs, or ran last."""
        self.supervisors[supervisor] = Supervisor(self.supervisors[supervisor].rank, member)
        return self._assign(now_s)

    def exited(self, supervisor: str, member: str, status: int, now_s: float) -> list[Instruction]:
        """Handle a supervisor's report that its process has ended; that may have held any rank, or none."""
        told = self.supervisors.get(supervisor)
        if told is not None and told.member == member:
            told.over = True
        if self.ended:
            return []
        rank = next((rank for rank, key in self.owners.items() if key == member), None)
        if rank is None:
            return self._assign(now_s)
        process = self.processes.get(member)
        if status == 0 and (process is None or process.done):
            return []
        if status > 0:
            self._crashes[rank] += 1
        out: list[Instruction] = [Log(f"rank {rank} has ended with status {status}")]
        if process is not None:
            process.connected, process.gone_s = False, -1e9
        nobody = all(key not in self.processes for key in self.owners.values())
        is_new = now_s - self._began_s <= self.timeouts.heartbeat_timeout_s  # members come back one after another
        if self._crashes[rank] > 2 or (nobody and not is_new):
            return [*out, *self._end(status or 1, f"rank {rank} ends with status {status} again and again")]
        return [*out, *self._lose({rank}, now_s)]

    def ordered(self, order: str, hosts: Sequence[tuple[str, str]], now_s: float) -> list[Instruction]:
        """Start a move of hosts' ranks, all at the same boundary.

        Args:
            order: Its name, for the answer.
            hosts: From which host to which; an empty target leaves the choice.
            now_s: The clock.
        """
        if self.move or self.recovery:
            return [Reply(order, False, "another move is under way; ask again when it has ended")]
        if len(dict(hosts)) < len(hosts):
            return [Reply(order, False, f"a host is named twice: {', '.join(source for source, _ in hosts)}")]
        chosen: dict[int, str] = {}
        for source, target in hosts:
            found = self._joiners_for(source, target, chosen)
            if isinstance(found, str):
                return [Reply(order, False, found)]
            chosen.update(found)
        self.attempt += 1
        self.move = Move(order, self.attempt, chosen, "becoming", now_s + self.timeouts.become_s, began_s=now_s)
        sources = ", ".join(source for source, _ in hosts)
        out: list[Instruction] = [Persist(self._decision(self.what)), Log(f"moving {sources}: ranks {sorted(chosen)}")]
        for rank, key in chosen.items():
            out += self._become(rank, key)
        return out + self._advance(now_s)

    def _joiners_for(self, source: str, target: str, taken: dict[int, str]) -> dict[int, str] | str:
        """Return a standby for each rank of a host, or the reason why there is none."""
        ranks = [rank for rank, key in sorted(self.owners.items()) if self._host(key) == source]
        if not ranks:
            hosts = sorted({self._host(key) for key in self.owners.values()})
            return f"no rank runs on {source}; the job's hosts are {', '.join(hosts)}"
        spare = [one for one in self._spares() if target in ("", one.host) and one.key not in taken.values()]
        if len(spare) < len(ranks):
            where = f"on {target}" if target else "anywhere"
            return (
                f"{len(ranks)} standby processes are needed {where}, {len(spare)} are there; "
                "start some with `trainmover standby --join`"
            )
        return self._choose(ranks, spare)

    def tick(self, now_s: float) -> list[Instruction]:
        """Handle the passing of time."""
        if self.ended:
            return []
        out = self._lose(set(self._missing(now_s)), now_s) + self._pass_over_silent(now_s)
        if self.move and now_s >= self.move.deadline_s:
            becoming = [key for rank, key in self.move.joiners.items() if not self._is_ready(rank, key)]
            slow = sorted(self._name(key) for key in self.move.waiting or becoming)
            out += self._abort(f"{', '.join(slow)} took too long ({self.move.stage})", now_s)
        if self.recovery:
            out += self._judge_accused(self.recovery, now_s) + self._assign(now_s)
        if self.recovery and now_s >= self.recovery.deadline_s:
            out += self._overdue(self.recovery, now_s)
        return out

    # -- what processes say ------------------------------------------------------------------------------------------

    def _on_heartbeat(self, process: Process, message: Message, _now_s: float) -> Iterator[Instruction]:
        process.step = int(message.get("step", process.step))
        process.iteration_s = float(message.get("iteration_s", process.iteration_s))
        yield from ()

    def _on_ready(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        process.rank, process.ready, process.warming = int(message["rank"]), True, False
        process.address = (message["address"][0], message["address"][1])
        code, own = message.get("code"), self._job().get("code")
        process.disk = message.get("disk", {})
        if own is not None and code != own:
            return [*self._refuse(process, f"its script has another content ({code}) than the job's ({own})", now_s)]
        return [Log(f"{process.host} is ready as rank {process.rank}"), *self._assign(now_s), *self._advance(now_s)]

    def _on_unfit(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        return self._refuse(process, str(message.get("reason")), now_s)

    def _on_awaited(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        """Handle what a move waits for: connections are prepared, a stop is promised, a joiner has loaded the state."""
        move = self.move
        if move is None or message.get("generation", move.generation) != move.generation:
            return []
        if message.get("at", move.at) != move.at:
            return []
        if message["event"] == "loaded":
            self.history.append({**message, "what": "state", "rank": process.rank})
        move.waiting.discard(f"{message['event']} {process.key}")
        return self._advance(now_s)

    _on_prepared = _on_promised = _on_loaded = _on_awaited

    def _on_failed(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        reason = f"{self._name(process.key)}: {message.get('reason')}"
        if self.move and message.get("generation") == self.move.generation:
            return self._abort(reason, now_s)
        if self.recovery and message.get("generation") == self.recovery.generation:
            self._n_failed += 1
            if self._n_failed >= MOST_FAILURES:
                return self._end(1, f"{self._n_failed} recoveries have failed in succession, the last: {reason}")
            out = [Log(reason), *self._restart(set(), now_s)]
            if self.recovery is not None and message.get("peer", -1) in self.owners:  # they had not talked for a while
                self.recovery.accused[int(message["peer"])] += 1
            return out
        return self._unfinished(process, message, now_s)

    def _on_late(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        process.step = max(process.step, int(message["step"]))
        if self.move and self.move.stage == "holding" and message.get("at") == self.move.at:
            return self._hold(self.move, now_s)
        return []

    def _on_switched(self, process: Process, message: Message, _now_s: float) -> list[Instruction]:
        self.history.append({**message, "what": "switched", "rank": process.rank})
        if message.get("generation") == self.generation and process.key in self._switching:
            self._switching.discard(process.key)
            if not self._switching and self.recovery is None:
                self.fresh.clear()
        return []

    def _on_lost(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        accused = int(message.get("peer", -1))
        out: list[Instruction] = [Log(f"rank {process.rank}: {message.get('detail')}")]
        if self.owners.get(process.rank) != process.key or message.get("generation") != self.generation:
            return []
        if self.recovery is None:
            out += self._restart(set(), now_s)
        if self.recovery is not None:
            self.recovery.accused[accused] += 1
        return out + self.tick(now_s)

    def _on_stopped(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        if not self._holds(process) or message["generation"] <= self.went_on:
            return []
        if message.get("new"):
            self.fresh.add(process.rank)
        if self.recovery is None:
            return [*self._restart(set(), now_s)]
        if message.get("generation") != self.recovery.generation:
            return []
        self.recovery.stopped[process.rank] = message
        return self._advance_recovery(now_s)

    def _on_recovered(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        if self.recovery is None:
            return self._unfinished(process, message, now_s)
        if message.get("generation") != self.recovery.generation or process.key not in self.recovery.waiting:
            return []
        self.history.append({**message, "what": "recovered", "rank": process.rank})
        self.recovery.waiting.discard(process.key)
        return self._advance_recovery(now_s)

    def _unfinished(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        """Handle a member that is still in a recovery of which this controller knows nothing."""
        generation = message.get("generation")
        if self.recovery or self.what != "recover" or generation != self.generation or not self._holds(process):
            return []
        if generation == self.went_on:
            return [Send(process.key, {"command": "go", "generation": generation})]
        return self._restart(set(), now_s)

    def _on_recorded(self, process: Process, message: Message, _now_s: float) -> list[Instruction]:
        self.signatures[process.rank] = str(message["signature"])
        if len(self.signatures) < self.world:
            return []
        return [Persist(self._decision(self.what)), *self._uploads()]

    def _uploads(self) -> list[Send]:
        """Ask one connected member of each role for its recording."""
        if len(self.signatures) < self.world or self._recorded():
            return []
        chosen: dict[str, str] = {}
        for rank, signature in sorted(self.signatures.items(), reverse=True):
            process = self.processes.get(self.owners.get(rank, ""))
            if signature not in self.recordings and process is not None and process.connected:
                chosen[signature] = process.key
        return [Send(key, {"command": "upload", "signature": signature}) for signature, key in chosen.items()]

    def _on_recording(self, _process: Process, message: Message, now_s: float) -> list[Instruction]:
        self.recordings.add(str(message["signature"]))
        if not self._recorded():
            return []
        spares = [one for one in self.processes.values() if not self._holds(one)]
        return [
            Log(f"{len(self.recordings)} roles are recorded"),
            *(Send(key, {"command": "recorded"}) for key in self.owners.values()),
            *(told for one in spares for told in self._warm(one)),
        ]

    def _on_digest(self, process: Process, message: Message, _now_s: float) -> list[Instruction]:
        """Handle a member's first digest; all members take their first snapshot at the same iteration."""
        if not self._holds(process):
            return []
        n_known = len(self.digests)
        self.digests.setdefault(process.rank, str(message["digest"]))
        if len(self.digests) < self.world:
            return []
        return [*([Persist(self._decision(self.what))] if len(self.digests) > n_known else []), *self._buddies()]

    def _on_copied(self, process: Process, message: Message, now_s: float) -> list[Instruction]:
        """Handle a snapshot that has reached its buddy; it is common when all ranks have the same iteration.

        A member passes over a copy while its last two are on their way, and not all members need to see that alike. An
        iteration that one has passed over is thrown away by all, else their places for copies would be taken by
        iterations that they do not have in common.
        """
        step, move = int(message["step"]), self.move
        if move and move.stage == "holding" and step == move.at:
            move.waiting.discard(f"copied {process.key}")
            return self._advance(now_s)
        if self.owners.get(process.rank) != process.key or step <= self.stable:
            return []
        if step in self.void or step < self.copied_from:  # can never be common
            return [Send(process.key, {"command": "discard", "steps": [step]})]
        self.copied.setdefault(process.rank, set()).add(step)
        everywhere = set.intersection(*self.copied.values()) if len(self.copied) == self.world else set()
        if max(everywhere, default=-1) > self.stable:
            self.stable = max(everywhere)
            self.copied = {rank: {one for one in has if one >= self.stable} for rank, has in self.copied.items()}
            return [Send(key, {"command": "stable", "step": self.stable}) for key in self.owners.values()]
        newer = {one for has in self.copied.values() for one in has if one > self.stable}
        passed_over = any(one < max(has) and one not in has for has in self.copied.values() if has for one in newer)
        if self.stable < 0 or not passed_over:
            return []
        self.void |= newer
        self.copied = {rank: has - newer for rank, has in self.copied.items()}
        return [Send(key, {"command": "discard", "steps": sorted(newer)}) for key in self.owners.values()]

    def _on_done(self, process: Process, _message: Message, _now_s: float) -> list[Instruction]:
        process.done = True
        holders = [self.processes.get(key) for key in self.owners.values()]
        if self.recovery or len(holders) < self.world or not all(one is not None and one.done for one in holders):
            return []
        return self._end(0, "the job is complete")

    # -- planned moves -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> list[Instruction]:
        """Start the next stage of a move if no process is waited for."""
        move = self.move
        if move is None:
            return []
        if move.stage == "becoming":
            if not all(self._is_ready(rank, key) for rank, key in move.joiners.items()):
                return []
            move.stage, move.deadline_s = "preparing", now_s + self.timeouts.prepare_s
            everybody = [*self.owners.values(), *move.joiners.values()]
            move.waiting = {f"prepared {key}" for key in everybody}
            order = {"command": "prepare", "generation": move.generation, "joiners": self._addresses(move.joiners)}
            return [Send(key, order) for key in everybody]
        if move.waiting:
            return []
        if move.stage == "preparing":
            move.stage, move.deadline_s = "holding", now_s + self.timeouts.hold_s
            return self._hold(move, now_s)
        leavers = {self.owners[rank] for rank in move.joiners}
        if move.copies:
            self.stable = move.at
        stayers = [key for key in self.owners.values() if key not in leavers]
        self.generation, self.what = move.generation, "switch"
        self._assign_ranks(move.joiners)
        self.move = None
        self.fresh, self._switching = self.fresh | move.joiners.keys(), set(self.owners.values())
        order = {"command": "switch", "generation": self.generation, "at": move.at, "stable": self.stable,
                 "joiners": self._addresses(move.joiners)}  # fmt: skip
        self.history.append(
            {"what": "moved", "ranks": sorted(move.joiners), "at": move.at, "took_s": now_s - move.began_s}
        )
        return [
            Persist(self._decision("switch")),
            *(Send(key, order) for key in [*stayers, *move.joiners.values(), *leavers]),
            Reply(move.order, True, f"ranks {sorted(move.joiners)} have moved before iteration {move.at}"),
            *self._buddies(),
        ]

    def _hold(self, move: Move, now_s: float) -> list[Instruction]:
        """Order all members to stop at a boundary that none has passed, and to copy their state there."""
        steps = [self.processes[key].step for key in self.owners.values() if key in self.processes]
        move.at = max([*steps, move.at]) + 2 + int(0.1 / max(self._pace_s(), 0.005))
        joiners, line_up = set(move.joiners.values()), {**self.owners, **move.joiners}
        buddies = self._buddies(line_up, move.generation)
        move.copies = bool(buddies)
        self.copied = {rank: {move.at} for rank in self.owners} if move.copies else {}
        self.copied_from = move.at
        move.waiting = {f"promised {key}" for key in self.owners.values()} | {f"loaded {key}" for key in joiners}
        move.waiting |= {f"copied {key}" for key in line_up.values()} if move.copies else set()
        order = {"command": "hold", "generation": move.generation, "at": move.at, "ranks": sorted(move.joiners),
                 "within_s": self.timeouts.hold_s, "copies": move.copies, "stable": self.stable}  # fmt: skip
        return [*(Send(key, order) for key in [*self.owners.values(), *joiners]), *buddies]

    def _abort(self, reason: str, now_s: float) -> list[Instruction]:
        move, self.move = self.move, None
        if move is None:
            return []
        everybody = {*self.owners.values(), *move.joiners.values()} & self.processes.keys()
        self.history.append({"what": "aborted", "reason": reason, "took_s": now_s - move.began_s})
        undone: list[Instruction] = []
        if move.stage == "holding":
            self.copied, self.copied_from = {}, move.at + 1
            undone = [Send(key, {"command": "discard", "steps": [move.at]}) for key in sorted(everybody)]
            undone += self._buddies()
        return [
            *(Send(key, {"command": "abort", "generation": move.generation}) for key in sorted(everybody)),
            *undone,
            Log(f"move called off: {reason}"),
            Reply(move.order, False, f"the move was called off and training goes on as before: {reason}"),
        ]

    # -- recoveries --------------------------------------------------------------------------------------------------

    def _lose(self, ranks: set[int], now_s: float) -> list[Instruction]:
        lost = ranks - (self.recovery.lost if self.recovery and self.recovery.stage == "gathering" else set())
        return self._restart(lost, now_s) if lost and not self.ended else []

    def _restart(self, lost: set[int], now_s: float) -> list[Instruction]:
        """Start a recovery, or start it again with more ranks lost."""
        out = self._abort(f"ranks {sorted(lost)} were lost" if lost else "a connection was lost", now_s)
        before = self.recovery
        if before and before.stage == "gathering":
            before.lost |= lost
            return [*out, Log(f"also lost: ranks {sorted(lost)}"), *self._assign(now_s)]
        self.attempt += 1
        again = set() if before is None else {rank for rank in before.lost if self.owners[rank] not in self.processes}
        self.recovery = Recovery(self.attempt, now_s, now_s + self.timeouts.standby_s, lost=set(lost) | again)
        for one in self.supervisors.values():
            one.asked = False  # the end of the last recovery may have called it off
        out += [
            Persist(self._decision(self.what)),
            Log(f"recovery: all members stop; lost: ranks {sorted(lost) or 'unknown'}"),
        ]
        order = self._interrupt(self.recovery)
        out += [Send(key, order) for key in self.owners.values() if key in self.processes]
        return [*out, *self._uploads(), *self._assign(now_s)]  # the member that was asked for a recording may be lost

    def _interrupt(self, recovery: Recovery) -> Message:
        """Return the order to stop. Gathering may take two deadlines: one for members, one for a standby."""
        return {"command": "interrupt", "generation": recovery.generation, "within_s": 2 * self.timeouts.standby_s}

    def _assign(self, now_s: float) -> list[Instruction]:
        """Give each lost rank a standby, or have a supervisor start one; then advance the recovery."""
        recovery = self.recovery
        if recovery is None or recovery.stage != "gathering":
            return self._advance_recovery(now_s)
        out: list[Instruction] = []
        spares = [one for one in self._spares() if one.key not in recovery.joiners.values()]
        for rank, key in self._choose(sorted(recovery.lost - recovery.joiners.keys()), spares).items():
            recovery.joiners[rank] = key
            out += self._become(rank, key)
        return [*out, *self._ask_supervisors(recovery), *self._advance_recovery(now_s)]

    def _ask_supervisors(self, recovery: Recovery) -> list[Instruction]:
        """Have supervisors start as many processes as there are too few standbys."""
        if not self._recorded():
            return []
        settled = {*self.owners.values(), *recovery.joiners.values()}
        lost = {self.owners[rank] for rank in recovery.lost}
        coming = {one.key for one in self.processes.values() if not one.ready and not one.silent} - settled
        idle: dict[str, Supervisor] = {}  # those whose process is lost, ended or silent
        for key, supervisor in self.supervisors.items():
            member = supervisor.member
            one = self.processes.get(member)
            if supervisor.asked:
                coming.add(key)
            elif supervisor.over or member in lost or (one and one.silent and not self._holds(one)):
                idle[key] = supervisor
            elif one is None and member and member not in settled:
                coming.add(member)
        out: list[Instruction] = []
        for rank in sorted(recovery.lost - recovery.joiners.keys())[len(coming) :]:
            if not idle:
                break
            held = self.owners[rank]
            key = min(idle, key=lambda one: (idle[one].member != held, idle[one].rank != rank))
            chosen = idle.pop(key)
            chosen.asked = True
            out += [
                Log(f"no standby for rank {rank}: the supervisor of rank {chosen.rank} starts one"),
                Send(key, {"command": "spawn", "member": chosen.member}),
            ]
        return out

    def _advance_recovery(self, now_s: float) -> list[Instruction]:
        recovery = self.recovery
        if recovery is None:
            return []
        if recovery.stage == "gathering":
            living = self.owners.keys() - recovery.lost
            ready = all(self._is_ready(rank, recovery.joiners.get(rank, "")) for rank in recovery.lost)
            settled = bool(recovery.lost) or not recovery.accused
            if not (living <= recovery.stopped.keys() and ready and settled):
                return []
            return self._restore(recovery, now_s)
        if recovery.waiting:
            return []
        self.recovery, self.went_on, self._n_failed = None, recovery.generation, 0
        self.fresh.clear()
        took_s = now_s - recovery.began_s
        self.history.append({"what": "recovery", "ranks": sorted(recovery.lost), "took_s": took_s})
        return [
            *(Send(key, {"command": "go", "generation": recovery.generation}) for key in self.owners.values()),
            Log(f"ranks {sorted(recovery.lost)} replaced after {took_s:.2f} s"),
            *self._buddies(),
        ]

    def _restore(self, recovery: Recovery, now_s: float) -> list[Instruction]:
        found = self._at_hand(recovery)
        count = Counter(step for steps in found.values() for step in steps)
        step = max(count, key=lambda one: (count[one], one), default=-1)
        lacking = sorted(rank for rank, steps in found.items() if step not in steps)
        if lacking:
            best = f"of iteration {step}, of ranks {lacking} not" if count else "no copy was taken yet"
            return self._end(
                1,
                f"ranks {sorted(recovery.lost)} are lost, and of no iteration is every rank's state at hand "
                f"({best}); give attach(checkpoint=...) a folder that all hosts share",
            )
        needs = {rank: steps[step] for rank, steps in sorted(found.items()) if steps[step] != rank}
        recovery.stage, recovery.deadline_s = "restoring", now_s + self.timeouts.restore_s
        self.generation, self.what = recovery.generation, "recover"
        gone = {self.owners[rank] for rank in recovery.lost}
        self._assign_ranks(recovery.joiners)
        self.fresh |= recovery.lost
        recovery.waiting = set(self.owners.values())
        for key in self.owners.values():
            self.processes[key].step, self.processes[key].done = step, False
        self.stable, self.copied, self.copied_from, self.void = -1, {}, 0, set()
        order = recovery.order = {
            "command": "recover",
            "generation": recovery.generation,
            "step": step,
            "within_s": self.timeouts.restore_s,
            "joiners": self._addresses({rank: self.owners[rank] for rank in self.fresh}),
            "needs": {str(rank): source for rank, source in needs.items()},
            "addresses": self._addresses({rank: self.owners[rank] for rank in needs}),
        }
        return [
            Persist(self._decision("recover")),
            Log(f"all members go back to iteration {step}; states come from {needs}"),
            *(Send(key, {"command": "leave", "reason": "another process holds this rank now"}) for key in gone),
            *(
                Send(key, {"command": "end", "member": supervisor.member})
                for key, supervisor in self.supervisors.items()
                if supervisor.member in gone
            ),
            *(Send(key, order) for key in self.owners.values()),
        ]

    def _at_hand(self, recovery: Recovery) -> dict[int, dict[int, int]]:
        """Return of which iterations each rank's state exists, and which rank has it (-1: the checkpoint)."""
        found: dict[int, dict[int, int]] = {rank: {} for rank in self.owners}
        living = {rank: report for rank, report in recovery.stopped.items() if rank not in recovery.lost}
        disks = [report["disk"] for report in living.values()]
        disks += [self.processes[key].disk for key in recovery.joiners.values() if key in self.processes]
        for other, steps in (saved for disk in disks for saved in disk.items()):
            if int(other) in found:  # the folder may have had more ranks once
                found[int(other)].update(dict.fromkeys(steps, -1))
        for rank, report in living.items():
            for other, steps in report["held"].items():
                found[int(other)].update(dict.fromkeys(steps, rank))
        for rank, report in living.items():
            found[rank].update(dict.fromkeys(report["own"], rank))
        return found

    def _judge_accused(self, recovery: Recovery, now_s: float) -> list[Instruction]:
        """Replace one of two living members that have lost each other: the one accused more often."""
        undecided = recovery.stage == "gathering" and recovery.accused and not recovery.lost
        if not undecided or now_s - recovery.began_s < self.timeouts.suspicion_s:
            return []
        accused = max(recovery.accused, key=lambda rank: (recovery.accused[rank], rank))
        recovery.accused.clear()
        if accused not in self.owners:
            return []
        return [
            Log(f"rank {accused} is alive but cannot be reached by others: it is replaced"),
            *self._lose({accused}, now_s),
        ]

    def _overdue(self, recovery: Recovery, now_s: float) -> list[Instruction]:
        """Replace members that are too slow in a recovery. Without a joiner for each lost rank, end the job."""
        late = [self._name(key) for key in recovery.waiting]
        silent = {rank for rank in self.owners if rank not in recovery.stopped} - recovery.lost
        if recovery.stage == "gathering" and recovery.lost - recovery.joiners.keys():
            return self._end(
                1, f"no standby came for ranks {sorted(recovery.lost)} within {self.timeouts.standby_s:.0f} s"
            )
        ranks = {rank for rank, key in self.owners.items() if key in recovery.waiting} or silent
        if not ranks:
            slow = [key for rank, key in recovery.joiners.items() if not self._is_ready(rank, key)]
            names = ", ".join(sorted(self._name(key) for key in slow)) or "it"
            return self._end(1, f"the recovery did not come about in time ({recovery.stage}): {names} took too long")
        for rank in ranks:
            self.processes.pop(self.owners[rank], None)
        recovery.deadline_s = now_s + self.timeouts.standby_s
        return [Log(f"too slow while restoring: {late or sorted(silent)}"), *self._lose(ranks, now_s)]

    def _missing(self, now_s: float) -> Iterator[int]:
        """Return the ranks whose holders are not heard from."""
        lost = self.recovery.lost if self.recovery and self.recovery.stage == "gathering" else set()
        accused = self.recovery.accused if self.recovery else Counter()
        for rank, key in self.owners.items():
            process = self.processes.get(key)
            if process is None:
                late = now_s - self._began_s > self.timeouts.heartbeat_timeout_s
            elif not process.connected:
                late = now_s - process.gone_s > (0 if accused[rank] else self.timeouts.reconnect_s)
            else:
                late = now_s - process.heard_s > self.timeouts.heartbeat_timeout_s
            if late and rank not in lost:
                yield rank

    def _pass_over_silent(self, now_s: float) -> list[Instruction]:
        """Stop waiting for standbys that are silent."""
        out: list[Instruction] = []
        for one in list(self.processes.values()):
            if one.silent or self._holds(one) or now_s - one.heard_s <= self.timeouts.heartbeat_timeout_s:
                continue
            one.silent = True
            reason = f"the standby on {one.host} has said nothing for {self.timeouts.heartbeat_timeout_s:.0f} s"
            out += [Log(reason), *self._joiner_lost(one.key, reason, now_s), *self._assign(now_s)]
        return out

    def _joiner_lost(self, key: str, reason: str, now_s: float) -> list[Instruction]:
        if self.move and key in self.move.joiners.values():
            return self._abort(reason, now_s)
        if self.recovery and self.recovery.stage == "gathering" and key in self.recovery.joiners.values():
            self.recovery.joiners = {rank: other for rank, other in self.recovery.joiners.items() if other != key}
            return self._assign(now_s)
        return []

    # -- members and standbys ----------------------------------------------------------------------------------------

    def _member(self, process: Process, hello: Message, now_s: float) -> list[Instruction]:
        """Handle a member that connects at the start of the job or reconnects."""
        rank, key = process.rank, process.key
        self.world = self.world or int(hello["world"])
        self._roles.setdefault(-1, hello)
        owner = self.owners.get(rank)
        if owner is None and self.generation == 0:
            self.owners[rank] = key
            self._roles[rank] = {"env": hello.get("env", {})}
            out: list[Instruction] = [Send(key, {"command": "welcome", "generation": 0})]
            if len(self.owners) == self.world:
                out += [Persist(self._decision("start")), Log(f"{self.world} ranks are there")]
            return out
        if owner != key:
            self.processes.pop(key, None)  # no standby that anybody could wait for
            reason = f"rank {rank} is held by another process since generation {self.generation}"
            return [Send(key, {"command": "leave", "reason": reason}), Log(f"sent away: {process.host}, {reason}")]
        self._roles.setdefault(rank, {"env": hello.get("env", {})})
        if hello.get("signature"):
            self.signatures[rank] = str(hello["signature"])
        welcome = Send(key, {"command": "welcome", "generation": self.generation})
        lost = [one for one in self._uploads() if one.key == key]
        recorded = [Send(key, {"command": "recorded"})] if self._recorded() else lost
        return [welcome, *self._update(process, hello, now_s), *recorded]

    def _update(self, process: Process, hello: Message, now_s: float) -> list[Instruction]:
        """Bring a process up to date that was away, or that knew another controller."""
        known = int(hello.get("generation", 0))
        if self.recovery:
            if self.recovery.stage == "gathering":
                return [Send(process.key, self._interrupt(self.recovery))]
            return [Send(process.key, self.recovery.order)] if known < self.recovery.generation else []
        if hello.get("marked"):
            return self._restart(set(), now_s)
        if known < self.generation:
            if self.what == "switch":
                order = {"command": "switch", "generation": self.generation, "at": hello.get("at", -1),
                         "stable": self.stable, "joiners": {}}  # fmt: skip
                return [Send(process.key, order)]
            return self._restart(set(), now_s)
        if self.move and self.move.stage != "becoming":  # orders and promises may be lost, and the others stand still
            return self._abort(f"the control connection of {self._name(process.key)} had ended", now_s)
        if hello.get("prepared"):
            return [Send(process.key, {"command": "abort", "generation": int(hello["prepared"])}), *self._buddies()]
        return self._buddies()

    def _unfit(self, hello: Message) -> str:
        job = self._job()
        if not job or hello.get("kind") != "standby":
            return ""
        for name in ("trainmover", "torch", "python"):
            if hello.get("versions", {}).get(name) != job["versions"].get(name):
                return f"{name} {hello.get('versions', {}).get(name)} here, {job['versions'].get(name)} in the job"
        return ""

    def _refuse(self, process: Process, reason: str, now_s: float) -> list[Instruction]:
        self.processes.pop(process.key, None)
        return [
            Log(f"the standby on {process.host} cannot be used: {reason}"),
            Send(process.key, {"command": "leave", "reason": reason}),
            *self._joiner_lost(process.key, reason, now_s),
        ]

    def _warm(self, process: Process) -> list[Instruction]:
        """Have a standby run the shadow iterations of every role, the most frequent one last."""
        if not self._recorded() or process.ready or process.warming or self._holds(process):
            return []
        process.warming = True
        frequent = Counter(self.signatures.values())
        order = sorted(self.recordings, key=lambda signature: (frequent[signature], signature))
        ranks = [self._middle(signature) for signature in order]
        if self.recovery and self.recovery.lost:
            wanted = self.recovery.lost - self.recovery.joiners.keys()
            others = {one.target_rank for one in self.processes.values() if one.warming and one is not process}
            process.target_rank = min(wanted - others or wanted, default=ranks[-1])
            ranks = [process.target_rank]
        job = {key: value for key, value in self._job().items() if key in ("argv", "cwd", "module", "world")}
        roles = [{"rank": rank, "signature": self.signatures[rank], **self._roles.get(rank, {})} for rank in ranks]
        return [
            *(Send(process.key, {"command": "recording", "signature": one}, recording=one) for one in order),
            Send(process.key, {"command": "warm", "job": job, "roles": roles, "generation": self.generation}),
        ]

    def _middle(self, signature: str) -> int:
        ranks = sorted(rank for rank, one in self.signatures.items() if one == signature)
        return ranks[len(ranks) // 2]

    def _become(self, rank: int, key: str) -> list[Instruction]:
        process = self.processes[key]
        if process.rank == rank:
            return []
        process.ready = False
        role = {"rank": rank, "signature": self.signatures.get(rank, ""), **self._roles.get(rank, {})}
        return [Send(key, {"command": "become", "role": role})]

    def _choose(self, ranks: list[int], spare: list[Process]) -> dict[int, str]:
        """Choose a standby for each rank: one in that rank's role first, then one of the same kind, then any."""
        chosen: dict[int, str] = {}
        left = list(spare)
        for rank in ranks:
            left.sort(key=lambda one: (one.rank != rank, self.signatures.get(one.rank) != self.signatures.get(rank)))
            if left:
                chosen[rank] = left.pop(0).key
        return chosen

    def _spares(self) -> list[Process]:
        found = [one for one in self.processes.values() if one.ready and one.connected and not one.silent]
        return [one for one in found if not self._holds(one)]

    def _assign_ranks(self, joiners: dict[int, str]) -> None:
        for rank, key in joiners.items():
            self.processes.pop(self.owners[rank], None)
            self.owners[rank] = key
            process = self.processes[key]
            process.rank, process.ready = rank, False
            self.copied.pop(rank, None)

    def _buddies(self, line_up: dict[int, str] | None = None, generation: int | None = None) -> list[Instruction]:
        """Choose who holds whose snapshots: a replica on another host, else the next rank on another host."""
        everybody = set(self.owners.values()) <= self.processes.keys()
        if self.world < 2 or not everybody or len(self.owners) < self.world or self.owners.keys() - self.digests.keys():
            return []
        line_up = line_up or self.owners
        hosts = {rank: self._host(key) for rank, key in line_up.items()}

        def far(rank: int, other: int) -> tuple[bool, bool, int]:
            return hosts[rank] == hosts[other], self.digests[rank] != self.digests[other], (other - rank) % self.world

        buddies = {
            str(rank): min((other for other in hosts if other != rank), key=lambda other: far(rank, other))
            for rank in hosts
        }
        order = {"command": "buddies", "of": buddies, "addresses": self._addresses(line_up),
                 "generation": self.generation if generation is None else generation}  # fmt: skip
        return [Send(key, order) for key in line_up.values()]

    # -- small things ------------------------------------------------------------------------------------------------

    def _end(self, status: int, reason: str) -> list[Instruction]:
        move, self.move, self.recovery = self.move, None, None
        self.ended, self.exit_status, self.what = True, status, "end"
        orders = [Reply(move.order, False, f"not moved, the job has ended: {reason}")] if move else []
        members = [Send(key, {"command": "finished", "status": status, "reason": reason}) for key in self.processes]
        joiners = [Send(key, {"command": "over", "status": status}) for key in self.supervisors]
        keep = Persist({**self._decision("end"), "status": status})
        return [keep, Log(f"{reason}; status {status}"), *orders, *members, *joiners]

    def _decision(self, what: str) -> dict[str, Any]:
        return {
            "what": what,
            "generation": self.generation,
            "attempt": self.attempt,
            "world": self.world,
            "owners": {str(rank): key for rank, key in sorted(self.owners.items())},
            "signatures": {str(rank): one for rank, one in sorted(self.signatures.items())},
            "digests": {str(rank): one for rank, one in sorted(self.digests.items())},
            "fresh": sorted(self.fresh),
        }

    def _holds(self, process: Process) -> bool:
        return self.owners.get(process.rank) == process.key

    def _is_ready(self, rank: int, key: str) -> bool:
        process = self.processes.get(key)
        return process is not None and process.ready and process.rank == rank

    def _recorded(self) -> bool:
        known = set(self.signatures.values())
        return bool(self.world) and len(self.signatures) == self.world and known <= self.recordings

    def _job(self) -> Message:
        """Return what all members have in common: script, code, versions."""
        return self._roles.get(-1, {})

    def _pace_s(self) -> float:
        paces = [self.processes[key].iteration_s for key in self.owners.values() if key in self.processes]
        return statistics.median(paces) if paces else 0.0

    def _host(self, key: str) -> str:
        return self.processes[key].host if key in self.processes else ""

    def _name(self, key: str) -> str:
        process = self.processes.get(key.rsplit(" ", 1)[-1])
        if process is None:
            return key
        return f"rank {process.rank} on {process.host}" if self._holds(process) else f"the standby on {process.host}"

    def _addresses(self, joiners: dict[int, str]) -> dict[str, list[Any]]:
        return {str(rank): list(self.processes[key].address) for rank, key in joiners.items() if key in self.processes}

    def status(self) -> dict[str, Any]:
        """Return the state of the job as plain values."""
        under_way = self.move or self.recovery
        return {
            "generation": self.generation,
            "under_way": "" if under_way is None else f"{type(under_way).__name__.lower()}, {under_way.stage}",
            "ended": self.ended,
            "members": [
                {"rank": rank, "host": one.host, "step": one.step, "iteration_s": one.iteration_s}
                for rank, key in sorted(self.owners.items())
                if (one := self.processes.get(key)) is not None
            ],
            "standbys": [
                {"host": one.host, "ready": one.ready and not one.silent, "rank": one.rank}
                for one in self.processes.values()
                if not self._holds(one)
            ],
            "history": self.history[-200:],
        }
