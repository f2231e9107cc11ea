"""The controller's decisions, with a simulated job and a clock of our own: no wait, no socket."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmover.state_machine import Instruction, Log, Persist, Reply, Send, StateMachine, Timeouts

N_RANKS = 4


class Worker:
    """What a member or a standby does with the controller's messages, without any training."""

    def __init__(self, world: World, key: str, rank: int, *, standby: bool) -> None:
        self.world, self.key, self.rank, self.standby = world, key, rank, standby
        self.generation = self.interrupted = self.prepared = 0
        self.step, self.copies, self.stable = 0, {0}, -1
        self.alive, self.acts = True, not standby
        self.runs = True  # stopped is not alive, and runs
        self.held: dict[str, Any] | None = None
        self.stands: dict[str, Any] | None = None  # in a recovery; said again with every beat
        self.ordered, self.done = 0, False

    def hello(self) -> dict[str, Any]:
        return {
            "kind": "standby" if self.standby else "member", "rank": self.rank, "host": f"host-{self.key}",
            "address": ["a", 1], "world": N_RANKS, "generation": self.generation, "step": self.step,
            "versions": {"trainmover": "1", "torch": "2", "python": "3"}, "code": "c", "argv": ["x"], "cwd": "/",
            "ready": self.standby and self.rank >= 0, "prepared": self.prepared,
            "at": self.held["at"] if self.held else -1, "signature": "one" if not self.standby else "",
            "marked": self.interrupted > self.generation, "done": self.done,
        }  # fmt: skip

    def report(self, what: str, **content: Any) -> None:
        self.world.later(
            lambda: self.world.do(self.world.machine.said(self.key, {"event": what, **content}, self.world.now)), self
        )

    def report_status(self, what: str, **content: Any) -> None:
        self.stands = {"what": what, **content}
        self.report(**self.stands)

    def hear(self, message: dict[str, Any]) -> None:
        handler = getattr(self, f"on_{message['command']}", None)
        if handler is not None:
            handler(message)

    def take(self) -> None:
        """Copy the state, if one of the two places is free; the copy is reported when it has been sent, somewhen."""
        if self.step not in self.copies and len(self.copies) >= 2:
            self.copies = {step for step in self.copies if step >= self.stable}
            if len(self.copies) >= 2:
                self.copied(max(self.copies))
                return
        self.copies.add(self.step)
        self.copied(self.step)

    def copied(self, step: int) -> None:
        def report() -> None:
            if step in self.copies:
                self.world.do(self.world.machine.said(self.key, {"event": "copied", "step": step}, self.world.now))

        at = self.world.now + self.world.random.choice((0.1, 0.5, 2.5))
        heapq.heappush(self.world.queue, (at, next(self.world.number), report, self))

    def on_stable(self, message: dict[str, Any]) -> None:
        self.stable = max(self.stable, message["step"])
        self.copies = {step for step in self.copies if step >= self.stable}

    def on_discard(self, message: dict[str, Any]) -> None:
        self.copies -= set(message["steps"])

    def on_warm(self, message: dict[str, Any]) -> None:
        self.on_become({"role": message["roles"][-1]})

    def on_become(self, message: dict[str, Any]) -> None:
        self.rank = message["role"]["rank"]
        self.report("ready", rank=self.rank, address=["a", 1], code="c")

    def on_prepare(self, message: dict[str, Any]) -> None:
        self.prepared = message["generation"]
        self.report("prepared", generation=message["generation"])

    def on_hold(self, message: dict[str, Any]) -> None:
        self.held = message
        if self.standby:
            self.copies = set()
            self.report("loaded", generation=message["generation"], at=message["at"], took_s=0.1)
        else:
            self.report("promised", at=message["at"])
        if message["copies"]:
            self.copies = {*(step for step in self.copies if step == message["stable"]), message["at"]}
            self.copied(message["at"])

    def on_abort(self, message: dict[str, Any]) -> None:
        if message["generation"] == self.prepared:
            self.held, self.prepared = None, 0

    def on_switch(self, message: dict[str, Any]) -> None:
        if message["generation"] <= self.generation:
            return
        assert self.held is not None, "a switch without a promise"
        self.generation, self.step = message["generation"], max(self.step, self.held["at"])
        if str(self.rank) in message["joiners"] and not self.standby:
            self.acts = False
        elif self.standby:
            self.standby, self.acts = False, True
        self.stable = max(self.stable, message["stable"])
        self.copies = {step for step in self.copies if step >= self.stable}
        self.take()
        self.held, self.prepared = None, 0

    def on_interrupt(self, message: dict[str, Any]) -> None:
        if message["generation"] <= self.interrupted:
            return
        new, self.standby, self.acts = self.standby, False, True  # in its sandbox: the order to leave it was lost
        self.copies = set() if new else self.copies
        self.interrupted, self.held = message["generation"], None
        others = {str(rank): sorted(steps) for rank, steps in self.world.held_by(self.rank).items()}
        disk = {str(rank): [0] for rank in range(N_RANKS)} if self.world.has_checkpoint else {}
        self.report_status(
            "stopped", generation=message["generation"], own=sorted(self.copies), held=others, disk=disk, new=new
        )

    def on_recover(self, message: dict[str, Any]) -> None:
        if message["generation"] < self.interrupted or message["generation"] <= self.ordered:
            return
        self.ordered = self.generation = self.interrupted = message["generation"]
        self.standby, self.acts, self.step = False, True, message["step"]
        self.copies, self.stable = {step for step in self.copies if step < self.step}, min(self.stable, self.step)
        self.copies = {*sorted(self.copies)[-1:], self.step}
        self.copied(self.step)
        self.report_status("recovered", generation=message["generation"], took_s=0.1)

    def on_go(self, message: dict[str, Any]) -> None:
        if message["generation"] == self.interrupted:
            self.stands = None

    def on_leave(self, _message: dict[str, Any]) -> None:
        self.acts = self.alive = False


