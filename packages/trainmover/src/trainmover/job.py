"""The training script's interface: `attach`, `job.steps` and `job.iteration`.

    job = trainmover.attach(model, optimizer, trainmover.Batches(loader))
    for _ in job.steps(1000):
        with job.iteration() as step:
            ...

Without a controller the context manager does nothing. A move happens at its beginning, never inside. If a member is
lost inside, it ends without an exception, the iteration does not count, and `steps` continues from the iteration that
all members went back to. No wait is longer than the timeouts in docs/how-it-works.md.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainmover import faults, transfer
from trainmover.agent import AWAY_S, Agent, addresses
from trainmover.context import Context, context
from trainmover.errors import LinkLostError, MoveError, TrainmoverError, UsageError
from trainmover.snapshots import SnapshotStore, checkpoints, load_checkpoint, save_checkpoint, set_aside
from trainmover.state import Snapshot, Stateful, TrainingState
from trainmover.transport import dial
from trainmover.wire import Message

RECORDED_ITERATIONS = 2
RESTORE_S = 40.0
FINISH_S = 600.0
QUIET_S = 2.0
SPARE_S = 300.0
_ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class Role(BaseException):
    """Unwinds the script of a process in the sandbox: it takes another role, or ends."""

    def __init__(self, role: Message | None) -> None:
        super().__init__()
        self.role = role


class Job:
    """A training whose members can be replaced; `attach` creates it.

    Attributes:
        step: Iterations done.
        counted: Whether the last block counts: no member was lost within, and it was no shadow iteration.
        pauses: Of every move and recovery: what, before which iteration, and seconds.
    """

    def __init__(
        self,
        state: TrainingState,
        owner: Context,
        agent: Agent | None,
        copy_every: int,
        *,
        shadow: bool,
        folder: Path | None = None,
        checkpoint_every: int = 0,
    ) -> None:
        self.step, self.counted = 0, False
        self.pauses: list[dict[str, Any]] = []
        self._state, self._owner, self._agent = state, owner, agent
        self._every, self._shadow = copy_every, shadow
        self._recovered = 0
        self._new = False
        self._folder, self._checkpoint_every = folder, checkpoint_every  # without a controller
        self._copy_now, self._copied = True, -1
        self._began_s = time.perf_counter()

    def iteration(self) -> Job:
        """Return the context manager around one iteration."""
        return self

    def steps(self, total: int) -> Iterator[int]:
        """Iterate until `total` iterations are done on all ranks; some may run more than once.

        What is yielded is the number of iterations done; which one it will be is known in the block, after a move
        perhaps.
        """
        while True:
            while self.step < total:
                yield self.step
            if self._all_done():
                return

    @property
    def in_shadow(self) -> bool:
        """Return True if this process runs shadow iterations, whose results are dropped."""
        return self._shadow

    def snapshot(self) -> Snapshot:
        """Return the current state. Its digests tell whether two members, or two runs, are bitwise equal."""
        return self._state.snapshot(self.step)

    # -- the block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> int:
        """Begin an iteration: carry out pending orders at the boundary."""
        self._owner.shielded = False
        if self._agent is not None:
            self._boundary(self._agent)
        self._began_s = time.perf_counter()
        self._owner.shielded = self._agent is not None
        return self.step

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: types.TracebackType | None
    ) -> bool:
        """End an iteration. It counts if no connection failed."""
        owner, self._owner.shielded, self.counted = self._owner, False, False
        if owner.broken is not None and error is None:
            raise owner.broken
        if owner.failure is not None:
            return error is None or isinstance(error, Exception)
        if error is not None:
            return False
        took_s = time.perf_counter() - self._began_s
        self.step, self.counted = self.step + 1, not self._shadow
        if self._agent is None and self._folder is not None and self.step % self._checkpoint_every == 0:
            save_checkpoint(self._folder, self.snapshot(), self._owner.rank)
        if self._agent is not None:
            before = self._agent.iteration_s
            self._agent.iteration_s = took_s if not before else 0.8 * before + 0.2 * took_s
            if owner.recorder is not None and self.step >= RECORDED_ITERATIONS:
                self._end_recording(self._agent)
        return False

    def _boundary(self, agent: Agent) -> None:
        if self._shadow:
            self._wait_in_shadow(agent)
        while True:
            if self._owner.failure is not None or agent.interrupt > self._recovered:
                self._recover(agent)
                continue
            self._copy(agent)
            with agent.changed:
                if agent.leave is not None or agent.finished is not None:
                    break
                held = self._held(agent)
                if not held and agent.interrupt <= self._recovered:
                    agent.passed = self.step
                    return
            if held:
                self._hold(agent)
        self._stop(agent)

    def _stop(self, agent: Agent) -> None:
        """End this process as the controller ordered."""
        if agent.finished is not None:
            raise MoveError(f"the job has ended: {agent.finished['reason']}")
        raise SystemExit(f"trainmover: this process has to leave: {agent.leave}")

    def _copy(self, agent: Agent) -> None:
        due = self.step % self._every == 0 and self.step != self._copied
        if not self._shadow and (self._copy_now or due):
            self._copy_now, self._copied = False, self.step
            agent.store.take(self._state.snapshot(self.step))

    def _end_recording(self, agent: Agent) -> None:
        recording, self._owner.recorder = self._owner.recorder, None
        if recording is not None:
            agent.upload = recording.to_bytes
            signature = recording.signature()
            agent.remember("signature", signature)
            agent.report("recorded", signature=signature)

    def _all_done(self) -> bool:
        """Wait for the other members at the end of the training; they may still need this one."""
        agent = self._agent
        if agent is None or self._shadow:
            return True
        agent.passed, agent.done = self.step, True
        agent.report("done", step=self.step)
        agent.wait(
            lambda: bool(agent.finished or agent.interrupt > self._recovered or agent.leave or self._held(agent)),
            FINISH_S,
            "the end of the other ranks",
        )
        agent.done = False
        if agent.finished is not None and not agent.finished["status"]:
            return True
        self._boundary(agent)
        return False

    def _held(self, agent: Agent) -> bool:
        """Return whether this member has reached the boundary at which all stop."""
        hold = agent.hold
        return hold is not None and bool(hold["at"] <= self.step)

    # -- a planned move ----------------------------------------------------------------------------------------------

    def _hold(self, agent: Agent) -> None:
        """Stand at the boundary until the controller has decided."""
        began, hold = time.perf_counter(), agent.hold
        if hold is None:
            return
        faults.at("hold")
        busy = self._owner.backend.busy(QUIET_S)
        if busy:
            reason = f"collectives of groups {busy} cross the iteration boundary; wait for them within the iteration"
            agent.report("failed", generation=hold["generation"], reason=reason)
        leaver = self._owner.rank in hold["ranks"]
        if leaver and hold["at"] == self.step:
            self._send_state(agent, hold)
        elif hold["at"] == self.step and hold["copies"]:
            agent.store.make_room(hold["stable"])
            agent.store.take(self._state.snapshot(self.step))
            self._copied = self.step

        def decided() -> bool:
            return (
                self._judged(agent, hold) or agent.interrupt > self._recovered or agent.leave is not None
                or agent.hold is None or agent.hold["at"] > self.step
            )  # fmt: skip

        within_s = max(AWAY_S, hold["within_s"] + AWAY_S / 2)
        agent.wait(decided, within_s, "the decision about a move; no controller decides whether this rank goes on")
        with agent.changed:
            decision = agent.decision
            if decision is None or not self._judged(agent, hold) or agent.interrupt > self._recovered:
                return
            agent.hold = agent.decision = None
            agent.prepared = 0
        if decision["command"] == "abort":
            self._note("called off", began)
            return
        if leaver:
            self._go_away(agent)
        self._switch(agent, decision)
        self._note("moved", began)
        agent.report("switched", generation=decision["generation"], took_s=time.perf_counter() - began)

    def _judged(self, agent: Agent, hold: Message) -> bool:
        """Return whether this move is decided; a decision about an earlier, aborted move does not count."""
        return agent.decision is not None and bool(agent.decision["generation"] >= hold["generation"])

    def _send_state(self, agent: Agent, hold: Message) -> None:
        """Send the leaver's state at this boundary to the joiner."""
        faults.at("state")
        generation = hold["generation"]
        rank = self._owner.rank
        try:
            self._give(rank, agent.joiners[str(rank)], generation, self._state.snapshot(self.step))
        except TrainmoverError as error:
            agent.report("failed", generation=generation, reason=f"the state could not be sent: {error}")

    def _give(self, rank: int, address: Sequence[Any], generation: int, snapshot: Snapshot) -> None:
        """Send a complete state to the joiner that takes this rank."""
        link = dial((address[0], address[1]), self._owner.hello("state", "", generation, rank), 5.0)
        transfer.send_snapshot(link, snapshot, self._owner.wake, time.monotonic() + RESTORE_S)
        link.close()

    def _receive(self, source: int, generation: int) -> Snapshot:
        """Wait for the complete state that another process sends."""
        deadline = time.monotonic() + RESTORE_S
        link = self._owner.listener.take("state", "", generation, source, self._owner.wake, deadline)
        snapshot = transfer.receive_snapshot(link, self._owner.wake, deadline)
        link.close()
        return snapshot

    def _switch(self, agent: Agent, decision: Message) -> None:
        faults.at("switch")
        self._owner.backend.switch(addresses(decision["joiners"]), decision["generation"])
        agent.store.set_stable(decision["stable"])
        self._copy_now = decision["stable"] != decision["at"]

    def _go_away(self, agent: Agent) -> None:
        """End the leaver."""
        agent.leave = "another process has taken this rank"
        self._owner.backend.close()
        sys.stdout.flush()
        raise SystemExit(0)

    # -- a joiner --------------------------------------------------------------------------------------------------

    def _wait_in_shadow(self, agent: Agent) -> None:
        """After the shadow iterations, wait for a rank and take over its state."""
        owner = self._owner
        if self.step < owner.shadow_iterations:
            return
        faults.at("shadow")
        if owner.roles_left:
            raise Role(owner.roles_left.pop(0))
        disk = agent.store.report()["disk"]
        agent.store.rollback(-1)  # the sandbox's copies are no member's
        agent.remember("disk", disk)
        agent.ready, taken = True, owner.rank
        if faults.enabled("wrong-role"):
            owner.rank += 1
        agent.report("ready", rank=taken, address=list(owner.listener.address), code=owner.code, disk=disk)
        tried: tuple[int, int] = (-1, -1)
        held: Snapshot | None = None
        while True:
            agent.wait(partial(self._called, agent, tried), 1e7, "a role")
            if agent.leave is not None or agent.finished is not None:
                raise Role(None)
            if agent.become is not None:
                role, agent.become = agent.become, None
                raise Role(role)
            if agent.recover is not None or agent.interrupt > self._recovered:
                self._new = agent.recover is None  # the order that made it a member was lost
                self._awake(agent, self.step)
                self._recover(agent)
                return
            decision, hold = agent.decision, agent.hold
            if decision is not None:
                if self._taken_over(agent, decision, held):
                    return
            elif hold is not None and (hold["generation"], hold["at"]) > tried:
                held = self._take_state(agent, hold)
                tried = hold["generation"], max(hold["at"], held.step if held is not None else -1)

    def _called(self, agent: Agent, tried: tuple[int, int]) -> bool:
        """Return whether there is an order for a process that waits in its sandbox.

        Args:
            agent: What the controller has said.
            tried: Generation and boundary of the last state that came, or did not come.
        """
        hold = agent.hold
        held = hold is not None and (hold["generation"], hold["at"]) > tried
        others = (agent.become, agent.decision, agent.recover, agent.leave, agent.finished)
        return held or agent.interrupt > self._recovered or any(one is not None for one in others)

    def _taken_over(self, agent: Agent, decision: Message, held: Snapshot | None) -> bool:
        """Carry out a joiner's part of a decision; return whether it is a member now.

        Raises:
            MoveError: It has not the state of the boundary at which the others have switched.
        """
        generation = decision["generation"]
        with agent.changed:
            agent.decision = None
            if agent.hold is not None and agent.hold["generation"] <= generation:
                agent.hold = None
            if decision["command"] == "abort":
                self._owner.wake.clear()
                agent.prepared = agent.prepared if agent.prepared > generation else 0
                return False
        if held is None or held.step != decision["at"]:
            raise MoveError(f"the state of iteration {decision['at']} has not come to this joiner")
        self._switch(agent, decision)
        self._awake(agent, held.step)
        agent.report("switched", generation=generation, took_s=0.0)
        return True

    def _take_state(self, agent: Agent, hold: Message) -> Snapshot | None:
        """Receive the leaver's state, check it, and load it."""
        began, generation = time.perf_counter(), hold["generation"]
        faults.at("state")
        try:
            snapshot = self._receive(self._owner.rank, generation)
            self._state.restore(snapshot)
        except TrainmoverError as error:
            agent.report("failed", generation=generation, reason=str(error))
            return None
        took_s = time.perf_counter() - began
        agent.store.adopt(snapshot)
        agent.report(
            "loaded",
            generation=generation,
            at=snapshot.step,
            took_s=took_s,
            n_bytes=sum(view.nbytes for view in snapshot.views()),
        )
        return snapshot

    def _awake(self, agent: Agent, step: int) -> None:
        """Leave the sandbox: this process is a member from now on."""
        self._owner.replay = None
        self._shadow = False
        self.step = step
        agent.become_member(facts("member", self._owner))

    # -- a recovery --------------------------------------------------------------------------------------------------

    def _recover(self, agent: Agent) -> None:
        """Stop, report which states exist here, and go back together with the other members."""
        began = time.perf_counter()

        def ordered(known: int) -> Callable[[], bool]:
            return lambda: agent.interrupt > known or agent.recover is not None

        while True:
            no_controller = "a peer is lost, and no controller has begun a recovery"
            self._await(agent, ordered(self._recovered), AWAY_S, no_controller)
            generation = max(agent.interrupt, agent.recover["generation"] if agent.recover else 0)
            if agent.recover is None or agent.recover["generation"] < generation:
                self._settle()
                report = agent.store.report()
                agent.report_status("stopped", generation=generation, step=self.step, new=self._new, **report)
                patience_s = max(SPARE_S, agent.gather_s + AWAY_S)
                self._await(agent, ordered(generation), patience_s, "a standby for the rank that is lost")
            if agent.interrupt > generation or agent.recover is None:
                continue
            order, agent.recover = agent.recover, None
            if not self._restored(agent, order):
                continue
            patience_s = order["within_s"] + AWAY_S  # the controller replaces late members before this ends
            self._await(agent, partial(self._gone_on, agent, generation), patience_s, "the others to come back too")
            if agent.interrupt <= generation:
                break
        agent.go_on()
        self._new = False
        self._note("recovered", began)
        self._copy_now = True

    def _gone_on(self, agent: Agent, generation: int) -> bool:
        return agent.go >= generation or agent.interrupt > generation

    def _await(self, agent: Agent, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for an order. End this process if the order is to leave, or if the job has ended."""

        def over() -> bool:
            return agent.leave is not None or agent.finished is not None

        agent.wait(lambda: ready() or over(), timeout_s, what)
        if over():
            self._stop(agent)

    def _restored(self, agent: Agent, order: Message) -> bool:
        """Go back to the ordered iteration. If that fails, report it; the controller then starts again."""
        generation, began = order["generation"], time.perf_counter()
        self._recovered = generation
        try:
            faults.at("restore")
            with agent.changed:
                if agent.interrupt <= generation:
                    self._owner.recovered()
            self._restore(agent, order)
        except TrainmoverError as error:
            peer = error.peer if isinstance(error, LinkLostError) else -1
            agent.report_status("failed", generation=generation, reason=str(error), peer=peer)
            return False
        agent.report_status("recovered", generation=generation, took_s=time.perf_counter() - began)
        return True

    def _restore(self, agent: Agent, order: Message) -> None:
        """Connect to joiners, drain the other connections, and load this member's state of one iteration."""
        owner, generation, step = self._owner, order["generation"], order["step"]
        owner.backend.resume(addresses(order["joiners"]), generation, time.monotonic() + RESTORE_S)
        needs = {int(rank): source for rank, source in order["needs"].items()}
        store = agent.store
        for rank, source in needs.items():
            if source == owner.rank:
                self._give(rank, order["addresses"][str(rank)], generation, store.compose(rank, step))
        source = needs.get(owner.rank)
        snapshot = store.own(step) if source is None or source < 0 else self._receive(source, generation)
        self._state.restore(snapshot)
        store.rollback(step)
        self.step = step
        agent.passed = step - 1

    def _settle(self, timeout_s: float = 10.0) -> None:
        """Wait for collectives under way, which end by themselves."""
        self._owner.wake.set()
        if self._owner.backend.busy(timeout_s):
            raise MoveError("a collective did not end after the recovery had begun")

    def _note(self, what: str, began: float) -> None:
        self.pauses.append({"what": what, "step": self.step, "took_s": time.perf_counter() - began})


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *others: Stateful,
    copy_every: int = 10,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    resume: bool = False,
) -> Job:
    """Make this training movable.

    Args:
        model: One or several modules, already wrapped and sharded.
        optimizer: One or several optimizers.
        others: Further objects with state_dict and load_state_dict: Batches, scheduler, scaler.
        copy_every: Iterations between copies of the state; after a loss at most this many are repeated.
        checkpoint: A folder that all hosts share, for when no member has a copy.
        checkpoint_every: Iterations between checkpoints, a multiple of copy_every.
        resume: Begin at the newest checkpoint that every rank has.

    Returns:
        The job. Without a controller (TRAINMOVER_CONTROLLER is not set) it counts iterations and writes checkpoints.

    Raises:
        UsageError: An argument cannot be used, or the folder has checkpoints of an earlier run and `resume` is not set.
        RefusedError: The controller turned this process down.
    """
    if copy_every < 1 or checkpoint_every % copy_every:
        raise UsageError(
            f"copy_every={copy_every}, checkpoint_every={checkpoint_every}: "
            "copies need at least one iteration between them, checkpoints a multiple of that"
        )
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    owner = context()
    state = TrainingState(models, optimizers, others, owner.backend)
    folder = Path(checkpoint) if checkpoint is not None else None
    owner.code = code_digest()
    controller = os.environ.get("TRAINMOVER_CONTROLLER")
    if not controller and owner.rank < 0:  # another backend's group
        owner.rank = int(os.environ.get("RANK", "0"))
    if not resume and owner.agent is None and max(checkpoints(folder).get(str(owner.rank), ()), default=0):
        raise UsageError(
            f"{folder} has checkpoints of rank {owner.rank} from an earlier run, to which a loss would go back: "
            "give resume=True, or another folder"
        )
    if not controller:
        job = Job(state, owner, None, copy_every, shadow=False, folder=folder, checkpoint_every=checkpoint_every)
        if resume:
            _resume(job, state, folder, owner.rank)
        return job
    agent = owner.agent
    shadow = agent is not None
    if agent is None:
        agent = Agent(controller, facts("member", owner), owner)
        owner.agent = agent
    agent.store = SnapshotStore(
        owner, lambda message: agent.report(message.pop("event"), **message), folder, checkpoint_every
    )
    job = Job(state, owner, agent, copy_every, shadow=shadow)
    owner.on_failure = lambda error: agent.report(
        "lost", peer=getattr(error, "peer", -1), detail=str(error), generation=owner.generation
    )
    if not shadow:
        if resume:
            _resume(job, state, folder, owner.rank)
        agent.start()
    return job


