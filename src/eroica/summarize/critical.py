"""The critical path of one worker (EROICA, section 3.3 of the notes; section 4.2 of the paper).

Compute comes before memory operations, these before collectives, these before Python: at each moment the highest class
that runs is critical. Where the paper is silent or would count a moment twice, each moment has one owner here.

- Of several of one class at once, the one that started first has the moment.
- A collector run takes the place of what it interrupts: of an open operator on the training thread, else of Python.
- Python sampled inside a wrapping operator (a hook in the backward pass) comes before the wrapper's own time, which in
  turn comes before all other Python. Traced calls take the place of samples.
- A device without work, for which the host is about to launch some, waits for that before any Python (`launching`).
  Where Python was traced, the operators or driver calls that launch have these moments, as without Python.
- Collectives that threads of the host run count only as far as the training thread waits for them (`waits`).
- In recorded traces the host's own events come last (`host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eroica.summarize.activity import Activity
from eroica.summarize.calls import Calls
from eroica.summarize.sampled import PythonCells, ThreadSamples, spread_samples
from eroica.summarize.sweep import Layer, Times, empty_layer, paint, unite


@dataclass(frozen=True)
class CriticalPath:
    """Critical function at each moment, without gaps. I iterations, K segments, F functions.

    Attributes:
        edges_ns: Boundaries of the iterations, wall clock. int64 [I + 1].
        segments: The window; function -1 is idle; cut at every boundary.
        cells: What sampled Python stood for.
    """

    edges_ns: Times
    segments: Layer
    cells: PythonCells

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return int(self.edges_ns[-1] - self.edges_ns[0])


def find_critical_path(
    activity: Activity,
    samples: ThreadSamples | None,
    rate_hz: float,
    edges_ns: Times,
    calls: Calls | None = None,
    host: Sequence[Layer] = (),
    launching: Layer | None = None,
    launched_by: Sequence[Layer] = (),
) -> CriticalPath:
    """Give every moment of the window to one function or to none.

    Args:
        activity: What the trace has.
        samples: Python of the training thread, None if nothing was sampled.
        rate_hz: Samples per second.
        edges_ns: Boundaries of the iterations, wall clock, rising. int64 [I + 1].
        calls: Python that was traced, where nothing was sampled.
        host: What the host's own events say where all else is silent; earlier layers first.
        launching: When the host launches, where Python was sampled beside an accelerator.
        launched_by: The host's own events shortly before it launches, where Python was traced beside an accelerator.
    """
    above = (
        activity.collections_in_operators,
        activity.compute,
        activity.memory,
        activity.collectives,
        activity.collections,
        *(() if launching is None else (launching,)),
    )
    window = (int(edges_ns[0]), int(edges_ns[-1]))
    if samples is None:
        cells = PythonCells(empty_layer(), empty_layer(), ())
    else:
        starts, ends = (np.concatenate([getattr(layer, side) for layer in above]) for side in ("start", "end"))
        cells = spread_samples(samples, unite(starts, ends), activity.wrappers, window, rate_hz)
    hooks, others = (calls.hooks, calls.others) if calls is not None else ((cells.hooks,), cells.others)
    segments = paint([*above, *hooks, activity.wrappers, *launched_by, others, *host], edges_ns)
    return CriticalPath(edges_ns, segments, cells)
