import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from synthetic_window import TRAINING, Events

from eroica.summarize.activity import find_outline, gather_activity
from eroica.summarize.collectives import find_executions
from eroica.summarize.rows import Tally
from eroica.summarize.sampled import ENGINE, HOOK, PLAIN, ThreadSamples
from eroica.summarize.staging import find_critical_path
from eroica.summarize.sweep import Functions, empty_layer, join_durations
from eroica.trace.table import Category

WINDOW = (10, 70)
AUTOGRAD = 150
KINDS = (PLAIN, ENGINE, HOOK)
NAMES = ("aten::mm", "aten::add", "MulBackward0", "c10d::allreduce_", "autograd::engine::evaluate_function: X")


def random_window(seed, device):
    """Everything that can happen at once, in 80 nanoseconds; some of it outside the window."""
    pick = random.Random(seed)
    events = Events()

    def span():
        start = pick.randrange(0, 78)
        return start, pick.randrange(start + 1, min(start + 30, 80) + 1)

    def nest(thread, low, high, depth):
        while low < high and depth < 4 and pick.random() < 0.75:
            start = pick.randrange(low, high)
            end = pick.randrange(start + 1, high + 1)
            events.add(pick.choice(NAMES), start, end, thread=thread)
            nest(thread, start, end, depth + 1)
            low = end

    events.note("enumerate(DataLoader)#everything is input here", 0, 80)
    nest(TRAINING, 0, 80, 0)
    if pick.random() < 0.5:
        events.add("autograd::engine::evaluate_function: X", 20, 60, thread=AUTOGRAD)
        nest(AUTOGRAD, 20, 60, 1)
    for _ in range(pick.randrange(4)):
        events.add("gloo:all_reduce", *span(), category=Category.ANNOTATION, thread=pick.choice((201, 202)))
    if device:
        events.add("gemm", *span(), category=Category.KERNEL, thread=7)
        for name, category in [
            ("relu", Category.KERNEL),
            ("Memcpy", Category.MEMORY),
            ("cudaMalloc", Category.RUNTIME),
        ]:
            for _ in range(pick.randrange(3)):
                events.add(name, *span(), category=category, thread=pick.choice((7, 8)))
        for _ in range(pick.randrange(3)):
            events.add("ncclDevKernel_AllReduce(x)", *span(), category=Category.KERNEL, thread=9)
    collections = sorted(span() for _ in range(pick.randrange(3)))
    times = sorted({pick.randrange(0, 80) for _ in range(pick.randrange(9))})
    samples = [(time, pick.choice(KINDS)) for time in times]
    edges = [WINDOW[0], *sorted({pick.randrange(11, 70) for _ in range(2)}), WINDOW[1]]
    return events, collections, samples, edges