def _resume(job: Job, state: TrainingState, folder: Path | None, rank: int) -> None:
    found = checkpoints(folder)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    common = set.intersection(*(set(found.get(str(one), ())) for one in range(world)))
    if not common and max(found.get(str(rank), ()), default=0):
        raise UsageError(f"resume=True, but of no iteration has each of the {world} ranks a checkpoint in {folder}")
    if common:
        step = max(common)
        set_aside(folder, step, rank)
        state.restore(load_checkpoint(folder, step, rank))
        job.step = step


def facts(kind: str, owner: Context) -> Message:
    """Return what a process reports of itself when it connects to the controller."""
    return {
        "kind": kind,
        "token": owner.token,
        "key": os.environ.get("TRAINMOVER_MEMBER") or uuid.uuid4().hex[:12],
        "host": host_name(),
        "world": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": {"trainmover": _version(), "torch": torch.__version__, "python": platform.python_version()},
        "code": owner.code,
        "argv": sys.argv,
        "cwd": os.getcwd(),  # noqa: PTH109 - as a string for the wire
        "env": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }


def host_name() -> str:
    """Return TRAINMOVER_HOST, with {rank} filled in, or the machine's name."""
    given = os.environ.get("TRAINMOVER_HOST", "")
    return given.replace("{rank}", os.environ.get("RANK", "0")) if given else socket.gethostname()


def code_digest() -> str:
    """Return a digest of the script and of the modules loaded from its folder."""
    script = Path(sys.argv[0]).resolve()
    if faults.enabled("other-code"):
        return "other"
    paths = {script}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).suffix == ".py" and script.parent in Path(file).resolve().parents:
            paths.add(Path(file).resolve())
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and "site-packages" not in path.parts):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _version() -> str:
    return "0.1.0" if not faults.enabled("other-version") else "0.0.0"
