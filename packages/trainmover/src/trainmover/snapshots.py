"""Snapshots in memory: this member's own, to roll back to, and its buddies', for their replacements.

Training waits only while the state is copied aside. A thread computes digests and offers the snapshot to the buddy,
which asks for those tensors only that differ from its own snapshot of the same iteration. A data-parallel replica
therefore receives a few kilobytes; a member with a shard of its own sends all of it. A snapshot is dropped when all
members have reported a newer one.
"""

from __future__ import annotations

import atexit
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainmover import transfer
from trainmover.collectives import bytes_of
from trainmover.context import Context
from trainmover.errors import LinkError, MoveError, TrainmoverError
from trainmover.state import Snapshot, digest, empty
from trainmover.transport import Address, Link, Wake, dial

_COPY_S = 30.0
#: How soon, and how often for one buddy, a copy is offered again that could not be sent.
_TRY_AGAIN_S, _MOST_TRIES = 0.3, 20
Report = Callable[[dict[str, Any]], None]


class SnapshotStore:
    """Takes snapshots, sends them to the buddy, and holds those of other members.

    Args:
        owner: The process's connections.
        report: Sends a message to the controller.
        folder: Where checkpoints go, or None.
        checkpoint_every: A checkpoint is written every so many iterations (a multiple of the copies' rhythm).
    """

    def __init__(self, owner: Context, report: Report, folder: Path | None, checkpoint_every: int) -> None:
        self._owner, self._report, self._folder, self._every = owner, report, folder, checkpoint_every
        self._own: dict[int, Snapshot] = {}
        self._held: dict[int, dict[int, Snapshot]] = {}
        self._free: list[Snapshot] = []
        self._replicas: set[int] = set()
        self._saved: set[int] = set()
        self._work: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._buddy = -1
        self._address: Address = ("", 0)
        self._link: Link | None = None
        self._generation = 0
        self._passed_over = -1
        self._tries = 0
        self._wake = Wake()
        self._stable = -1
        owner.listener.serve("copy", self._serve)
        self._thread = threading.Thread(target=self._run, name="trainmover-copies", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the thread; one that runs torch code when the interpreter ends would abort the process."""
        self._wake.set()
        self._work.put(None)
        self._thread.join(5.0)

    # -- called by the training --------------------------------------------------------------------------------------

    def take(self, snapshot: Snapshot) -> float:
        """Copy the state aside.

        Args:
            snapshot: Views of the live tensors.

        Returns:
            Seconds that it took; 0 if the snapshot was passed over because both buffers are in use.
        """
        began = time.perf_counter()
        with self._changed:
            if snapshot.step in self._own:
                self._work.put(snapshot.step)
                return 0.0
            if len(self._own) >= 2 and not self._drop_older():
                self._passed_over = max(self._passed_over, snapshot.step)
                self._changed.notify_all()
                if self._work.empty():  # it has been offered and not been kept
                    self._work.put(max(self._own))
                return 0.0
            buffer = self._free.pop() if self._free else Snapshot(-1, b"")
        if buffer.specs() != snapshot.specs():
            buffer.tensors = {name: torch.empty_like(one) for name, one in snapshot.tensors.items()}
        for name, one in snapshot.tensors.items():
            buffer.tensors[name].copy_(one)
        buffer.step, buffer.small, buffer.known = snapshot.step, snapshot.small, None
        with self._changed:
            self._own[snapshot.step] = buffer
        self._work.put(snapshot.step)
        return time.perf_counter() - began

    def report(self) -> dict[str, Any]:
        """Return the iterations for which snapshots exist: own, held for others, and on disk."""
        with self._changed:
            held = {str(rank): sorted(snapshots) for rank, snapshots in self._held.items()}
            return {"own": sorted(self._own), "held": held, "disk": checkpoints(self._folder)}

    def own(self, step: int) -> Snapshot:
        """Return this member's snapshot of an iteration, from memory or from its checkpoint.

        Raises:
            MoveError: There is none.
        """
        with self._changed:
            if step in self._own:
                return self._own[step]
        return load_checkpoint(self._folder, step, self._owner.rank)

    def compose(self, rank: int, step: int) -> Snapshot:
        """Return a buddy's complete snapshot of an iteration.

        Raises:
            MoveError: It is not held here.
        """
        with self._changed:
            held = self._held.get(rank, {}).get(step)
            own = self._own.get(step)
        if held is None:
            raise MoveError(f"no copy of rank {rank} at iteration {step} is held here")
        names = [name for name in held.known or () if name]
        tensors = {**(own.tensors if own is not None else {}), **held.tensors}
        lacking = [name for name in names if name not in tensors]
        if lacking:
            raise MoveError(f"of rank {rank}'s copy of iteration {step}, {len(lacking)} tensors are not held here")
        snapshot = Snapshot(step, held.small, {name: tensors[name] for name in names}, held.known)
        snapshot.check()
        return snapshot

    def rollback(self, step: int) -> None:
        """Drop snapshots of later iterations."""
        with self._changed:
            for later in [one for one in self._own if one > step]:
                self._free.append(self._own.pop(later))
            for snapshots in self._held.values():
                for later in [one for one in snapshots if one > step]:
                    del snapshots[later]
            self._stable = min(self._stable, step)

    # -- called by the agent -----------------------------------------------------------------------------------------

    def set_buddy(self, buddy: int, address: Address, generation: int) -> None:
        """Send copies to this member from now on, those at hand included."""
        with self._changed:
            self._generation = generation
            if (buddy, address) != (self._buddy, self._address):
                self._buddy, self._address, self._tries = buddy, address, 0
                self._hang_up()
                for step in sorted(self._own):
                    self._work.put(step)

    def set_stable(self, stable: int) -> None:
        """Drop snapshots older than the common one."""
        with self._changed:
            self._stable = max(self._stable, stable)
            self._drop_older()

    def make_room(self, stable: int) -> None:
        """Keep the common snapshot only, so that the one at a move's boundary has a buffer."""
        with self._changed:
            self._stable = max(self._stable, stable)
            self.discard([one for one in self._own if one != self._stable])

    def adopt(self, snapshot: Snapshot) -> None:
        """Keep the state that this joiner has loaded as its own snapshot."""
        with self._changed:
            self._own = {snapshot.step: snapshot}
            self._changed.notify_all()
        self._work.put(snapshot.step)

    def discard(self, steps: Sequence[int]) -> None:
        """Drop snapshots that can never be common."""
        with self._changed:
            for step in steps:
                self._own.pop(step, None)  # not to be used again at once: it may be on its way
                for snapshots in self._held.values():
                    snapshots.pop(step, None)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _drop_older(self) -> bool:
        older = [step for step in self._own if step < self._stable]
        for step in older:
            self._free.append(self._own.pop(step))
        for snapshots in self._held.values():
            for step in [one for one in snapshots if one < self._stable]:
                del snapshots[step]
        return bool(older)

    def _run(self) -> None:
        while True:
            step = self._work.get()
            if step is None:
                return
            with self._changed:
                snapshot, buddy = self._own.get(step), self._buddy
            if snapshot is None:
                continue
            try:
                self._digest(step, snapshot)
                self._checkpoint(snapshot)
                if buddy >= 0:
                    self._send(snapshot)
                    self._tries = 0
            except (TrainmoverError, OSError):  # the buddy is gone, which others notice too, or not yet what it will be
                self._hang_up()
                self._try_again(step)

    def _try_again(self, step: int) -> None:
        """Offer a snapshot again soon: a joiner may not be ready for it yet."""
        if self._tries < _MOST_TRIES:
            self._tries += 1
            time.sleep(_TRY_AGAIN_S)
            self._work.put(step)

    def _digest(self, step: int, snapshot: Snapshot) -> None:
        if snapshot.known is not None:
            return
        digests = snapshot.digests()
        with self._changed:
            if self._own.get(step) is not snapshot:
                return
            snapshot.known = digests
            self._changed.notify_all()
        models = "".join(value for name, value in digests.items() if name.startswith("model"))
        if self._buddy < 0:
            self._report({"event": "digest", "digest": digest(models.encode())})

    def _send(self, snapshot: Snapshot) -> None:
        deadline = time.monotonic() + _COPY_S
        if self._link is None:
            self._link = dial(self._address, self._owner.hello("copy", "", self._generation, self._buddy), 5.0)
        link, step, digests = self._link, snapshot.step, snapshot.known
        if digests is None:  # thrown away meanwhile
            return
        offer = {"step": step, "n_small": len(snapshot.small), "digests": digests, "specs": snapshot.specs()}
        transfer.send(link, offer, [memoryview(snapshot.small)], self._wake, deadline)
        wanted = transfer.receive(link, lambda _content: [], self._wake, deadline)["wanted"]
        transfer.send(link, {}, [bytes_of(snapshot.tensors[name]) for name in wanted], self._wake, deadline)
        kept = bool(transfer.receive(link, lambda _content: [], self._wake, deadline).get("kept"))
        with self._changed:
            mine = self._own.get(step) is snapshot  # not thrown away meanwhile, nor rolled back
            if mine and not kept and 0 <= self._stable < step:
                del self._own[step]  # the buddy has no such copy; a later one may do
        if mine and kept:
            self._report({"event": "copied", "step": step})

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _serve(self, link: Link) -> None:
        """Hold the snapshots of the member at the other end of this connection."""
        try:
            while True:
                self._hold(link)
        except (LinkError, MoveError, OSError, KeyError, ValueError):
            link.close()

    def _hold(self, link: Link) -> None:
        small = bytearray()

        def place(content: dict[str, Any]) -> list[memoryview]:
            small.extend(bytes(content["n_small"]))
            return [memoryview(small)]

        offer = transfer.receive(link, place, self._wake, time.monotonic() + 1e6)
        step, deadline = offer["step"], time.monotonic() + _COPY_S
        own = self._own_digests(step)
        has_no_base = not own and link.peer in self._replicas  # a replica's copy is small only beside this member's own
        digests, specs = offer["digests"], {} if has_no_base else offer["specs"]
        tensors = {name: empty(spec) for name, spec in specs.items() if own.get(name) != digests[name]}
        transfer.send(link, {"wanted": list(tensors)}, (), self._wake, deadline)
        transfer.receive(link, lambda _: [bytes_of(one) for one in tensors.values()], self._wake, deadline)
        with self._changed:
            depends = len(tensors) < len(specs)
            fine = not has_no_base and step >= self._stable and not (depends and step not in self._own)
            if depends:
                self._replicas.add(link.peer)
            if fine:
                self._held.setdefault(link.peer, {})[step] = Snapshot(step, bytes(small), tensors, digests)
        transfer.send(link, {"kept": fine}, (), self._wake, deadline)

    def _own_digests(self, step: int, patience_s: float = 15.0) -> dict[str, str]:
        """Return the digests of this member's snapshot of the same iteration; wait while it may still be taken."""

        def come() -> bool:
            own = self._own.get(step)
            passed = step < max(self._own, default=step) or step <= self._passed_over
            return own.known is not None if own is not None else passed

        with self._changed:
            self._changed.wait_for(come, patience_s)
            own = self._own.get(step)
            return (own.known if own is not None else None) or {}

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, snapshot: Snapshot) -> None:
        if self._folder is None or self._every <= 0 or snapshot.step % self._every or snapshot.step in self._saved:
            return
        save_checkpoint(self._folder, snapshot, self._owner.rank)
        self._saved.add(snapshot.step)