class SlowTwin:
    """The rules, moment by moment, over lists."""

    def __init__(self, events, collections, samples, device):
        self.rows = sorted(events.rows, key=lambda row: (row[1], -row[2]))
        self.collections = collections
        self.device = device
        inner = [one for one in samples if WINDOW[0] <= one[0] < WINDOW[1]]
        free = [one for one in inner if self.above(one[0]) is None]
        plain = [one for one in free if self.wrapper(one[0]) is None]
        self.plain = plain or inner
        self.caught = {}
        for one in free:
            if self.wrapper(one[0]) is not None:
                self.caught.setdefault(self.wrapper(one[0]), []).append(one)

    def first(self, moment, wanted):
        return next((row[0] for row in self.rows if row[1] <= moment < row[2] and wanted(row)), None)

    def leaf(self, moment, thread):
        around = [
            row[0]
            for row in self.rows
            if row[3] == Category.OPERATOR and row[4] == thread and row[1] <= moment < row[2]
        ]
        return around[-1] if around and not around[-1].startswith("c10d::") else None

    def leaves(self, moment, plain):
        for thread in (TRAINING, *self.autograd_threads()):
            name = self.leaf(moment, thread)
            if name is not None and name.startswith("aten::") == plain:
                return ("compute", name, thread != TRAINING)
        return None

    def autograd_threads(self):
        return sorted({row[4] for row in self.rows if row[0].startswith("autograd::engine")} - {TRAINING})

    def above(self, moment):
        """Owner of a higher class than Python, None if there is none."""
        collecting = any(low <= moment < high for low, high in self.collections)
        if self.device:
            name = self.first(moment, lambda row: row[3] == Category.KERNEL and not row[0].startswith("nccl"))
            if name:
                return ("compute", name, False)
            name = self.first(moment, lambda row: row[0] in ("Memcpy", "cudaMalloc"))
            if name:
                return ("memory", name)
        else:
            if collecting and self.leaf(moment, TRAINING) is not None:
                return ("gc", "garbage collection")
            found = self.leaves(moment, plain=True)
            if found:
                return found
        name = self.first(moment, lambda row: row[0].startswith(("gloo:", "nccl")))
        if name:
            return ("collective", name.split("(")[0])
        return ("gc", "garbage collection") if collecting else None

    def wrapper(self, moment):
        return None if self.device else self.leaves(moment, plain=False)

    def owner(self, moment):
        above = self.above(moment)
        if above is not None:
            return above
        wrapper = self.wrapper(moment)
        if wrapper is None:
            near = nearest(self.plain, moment)
            return ("python", near[1]) if near is not None else None
        caught = self.caught.get(wrapper, [])
        hooks = [one for one in caught if one[1] == HOOK]
        near = nearest(hooks if 2 * len(hooks) > len(caught) else caught, moment)
        return ("python", HOOK) if near is not None and near[1] == HOOK else wrapper


def nearest(samples, moment):
    near = None
    for one in samples:
        if near is None or moment >= near[0] + (one[0] - near[0]) // 2:
            near = one
    return near


def fast(events, collections, samples, edges):
    table = events.table()
    functions = Functions()
    executions = find_executions(table, [], (), WINDOW)
    runs = np.array(collections, dtype=np.int64).reshape(-1, 2)
    activity = gather_activity(
        table, executions, (runs[:, 0], runs[:, 1]), find_outline(table, TRAINING), WINDOW, functions
    )
    first = len(functions)
    time = np.array([one[0] for one in samples], dtype=np.int64)
    kind = np.array([one[1] for one in samples], dtype=np.int8)
    segments, _ = find_critical_path(
        activity, ThreadSamples(time, (first + kind).astype(np.int32), kind), 1e9, np.array(edges, dtype=np.int64)
    )
    keys = [
        (key.kind, key.name, key.thread == "autograd") if key.kind == "compute" else (key.kind, key.name)
        for key in functions.keys
    ]
    keys += [("python", one) for one in KINDS]
    return keys, segments


@given(st.integers(0, 10**9), st.booleans())
def test_every_moment_belongs_to_whom_the_slow_twin_gives_it(seed, device):
    events, collections, samples, edges = random_window(seed, device)
    keys, segments = fast(events, collections, samples, edges)
    twin = SlowTwin(events, collections, samples, device)
    owners = {}
    for start, end, function in zip(segments.start, segments.end, segments.function, strict=True):
        owners |= dict.fromkeys(range(start, end), keys[function] if function >= 0 else None)
    assert owners == {moment: twin.owner(moment) for moment in range(*WINDOW)}


@given(st.integers(0, 10**9), st.booleans())
def test_critical_time_and_idle_time_are_the_window_exactly(seed, device):
    events, collections, samples, edges = random_window(seed, device)
    keys, segments = fast(events, collections, samples, edges)
    nothing = join_durations(())
    tally = Tally(np.array(edges), segments, nothing, empty_layer(), 0)
    per_iteration = tally.per_iteration_ns(np.arange(len(keys)), len(keys))
    assert int(per_iteration.sum()) + tally.idle_ns == WINDOW[1] - WINDOW[0]
    assert tally.critical_ns(len(keys)).tolist() == per_iteration.sum(axis=1).tolist()
    assert np.all(per_iteration.sum(axis=0) <= np.diff(edges))
