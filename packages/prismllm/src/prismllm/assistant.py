"""The assistant: plays all ranks that do not run, and tells those that do how long each call takes.

`VirtualJob` is the state machine: sandbox ranks report own work, launches and waits; virtual ranks move as in a replay.
A wait is answered as soon as the end of its call is known. Time is virtual: it advances with the work of sandbox ranks
and the times of the graph, however slow this machine is. `Assistant` connects it to the processes of sandbox ranks.

Source: PrismLLM (arXiv 2605.15617): hybrid emulation, sandbox ranks and virtual participants on assistant nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from prismllm.costs import Costs
from prismllm.errors import DivergenceError, PrismError
from prismllm.graph import Block, Graph
from prismllm.replay import Floats, Operations, Walker, costs_of_operations, free_queues, own_seconds, samples_of
from prismllm.whatif import Change, Hang, Slow


class Message(NamedTuple):
    """A message of a sandbox rank.

    Attributes:
        what: "launch", "wait" or "step".
        place: Of the call in the iteration.
        own_s: Own work since it told something last, seconds.
        call: Of a launch: operation, signature and site.
    """

    rank: int
    what: str
    place: int
    own_s: float
    call: str = ""


#: A rank, and the seconds that it has to wait in virtual time; inf if it never ends.
Answer = tuple[int, float]


class _Sandbox:
    """The state of one rank that runs."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.now_s = 0.0
        self.asked = -1
        self.launched = 0
        self.later: list[Message] = []
        self.has_stepped = False
        self.stuck_at = -1


class VirtualJob:
    """All ranks of the job in virtual time; `ranks` run for real."""

    def __init__(self, graph: Graph, costs: Costs, ranks: Sequence[int], changes: Sequence[Change] = ()) -> None:
        self.graph, self.changes = graph, list(changes)
        self._cost_s = costs_of_operations(graph, costs, self.changes)
        self._samples = [samples_of(rank_class) for rank_class in graph.job.classes]
        self._queue_free = np.full(graph.queues, -np.inf)
        self._now_W: Floats = np.zeros(graph.job.world)
        self.sandboxes: dict[int, _Sandbox] = {}
        self._virtual: list[Block] = []
        for block in graph.blocks:
            runs = np.isin(block.ranks, list(ranks))
            for at in np.flatnonzero(runs).tolist():
                one = slice(at, at + 1)
                alone = Block(block.rank_class, block.ranks[one], [operations[one] for operations in block.operations])
                self.sandboxes[int(block.ranks[at])] = _Sandbox(alone)
            if not runs.all():
                self._virtual.append(
                    Block(block.rank_class, block.ranks[~runs], [operations[~runs] for operations in block.operations])
                )
        self.iteration = -1
        self.seconds: list[float] = []
        self._end_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self.iteration += 1
        self._operations = Operations(self.graph, self._cost_s, self._queue_free)
        self._walkers = []
        for block in self._virtual:
            own_s = own_seconds(self.graph, block, self._samples[block.rank_class], self.changes, self.iteration, None)
            self._walkers.append(Walker(self.graph, block, own_s, self._now_W[block.ranks]))
        self._all = list(self._walkers)
        for sandbox in self.sandboxes.values():
            sandbox.has_stepped = False

    def tell(self, said: Message) -> list[Answer]:
        """Take a message of a sandbox rank; return the waits that it answers.

        Raises:
            DivergenceError: The rank makes another call than when it was captured.
        """
        sandbox = self.sandboxes[said.rank]
        if sandbox.has_stepped:  # ahead of the others
            sandbox.later.append(said)
        else:
            self._apply(sandbox, said)
        return self._settle()

    def _apply(self, sandbox: _Sandbox, said: Message) -> None:
        slower = [one.by for one in self.changes
                  if isinstance(one, Slow) and one.rank == said.rank and one.since <= self.iteration]  # fmt: skip
        sandbox.now_s += said.own_s * float(np.prod(slower))
        if said.what == "step":
            self._now_W[said.rank] = sandbox.now_s
            sandbox.has_stepped = True
            sandbox.launched = 0
        elif said.what == "launch":
            calls = self.graph.job.classes[sandbox.block.rank_class].step.calls
            expected = calls[said.place] if said.place < len(calls) else None
            if expected is None or said.call.partition(" at ")[0] != f"{expected.op} {expected.signature}":
                was = "nothing" if expected is None else f"{expected.op} {expected.signature} at {expected.site}"
                raise DivergenceError(f"rank {said.rank} makes {said.call} as call {said.place} of an iteration, the "
                                      f"capture has {was}; capture again with this script")  # fmt: skip
            if any(isinstance(one, Hang) and (one.rank, one.op) == (said.rank, said.place)
                   and one.since <= self.iteration for one in self.changes):  # fmt: skip
                sandbox.now_s = float("inf")
            self._operations.launch(sandbox.block.operations[said.place], np.array([sandbox.now_s]))
            sandbox.launched = said.place + 1
        else:
            sandbox.asked = said.place

    def _advance(self) -> None:
        """Advance all virtual ranks as far as they go."""
        has_moved = True
        while has_moved:
            has_moved = False
            for walker in self._walkers:
                has_moved |= walker.advance(self._operations)
            self._walkers = [walker for walker in self._walkers if not walker.is_through]

    def _settle(self) -> list[Answer]:
        answers: list[Answer] = []
        while True:
            self._advance()
            for rank, sandbox in self.sandboxes.items():
                if sandbox.asked < 0:
                    continue
                operations = sandbox.block.operations[sandbox.asked]
                if self._operations.settle(operations):
                    end_s = float(self._operations.done_s[operations[0]])
                    wait_s = max(0.0, end_s - sandbox.now_s) if np.isfinite(sandbox.now_s) else float("inf")
                    if not np.isfinite(wait_s):
                        sandbox.stuck_at = sandbox.asked
                        for never in sandbox.block.operations[sandbox.launched :]:
                            self._operations.launch(never, np.array([np.inf]))
                        self._advance()
                    sandbox.now_s += wait_s
                    sandbox.asked = -1
                    answers.append((rank, wait_s))
            if self._walkers or not all(one.has_stepped for one in self.sandboxes.values()):
                return answers
            self._finish()
            for sandbox in self.sandboxes.values():
                later, sandbox.later = sandbox.later, []
                for at, said in enumerate(later):
                    if sandbox.has_stepped:
                        sandbox.later = later[at:]
                        break
                    self._apply(sandbox, said)

    def _finish(self) -> None:
        for walker in self._all:
            self._now_W[walker.block.ranks] = walker.track.end_s
        self._operations.settle(np.arange(len(self._cost_s)))
        free_queues(self.graph, self._operations.done_s, self._queue_free)
        end_s = float(self._now_W.max())
        self.seconds.append(end_s - self._end_s)
        self._end_s = end_s
        self._begin()


class Assistant:
    """A thread that answers the ranks that run, each over its pipe; used as a context."""

    def __init__(self, stage: VirtualJob, pipes: dict[int, Connection[Any, Any]]) -> None:
        self.stage, self.pipes = stage, pipes
        self.error: PrismError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="assistant", daemon=True)

    def __enter__(self) -> Assistant:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _serve(self) -> None:
        while not self._stop.is_set():
            ready: list[Any] = wait(list(self.pipes.values()), 0.2)
            for said in [Message(*pipe.recv()) for pipe in ready]:
                try:
                    answers = self.stage.tell(said)
                except PrismError as error:
                    self.error = self.error or error
                    answers = [(said.rank, -1.0)]
                for rank, wait_s in answers:
                    self.pipes[rank].send(wait_s)