def save_checkpoint(folder: Path, snapshot: Snapshot, rank: int) -> None:
    """Write one member's snapshot atomically."""
    target = folder / f"step-{snapshot.step:08d}" / f"rank-{rank}.pt"
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    digests = snapshot.known or snapshot.digests()
    torch.save({"step": snapshot.step, "small": snapshot.small, "tensors": snapshot.tensors, "known": digests}, part)
    part.replace(target)


def load_checkpoint(folder: Path | None, step: int, rank: int) -> Snapshot:
    """Read one member's snapshot.

    Raises:
        MoveError: It is not there, or damaged.
    """
    if folder is None:
        raise MoveError(f"no copy of iteration {step} is at hand, and there is no folder of checkpoints")
    path = folder / f"step-{step:08d}" / f"rank-{rank}.pt"
    try:
        content = torch.load(path, weights_only=True)
        snapshot = Snapshot(**content)
        snapshot.check()
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, pickle.UnpicklingError) as error:
        raise MoveError(f"the checkpoint {path} cannot be read: {error}") from error
    return snapshot


def set_aside(folder: Path | None, after: int, rank: int) -> None:
    """Rename one rank's checkpoints of later iterations than `after`; this run writes its own."""
    for path in sorted(folder.glob(f"step-*/rank-{rank}.pt")) if folder is not None else ():
        if int(path.parent.name.removeprefix("step-")) > after:
            path.replace(path.with_suffix(".pt.earlier"))


def checkpoints(folder: Path | None) -> dict[str, list[int]]:
    """Return the iterations that have checkpoints, by rank."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("step-*/rank-*.pt")) if folder is not None else ():
        found.setdefault(path.stem.removeprefix("rank-"), []).append(int(path.parent.name.removeprefix("step-")))
    return found