class World:
    """A job of N_RANKS members and some standbys around one machine; messages take time and keep their order."""

    def __init__(self, seed: int, n_standbys: int) -> None:
        self.now, self.random, self.has_checkpoint = 0.0, random.Random(seed), True
        self.decision: dict[str, Any] | None = None
        self.machine = StateMachine(None, Timeouts(), self.now)
        self.queue: list[tuple[float, int, Any, Worker | None]] = []
        self.number = itertools.count()
        self.last: dict[int, float] = {}
        self.workers: dict[str, Worker] = {}
        self.lost_supervisors: set[str] = set()
        self.runs: dict[
            str, str
        ] = {}  # supervisor -> its process; without joiners every joiner is a standby that joins
        self.answers: list[Reply] = []
        self.said: list[str] = []
        self.generations: list[int] = []
        for rank in range(N_RANKS):
            self.join(Worker(self, f"m{rank}", rank, standby=False))
        for rank in range(N_RANKS):
            self.workers[f"m{rank}"].report("recorded", signature="one", n_bytes=1)
            self.workers[f"m{rank}"].report("digest", digest=str(rank // 2))
        self.run(1.0)
        for place in range(n_standbys):
            self.join(Worker(self, f"s{place}", -1, standby=True))
        self.run(2.0)

    def join(self, worker: Worker) -> None:
        self.workers[worker.key] = worker
        self.do(self.machine.joined(worker.key, worker.hello(), self.now))

    def supervisor_all(self) -> None:
        """Each member was started by a supervisor, which can start a standby in its place."""
        self.runs = {f"supervisor-{rank}": f"m{rank}" for rank in range(N_RANKS)}
        for supervisor in self.runs:
            self.supervisor_comes(supervisor)

    def supervisor_comes(self, supervisor: str) -> None:
        self.do(self.machine.supervisor_joined(int(supervisor[-1]), supervisor, self.now))
        self.do(self.machine.started(supervisor, self.runs[supervisor], self.now))
        self.supervisor_tells_of_an_end(supervisor)

    def supervisor_away(self, supervisor: str) -> None:
        """Its connection is half open for a while, and what it is told meanwhile is lost."""
        self.lost_supervisors.add(supervisor)
        self.run(0.5)
        self.lost_supervisors.discard(supervisor)
        self.supervisor_comes(supervisor)

    def supervisor_tells_of_an_end(self, supervisor: str) -> None:
        if not self.workers[self.runs[supervisor]].runs:
            self.do(self.machine.exited(supervisor, self.runs[supervisor], -9, self.now))

    def supervisor_hears(self, supervisor: str, message: dict[str, Any]) -> None:
        if supervisor in self.lost_supervisors:
            return
        if message["command"] not in ("spawn", "end") or message["member"] != self.runs[supervisor]:
            return
        if self.workers[self.runs[supervisor]].runs:
            self.kill(self.runs[supervisor])
        if message["command"] == "spawn":
            self.runs[supervisor] = f"p{next(self.number)}"
            new = self.workers[self.runs[supervisor]] = Worker(self, self.runs[supervisor], -1, standby=True)
            self.do(self.machine.started(supervisor, new.key, self.now))
            self.later(lambda: self.join(new), new)

    def held_by(self, rank: int) -> dict[int, set[int]]:
        """Rank r + 2 holds r's copies, as data-parallel replicas do."""
        replica = (rank + 2) % N_RANKS
        return {replica: set(self.workers[self.machine.owners[replica]].copies)}

    def later(self, action: Any, worker: Worker | None) -> None:
        at = max(self.now + self.random.uniform(0.001, 0.2), self.last.get(id(worker), 0.0) + 1e-6)
        self.last[id(worker)] = at
        heapq.heappush(self.queue, (at, next(self.number), action, worker))

    @property
    def ended(self) -> list[int]:
        """The status of the job, once it is over."""
        return [self.machine.exit_status] if self.machine.ended else []

    def do(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Persist):
                self.decision = one.decision
                self.generations.append(one.decision["generation"])
            elif isinstance(one, Reply):
                self.answers.append(one)
            elif isinstance(one, Log):
                self.said.append(one.text)
            elif isinstance(one, Send) and one.key in self.runs:
                self.later(lambda one=one: self.supervisor_hears(one.key, one.message), None)
            elif isinstance(one, Send) and one.key in self.workers:
                if one.message["command"] == "upload":
                    self.workers[one.key].report("recording", signature=one.message["signature"])
                self.later(lambda one=one: self.workers[one.key].hear(one.message), self.workers[one.key])
            else:
                assert isinstance(one, (Send, Log))

    def run(self, seconds: float) -> None:
        """Let time pass; members train, beat and copy, the controller ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            while self.queue and self.queue[0][0] <= self.now:
                _, _, action, worker = heapq.heappop(self.queue)
                if worker is None or worker.alive:
                    action()
            for worker in list(self.workers.values()):
                if worker.alive:
                    if worker.acts and worker.held is None and worker.stands is None and not worker.done:
                        worker.step += 1
                        if worker.step % 10 == 0:
                            worker.take()
                    self.do(
                        self.machine.said(
                            worker.key, {"event": "heartbeat", "step": worker.step, "iteration_s": 0.1}, self.now
                        )
                    )
                    if worker.stands is not None and self.random.random() < 0.2:
                        worker.report(**worker.stands)
            self.do(self.machine.tick(self.now))
            self.check()

    def check(self) -> None:
        """Nobody acts in a role of the present generation but the one to whom it was given."""
        for worker in self.workers.values():
            if worker.alive and worker.acts and worker.generation == self.machine.generation:
                assert self.machine.owners.get(worker.rank) == worker.key, (worker.key, self.machine.owners)

    def cut(self, key: str, away_s: float = 0.0) -> None:
        """A control connection ends, and what is under way on it is lost, in both directions."""
        worker = self.workers[key]
        self.queue = [one for one in self.queue if one[3] is not worker]
        heapq.heapify(self.queue)
        self.do(self.machine.gone(key, self.now))
        self.run(away_s)
        self.do(self.machine.joined(key, worker.hello(), self.now))

    def kill(self, key: str) -> None:
        """Its connection ends at once, its supervisor tells of it later."""
        self.workers[key].alive = self.workers[key].runs = False
        for supervisor in [supervisor for supervisor, member in self.runs.items() if member == key]:
            self.later(lambda supervisor=supervisor: self.supervisor_tells_of_an_end(supervisor), None)
        self.do(self.machine.gone(key, self.now))

    def controller_dies(self) -> None:
        """A new controller reads the last decision; everybody who lives comes back."""
        self.machine = StateMachine(self.decision, Timeouts(), self.now)
        self.machine.recordings = {"one"}
        for supervisor in self.runs:
            self.later(lambda supervisor=supervisor: self.supervisor_comes(supervisor), None)
        for worker in self.workers.values():
            if worker.alive:
                self.later(
                    lambda worker=worker: self.do(self.machine.joined(worker.key, worker.hello(), self.now)), worker
                )

    def whole(self) -> bool:
        holders = [self.workers[key] for key in self.machine.owners.values()]
        idle = self.machine.move is None and self.machine.recovery is None
        return idle and all(
            one.alive and one.acts and one.stands is None and one.generation == self.machine.generation
            for one in holders
        )


def test_a_planned_move_is_written_down_before_anybody_is_told() -> None:
    world = World(1, 1)
    told: list[str] = []
    real = world.do
    world.do = lambda instructions: (told.extend(_names(instructions)), real(instructions))[1]  # type: ignore[method-assign]
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    world.run(5.0)
    assert world.answers[-1].done
    assert world.machine.owners[1] == "s0"
    assert told.index("keep switch") < told.index("switch")
    assert not world.workers["m1"].acts


def _names(instructions: list[Instruction]) -> list[str]:
    return [
        f"keep {one.decision['what']}" if isinstance(one, Persist) else one.message["command"]
        for one in instructions
        if isinstance(one, (Persist, Send))
    ]


def test_orders_that_cannot_be_carried_out_say_why() -> None:
    world = World(1, 0)
    for source, words in (("nowhere", "no rank runs on nowhere"), ("host-m1", "1 standby processes are needed")):
        world.do(world.machine.ordered("order", [(source, "")], world.now))
        assert words in world.answers[-1].text


def test_a_member_that_comes_back_after_it_was_replaced_is_sent_away() -> None:
    world = World(1, 1)
    stopped = world.workers["m2"]
    stopped.alive = False  # as SIGSTOP: its connection stands, it says nothing
    world.run(10.0)
    assert world.machine.owners[2] == "s0"
    stopped.alive = True
    world.do(world.machine.joined("m2", stopped.hello(), world.now))
    world.run(1.0)
    assert not stopped.acts
    assert world.whole()


def test_several_machines_move_at_once_each_to_its_own_standby() -> None:
    world = World(5, 3)
    world.do(world.machine.ordered("order", [("host-m0", "host-s2"), ("host-m2", "")], world.now))
    world.run(8.0)
    assert world.answers[-1].done
    assert world.machine.generation == 1
    assert world.machine.owners[0] == "s2"
    assert world.machine.owners[2] in ("s0", "s1")
    assert world.whole()
    world.do(world.machine.ordered("more", [("host-m1", ""), ("host-m3", "")], world.now))
    assert "1 standby processes are needed anywhere, 0 are there" in world.answers[-1].text
    world.do(world.machine.ordered("twice", [("host-m1", ""), ("host-m1", "")], world.now))
    assert "named twice: host-m1, host-m1" in world.answers[-1].text


def test_two_losses_at_once_are_one_recovery() -> None:
    world = World(3, 4)
    world.kill("m0")
    world.kill("m3")
    world.run(8.0)
    assert world.whole()
    assert len([one for one in world.machine.history if one["what"] == "recovery"]) == 1


def test_a_copy_counts_when_every_member_has_the_very_same_iteration() -> None:
    """One member had no place for iteration 17; then nobody may rely on it, and nobody may be left without place."""
    world = World(1, 0)
    world.machine.stable, world.machine.copied = -1, {}
    told: list[dict[str, Any]] = []

    def copied(step: int, *ranks: int) -> list[dict[str, Any]]:
        told.clear()
        for rank in ranks:
            out = world.machine.said(f"m{rank}", {"event": "copied", "step": step}, world.now)
            told.extend(one.message for one in out if isinstance(one, Send))
        return told

    assert copied(10, 0, 1, 2) == []
    assert copied(10, 3) == [{"command": "stable", "step": 10}] * 4
    assert copied(17, 0, 1, 2) == []
    assert copied(20, 3) == [{"command": "discard", "steps": [17, 20]}] * 4
    assert copied(20, 0) == [{"command": "discard", "steps": [20]}]
    assert world.machine.stable == 10
    assert copied(30, 0, 1, 2, 3) == [{"command": "stable", "step": 30}] * 4


def test_a_member_that_is_killed_at_once_after_a_move_does_not_end_the_job() -> None:
    """The leaver takes along its own copies and those of others. So all copy at the boundary, before the decision."""
    for victim in ("m0", "m2", "m3", "s0"):
        world = World(1, 2)
        world.has_checkpoint = False
        world.run(2.0)
        world.do(world.machine.ordered("order", [("host-m1", "host-s0")], world.now))
        while world.machine.generation == 0:
            world.run(0.1)
        at = world.machine.stable
        world.kill(victim)
        world.run(8.0)
        assert world.whole() and not world.ended, (victim, world.said[-9:], world.machine.status())
        assert f"all members go back to iteration {at}" in " ".join(world.said)


def test_copies_at_the_boundary_of_a_move_that_was_called_off_are_discarded_and_the_common_one_stays() -> None:
    world = World(1, 1)
    world.has_checkpoint = False
    world.run(4.0)
    common = world.machine.stable
    assert common > 0
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    while world.machine.move is None or world.machine.move.stage != "holding":
        world.run(0.1)
    at = world.machine.move.at
    world.kill("s0")
    world.run(0.5)
    assert not world.answers[-1].done
    assert all(common in one.copies and at not in one.copies for one in world.workers.values() if one.alive)
    world.run(5.0)
    assert world.machine.stable > at


def test_a_move_whose_copies_are_late_is_called_off_and_names_the_member() -> None:
    world = World(1, 1)
    world.run(4.0)
    late = world.workers["m3"]
    late.copied = lambda _step: None  # type: ignore[method-assign]
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    until(world, lambda: bool(world.answers), 40.0)
    assert not world.answers[-1].done and world.machine.generation == 0
    assert "rank 3 on host-m3 took too long (holding)" in world.answers[-1].text


def until(world: World, ready: Any, limit_s: float = 10.0) -> None:
    """Let time pass until something is so; each step is a tenth of a second."""
    end = world.now + limit_s
    while not ready():
        assert world.now < end, (world.said, world.machine.status())
        world.run(0.1)


def test_what_a_standby_computes_in_its_sandbox_says_nothing_about_a_rank() -> None:
    """Seen once: its digest counted for rank -1, and the controller took four digests for those of ranks 0 to 3."""
    world = World(1, 1)
    world.controller_dies()
    world.run(2.0)
    world.machine.digests = dict.fromkeys((0, 2, 3), "one")  # as if it knew of three
    joiner = Worker(world, "new", -1, standby=True)
    world.do(world.machine.joined("new", joiner.hello(), world.now))
    out = world.machine.said("new", {"event": "digest", "digest": "sandbox"}, world.now)
    assert out == [] and world.machine.digests.keys() == {0, 2, 3}
    world.kill("m2")
    world.run(5.0)
    assert world.whole()


def test_a_controller_that_is_started_anew_knows_who_can_be_whose_buddy() -> None:
    world = World(1, 1)
    world.controller_dies()
    world.run(1.0)
    told: list[dict[str, Any]] = []
    real = world.do
    world.do = lambda out: (told.extend(one.message for one in out if isinstance(one, Send)), real(out))[1]  # type: ignore[method-assign]
    world.kill("m2")
    world.run(5.0)
    assert world.whole()
    assert {"0": 1, "1": 0, "2": 3, "3": 2} in [one["of"] for one in told if one["command"] == "buddies"]


def test_a_member_that_has_not_heard_of_the_end_of_a_recovery_is_told_when_it_says_where_it_stands() -> None:
    world = World(1, 1)
    world.kill("m2")
    until(world, lambda: world.machine.recovery is not None)
    until(world, lambda: world.machine.recovery is None)
    assert world.workers["m0"].stands is not None  # the word is under way
    world.cut("m0")
    world.run(5.0)
    assert world.whole()
    assert world.machine.generation == 1


def test_a_report_that_was_lost_is_repeated() -> None:
    world = World(1, 1)
    world.kill("m2")
    until(world, lambda: any(one.stands is not None for one in world.workers.values()))
    key = next(one.key for one in world.workers.values() if one.stands is not None)
    world.cut(key)
    world.run(5.0)
    assert world.whole()


def test_an_order_to_go_back_that_was_lost_is_repeated_to_members_and_joiners() -> None:
    for key in ("m0", "s0"):
        world = World(1, 1)
        world.kill("m2")
        until(world, lambda world=world: world.machine.recovery and world.machine.recovery.stage == "restoring")
        assert world.workers[key].generation == 0
        world.cut(key)
        world.run(5.0)
        assert world.whole(), key
        assert world.machine.generation == 1


def test_a_joiner_that_never_heard_that_it_is_one_joins_the_next_recovery() -> None:
    world = World(1, 2)
    world.kill("m2")
    until(world, lambda: world.machine.recovery and world.machine.recovery.stage == "restoring")
    joiner = world.machine.owners[2]
    assert world.workers[joiner].standby
    world.controller_dies()
    world.queue = [one for one in world.queue if one[3] is not world.workers[joiner]]
    heapq.heapify(world.queue)
    assert world.machine.fresh == {2}  # not everybody is connected with it
    world.do(world.machine.joined(joiner, world.workers[joiner].hello(), world.now))
    world.run(8.0)
    assert world.whole()
    assert world.machine.owners[2] == joiner


def test_a_controller_that_dies_before_it_says_go_begins_the_recovery_anew() -> None:
    """All are back at one iteration, nobody is marked, and the new controller cannot know it."""
    world = World(1, 1)
    world.kill("m2")
    until(world, lambda: world.machine.recovery and world.machine.recovery.stage == "restoring")
    world.machine.said = lambda *_: []  # type: ignore[method-assign] - it hears nothing any more
    until(world, lambda: all(world.workers[key].generation == 1 for key in world.machine.owners.values()))
    world.queue.clear()
    world.controller_dies()
    world.run(8.0)
    assert world.whole()
    assert world.machine.generation == 2


def test_a_move_is_called_off_when_a_control_connection_ends_and_nobody_stands_still_for_long() -> None:
    world = World(1, 1)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    until(world, lambda: world.machine.move and world.machine.move.stage == "holding")
    world.cut("m3")
    world.run(2.0)
    assert not world.answers[-1].done and "control connection of rank 3" in world.answers[-1].text
    assert world.whole() and all(one.held is None for one in world.workers.values())


def test_who_has_come_to_the_end_says_so_again_and_hears_that_the_job_has_ended() -> None:
    world = World(1, 0)
    for rank in range(N_RANKS):
        world.workers[f"m{rank}"].done = True
        world.workers[f"m{rank}"].report("done", step=9)
        if rank == 1:
            world.run(1.0)
            world.cut("m0")
    world.run(1.0)
    assert world.ended == [0]
    out = world.machine.joined("m0", world.workers["m0"].hello(), world.now)
    assert {"command": "finished", "status": 0, "reason": "the job has ended"} in [
        one.message for one in out if isinstance(one, Send)
    ]


def heard(world: World) -> list[dict[str, Any]]:
    """Messages that the controller sends from now on."""
    told: list[dict[str, Any]] = []
    real = world.do

    def do(instructions: list[Instruction]) -> None:
        told.extend(one.message for one in instructions if isinstance(one, Send))
        real(instructions)

    world.do = do  # type: ignore[method-assign]
    return told


def test_a_state_of_an_earlier_boundary_does_not_count_for_a_later_one() -> None:
    """One member was late, so that a later boundary was named; the joiner had the state of the first by then."""
    world = World(1, 1)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    until(world, lambda: world.machine.move and world.machine.move.stage == "holding")
    move = world.machine.move
    assert move is not None
    world.queue.clear()
    at, generation = move.at, move.generation
    world.do(world.machine.said("m3", {"event": "late", "at": at, "step": at}, world.now))
    assert move.at > at
    for key in world.machine.owners.values():
        world.do(world.machine.said(key, {"event": "promised", "at": move.at}, world.now))
    for key in ("m0", "m2", "m3", "s0"):
        world.do(world.machine.said(key, {"event": "copied", "step": move.at}, world.now))
    world.queue.clear()
    world.do(world.machine.said("s0", {"event": "loaded", "generation": generation, "at": at}, world.now))
    assert world.machine.generation == 0 and world.machine.move is move
    world.do(world.machine.said("s0", {"event": "loaded", "generation": generation, "at": move.at}, world.now))
    assert world.machine.generation == generation


def test_a_standby_that_says_nothing_is_neither_chosen_nor_waited_for() -> None:
    """SIGSTOP: its connection stands. In a move it is given up, in a recovery another one is taken."""
    world = World(1, 1)
    silent = world.workers["s0"]
    silent.alive = False
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    world.run(6.0)
    assert not world.answers[-1].done
    assert "the standby on host-s0 has said nothing for 5 s" in world.answers[-1].text
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    assert "0 are there" in world.answers[-1].text
    world.join(Worker(world, "s1", -1, standby=True))
    world.run(1.0)
    silent.alive = True
    world.run(1.0)
    silent.alive = False
    world.machine.processes["s0"].rank = 2  # it would be the first choice
    world.kill("m2")
    world.run(10.0)
    assert world.whole() and world.machine.owners[2] == "s1"


def test_a_standby_that_says_nothing_does_not_keep_a_supervisor_from_starting_a_process() -> None:
    world = World(1, 0)
    stuck = Worker(world, "stuck", -1, standby=True)
    world.supervisor_all()
    world.join(stuck)
    stuck.alive = False
    told: list[tuple[str, dict[str, Any]]] = []
    real = world.do
    world.do = lambda out: (told.extend((one.key, one.message) for one in out if isinstance(one, Send)), real(out))[1]  # type: ignore[method-assign]
    world.kill("m2")
    world.run(10.0)
    assert ("supervisor-2", {"command": "spawn", "member": "m2"}) in told


def test_a_supervisor_whose_process_holds_another_rank_is_not_asked_for_a_second_one() -> None:
    """Joiners take ranks as they come, so a supervisor's process may hold any; whoever has lost its own starts one.

    Here supervisor 1 runs rank 2, and supervisor 2 rank 1.
    """
    world = World(3, 0)
    world.supervisor_all()
    world.runs |= {"supervisor-1": "m2", "supervisor-2": "m1"}
    for supervisor in ("supervisor-1", "supervisor-2"):
        world.supervisor_comes(supervisor)
    world.kill("m2")
    world.run(20.0)
    assert world.whole(), world.said[-3:]
    assert world.runs["supervisor-2"] == "m1" and world.machine.owners[1] == "m1"
    assert world.machine.owners[2] == world.runs["supervisor-1"] != "m2"


def test_joiners_for_two_lost_ranks_warm_up_as_one_each() -> None:
    world = World(1, 0)
    world.supervisor_all()
    asked: list[int] = []
    real = world.do
    world.do = lambda out: (  # type: ignore[method-assign]
        asked.extend(one.message["roles"][-1]["rank"] for one in out
                     if isinstance(one, Send) and one.message["command"] == "warm"), real(out))[1]  # fmt: skip
    world.kill("m0")
    world.kill("m1")
    world.run(20.0)
    assert world.whole() and sorted(asked) == [0, 1]


def test_a_standby_that_dies_while_it_warms_up_leaves_the_lost_rank_to_a_supervisor() -> None:
    world = World(1, 0)
    world.supervisor_all()
    warming = Worker(world, "s0", -1, standby=True)
    warming.on_warm = lambda _message: None  # type: ignore[method-assign]
    world.join(warming)
    world.kill("m2")
    world.run(3.0)
    assert world.runs["supervisor-2"] == "m2"
    world.kill("s0")
    world.run(10.0)
    assert world.whole() and world.machine.owners[2] == world.runs["supervisor-2"]


def test_a_joiner_whose_connection_ends_for_a_moment_is_not_ended() -> None:
    world = World(1, 0)
    world.supervisor_all()
    world.kill("m2")
    for _ in range(100):
        world.run(0.1)
        if world.machine.recovery and world.machine.recovery.joiners:
            break
    joiner = world.runs["supervisor-2"]
    world.cut(joiner, 0.3)
    world.run(10.0)
    assert world.whole() and world.machine.owners[2] == joiner


def test_what_a_supervisor_was_told_on_a_connection_that_was_lost_is_told_again() -> None:
    world = World(1, 0)
    world.supervisor_all()
    world.lost_supervisors.add("supervisor-2")
    world.kill("m2")
    world.run(3.0)
    assert world.runs["supervisor-2"] == "m2" and not world.whole()
    world.lost_supervisors.clear()
    world.supervisor_comes("supervisor-2")
    world.run(10.0)
    assert world.whole() and world.machine.owners[2] == world.runs["supervisor-2"]


def test_a_supervisor_whose_order_was_called_off_is_asked_again_in_the_next_recovery() -> None:
    """A standby comes between the orders "spawn" and "end", so the supervisor starts nothing and says nothing."""
    world = World(1, 0)
    world.supervisor_all()
    world.lost_supervisors.add("supervisor-1")
    world.kill("m1")
    world.run(0.5)
    assert world.machine.supervisors["supervisor-1"].asked
    world.join(Worker(world, "s0", -1, standby=True))
    world.run(10.0)
    assert world.whole() and world.machine.owners[1] == "s0"
    world.lost_supervisors.clear()
    world.kill("s0")
    world.run(10.0)
    assert world.whole() and world.machine.owners[1] == world.runs["supervisor-1"] != "m1"


def test_a_joiner_that_a_supervisor_started_and_that_dies_is_followed_by_another() -> None:
    world = World(1, 0)
    world.supervisor_all()
    world.kill("m2")
    for _ in range(100):
        world.run(0.1)
        if world.runs["supervisor-2"] != "m2" and world.runs["supervisor-2"] in world.machine.processes:
            break
    world.kill(world.runs["supervisor-2"])
    world.run(10.0)
    assert world.whole() and world.machine.owners[2] == world.runs["supervisor-2"]


def test_recoveries_that_fail_again_and_again_end_the_job_and_say_why() -> None:
    """A damaged checkpoint, say: every attempt would end alike, for ever."""
    world = World(1, 1)

    def fails(self: Worker, message: dict[str, Any]) -> None:
        if message["generation"] > self.ordered:
            self.ordered = message["generation"]
            self.report_status("failed", generation=message["generation"], reason="the checkpoint cannot be read")

    world.workers["s0"].on_recover = fails.__get__(world.workers["s0"])  # type: ignore[method-assign]
    world.kill("m2")
    world.run(60.0)
    assert world.ended == [1]
    assert "5 recoveries have failed in succession" in world.said[-1]
    assert "the standby on" not in world.said[-1] and "the checkpoint cannot be read" in world.said[-1]


def test_of_two_who_stay_and_have_lost_each_other_unnoticed_one_is_replaced() -> None:
    """They had not talked since their connection was cut; a recovery for somebody else drains it, and fails."""
    world = World(1, 2)

    def fails(self: Worker, message: dict[str, Any]) -> None:
        owners = world.machine.owners
        if (owners[0], owners[3]) == ("m0", "m3"):
            reason = "the connection to rank 3 is gone: Broken pipe"
            self.report_status("failed", generation=message["generation"], reason=reason, peer=3)
        else:
            Worker.on_recover(self, message)

    world.workers["m0"].on_recover = fails.__get__(world.workers["m0"])  # type: ignore[method-assign]
    world.kill("m2")
    world.run(20.0)
    assert not world.ended and world.whole()
    assert {world.machine.owners[2], world.machine.owners[3]} == {"s0", "s1"}


def test_checkpoints_of_ranks_that_the_job_does_not_have_are_passed_over() -> None:
    """The folder was used by a larger job; a joiner reports what it finds there."""
    world = World(1, 1)
    world.machine.processes["s0"].disk = {2: {0}, 7: {0}}
    world.kill("m2")
    world.run(8.0)
    assert world.whole()


def test_who_was_sent_away_is_no_standby_that_a_lost_rank_waits_for() -> None:
    world = World(1, 1)
    gone = world.workers["m2"]
    gone.alive = False
    world.run(10.0)
    assert world.machine.owners[2] == "s0"
    world.do(world.machine.joined("m2", gone.hello(), world.now))
    assert world.machine.status()["standbys"] == []


def test_an_order_is_answered_when_the_job_ends_meanwhile() -> None:
    world = World(1, 1)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    for rank in range(N_RANKS):
        world.do(world.machine.said(f"m{rank}", {"event": "done", "step": 9}, world.now))
    assert world.ended and not world.answers[-1].done
    assert "the job has ended: the job is complete" in world.answers[-1].text


def test_a_standby_that_comes_back_is_told_that_its_move_was_called_off() -> None:
    world = World(1, 1)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    until(world, lambda: world.workers["s0"].held is not None)
    generation = world.workers["s0"].prepared
    world.controller_dies()
    told = heard(world)
    world.do(world.machine.joined("s0", world.workers["s0"].hello(), world.now))
    assert {"command": "abort", "generation": generation} in told


def test_a_standby_that_is_back_before_its_former_connection_has_ended_is_in_no_move() -> None:
    """What was under way to it may be lost, and the others would stand still until `hold_s` has passed."""
    world = World(1, 1)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    until(world, lambda: world.machine.move and world.machine.move.stage == "holding")
    world.do(world.machine.joined("s0", world.workers["s0"].hello(), world.now))
    world.run(2.0)
    assert not world.answers[-1].done and "the joiner is gone" in world.answers[-1].text
    assert world.whole() and all(one.held is None for one in world.workers.values())


def test_a_request_for_a_recording_that_was_lost_is_repeated_until_every_role_is_recorded() -> None:
    """Without recordings no standby could warm up, and no supervisor would start one."""
    world = World(1, 0)
    world.machine.recordings = set()
    told = heard(world)
    hellos = {f"m{rank}": {**world.workers[f"m{rank}"].hello(), "signature": "one"} for rank in range(N_RANKS)}
    uploads = {"command": "upload", "signature": "one"}
    for key, hello in hellos.items():
        world.machine.gone(key, world.now)
        out = world.machine.joined(key, hello, world.now)
        told.extend(one.message for one in out if isinstance(one, Send))
    assert told.count(uploads) == 1  # one of four is asked
    world.machine.gone("m0", world.now)
    out = world.machine.joined("m0", hellos["m0"], world.now)
    assert [one.key for one in out if isinstance(one, Send) and one.message == uploads] == ["m0"]
    out = world.machine.said("m0", {"event": "recording", "signature": "one"}, world.now)
    assert [one.key for one in out if isinstance(one, Send) and one.message == {"command": "recorded"}] == [
        f"m{rank}" for rank in range(N_RANKS)
    ]


def test_a_move_that_takes_too_long_names_the_standby() -> None:
    world = World(1, 1)
    world.workers["s0"].on_become = lambda _message: None  # type: ignore[method-assign]
    world.machine.processes["s0"].rank = 3
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    world.run(Timeouts().become_s + 1)
    assert not world.answers[-1].done
    assert "the standby on host-s0 took too long (becoming)" in world.answers[-1].text


def test_members_are_told_how_long_the_controller_itself_will_wait() -> None:
    """Else a longer time-out than the default would end in an error of the members."""
    world = World(1, 1)
    world.machine.timeouts = Timeouts(hold_s=200.0, standby_s=900.0)
    told = heard(world)
    world.do(world.machine.ordered("order", [("host-m1", "")], world.now))
    world.run(5.0)
    world.kill("m2")
    world.run(5.0)
    assert {one["within_s"] for one in told if one["command"] == "hold"} == {200.0}
    assert {one["within_s"] for one in told if one["command"] == "interrupt"} == {1800.0}


FAULT = st.sampled_from(
    [
        *("move", "kill member", "stop member", "kill standby", "kill controller", "link", "connection", "wait"),
        *("standby's connection", "supervisor's connection"),
    ]
)


def befall(world: World, place: int, fault: str, rank: int) -> None:
    """Let one fault happen; `place` names its order."""
    holder = world.machine.owners.get(rank, "")
    if fault == "move":
        world.do(world.machine.ordered(f"o{place}", [(f"host-{holder}", "")], world.now))
    elif fault == "kill member" and world.workers[holder].alive:
        world.kill(holder)
    elif fault == "stop member":
        world.workers[holder].alive = False
    elif fault == "kill standby":
        for worker in [one for one in world.workers.values() if one.standby and one.alive][:1]:
            world.kill(worker.key)
    elif fault == "connection" and world.workers[holder].alive and not world.ended:
        world.cut(holder)
    elif fault == "standby's connection":
        for worker in [one for one in world.workers.values() if one.standby and one.alive][:1]:
            if worker.key in world.machine.processes:
                world.cut(worker.key)
    elif fault == "supervisor's connection" and world.runs:
        world.supervisor_away(f"supervisor-{rank}")
    elif fault == "kill controller":
        world.controller_dies()
    elif fault == "link" and world.workers[holder].alive:
        world.workers[holder].report(
            "lost", peer=(rank + 1) % N_RANKS, detail="cut", generation=world.machine.generation
        )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(FAULT, st.integers(0, 3), st.floats(0.0, 1.5)), min_size=1, max_size=8),
    st.booleans(),
)
@example(seed=0, faults=[("kill member", rank, 0.0) for rank in range(4)], by_supervisors=False)
@example(seed=72, faults=[("move", 0, 1.0), ("kill member", 0, 0.0), ("kill controller", 0, 0.0)], by_supervisors=True)
@example(
    seed=0,
    by_supervisors=False,
    faults=[
        *[("move", 0, 0.0), ("move", 0, 0.0), ("kill member", 2, 0.0), ("kill member", 3, 0.0)],
        *[("stop member", 1, 1.5), ("move", 0, 1.0), ("move", 0, 1.5), ("kill member", 0, 1.0)],
    ],
)
def test_random_faults_at_random_moments_end_in_a_whole_job_with_one_member_a_role(
    seed: int, faults: list[tuple[str, int, float]], by_supervisors: bool
) -> None:
    """60 examples of up to eight faults; standbys join, or joiners start them. After each the same rules hold.

    At the end all four ranks train, but for members who die with the replica that holds their copies: then nobody has
    the state, and the job says so.
    """
    world = World(seed, 0 if by_supervisors else 3)
    if by_supervisors:
        world.supervisor_all()
    for place, (fault, rank, pause_s) in enumerate(faults):
        befall(world, place, fault, rank)
        world.run(pause_s)
        if not by_supervisors:
            world.join(Worker(world, f"late{place}", -1, standby=True))
    for spare in range(0 if by_supervisors else N_RANKS):
        world.join(Worker(world, f"end{spare}", -1, standby=True))
    world.run(60.0)
    lost = {rank for fault, rank, _ in faults if fault in ("kill member", "stop member")}
    if world.ended and any((rank + 2) % N_RANKS in lost for rank in lost):
        assert world.ended == [1] and "of no iteration is every rank's state" in world.said[-1]
        return
    assert not world.ended, world.ended
    assert world.whole(), (world.machine.status(), [vars(one) for one in world.workers.values()])
    assert world.generations == sorted(world.generations)
