"""Small windows made by hand: events, stacks, captures. Times in nanoseconds on one clock unless told otherwise."""

import math

import numpy as np

from eroica.model.pattern import WorkerPattern
from eroica.model.window import Capture, ClockPair, GarbageCollection
from eroica.model.worker import ProcessGroup, Worker
from eroica.trace.stacks import SampledThread, StackTimeline
from eroica.trace.table import Category, EventTable

PID = 100
TRAINING = 100
GLOO = 201
SCRIPT = "<module> (project/train.py:1)"
STEP = "step (project/train.py:10)"
LOADER = (
    "__next__ (torch/utils/data/dataloader.py:700)",
    "_try_get_data (torch/utils/data/dataloader.py:1200)",
)
BACKWARD = (
    "Tensor.backward (torch/_tensor.py:566)",
    "backward (torch/autograd/__init__.py:255)",
    "_engine_run_backward (torch/autograd/graph.py:966)",
)
HOOK = "scale (project/train.py:30)"


class Events:
    """Collects events and makes the table `read_trace` would make."""

    def __init__(self):
        self.rows = []
        self.collectives = {}

    def add(self, name, start, end, category=Category.OPERATOR, thread=TRAINING, arguments=None):
        self.rows.append((name, start, end, category, thread, arguments))
        return self

    def note(self, name, start, end, thread=TRAINING):
        return self.add(name, start, end, Category.ANNOTATION, thread)

    def table(self):
        rows = sorted(self.rows, key=lambda row: (row[1], -row[2]))
        strings = list(dict.fromkeys(row[0] for row in rows))
        return EventTable(
            strings=tuple(strings),
            name=np.array([strings.index(row[0]) for row in rows], dtype=np.int32),
            category=np.array([int(row[3]) for row in rows], dtype=np.int8),
            thread=np.array([row[4] for row in rows], dtype=np.int64),
            start_ns=np.array([row[1] for row in rows], dtype=np.int64),
            end_ns=np.array([row[2] for row in rows], dtype=np.int64),
            collectives={number: row[5] for number, row in enumerate(rows) if row[5] is not None},
        )


def timeline(threads, rate_hz=100.0):
    """Stacks from {(pid, tid): [(start, end, stack), ...]}."""
    stacks, rows, names = {}, [], []
    for number, (thread, stretches) in enumerate(threads.items()):
        names.append(SampledThread(*thread))
        rows += [(number, stacks.setdefault(tuple(stack), len(stacks)), start, end) for start, end, stack in stretches]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return StackTimeline(
        threads=tuple(names),
        stacks=tuple(stacks),
        thread=table[:, 0].astype(np.int32),
        stack=table[:, 1].astype(np.int32),
        start_ns=table[:, 2],
        end_ns=table[:, 3],
        rate_hz=rate_hz,
    )


def capture(boundaries, clocks=((0, 0),), collections=(), groups=("0",), **changed):
    """A capture whose clocks are the same by default (wall, monotonic)."""
    facts = {
        "worker": Worker(global_rank=0, world_size=2, host="node-1", pid=PID),
        "window_id": 1,
        "first_iteration": 5,
        "last_iteration": 5 + len(boundaries) - 1,
        "boundaries_ns": tuple(boundaries),
        "clocks": tuple(ClockPair(realtime_ns=wall, monotonic_ns=monotonic) for wall, monotonic in clocks),
        "training_thread_id": TRAINING,
        "training_thread_ident": 140_000,
        "process_groups": tuple(ProcessGroup(name=name, ranks=(0, 1), backend="gloo") for name in groups),
        "garbage_collections": tuple(
            GarbageCollection(start_ns=start, end_ns=end, generation=2, thread_id=TRAINING)
            for start, end in collections
        ),
    }
    return Capture(**(facts | changed))


def row_named(pattern, name, **key):
    """The only row with this name (and these parts of the key)."""
    found = [
        row
        for row in pattern.functions
        if row.key.name == name and all(getattr(row.key, part) == value for part, value in key.items())
    ]
    assert len(found) == 1, [row.key for row in pattern.functions]
    return found[0]


def is_conserved(pattern: WorkerPattern) -> bool:
    """Critical, dropped and idle seconds add up to the window."""
    critical = math.fsum(row.critical_s for row in pattern.functions)
    return abs(critical + pattern.dropped_critical_s + pattern.idle_s - pattern.duration_s) < 1e-9
