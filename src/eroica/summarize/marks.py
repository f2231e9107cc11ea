"""What PyTorch's own notes in a trace look like, and which thread they belong to."""

from __future__ import annotations

import re

import numpy as np

from eroica.trace.table import Category, EventTable

LOADER_PREFIX = "enumerate(DataLoader)#"
STEP_PREFIX = "Optimizer.step#"
ENGINE_PREFIX = "autograd::engine::"
_BACKWARD = re.compile(r"^[A-Za-z]\w*Backward\d*$")
_LEAST_SHARE = 0.2


def is_backward_name(name: str) -> bool:
    """Whether an operator belongs to the backward pass by its name ("AddmmBackward0"; in 2021 without the engine's)."""
    return name.startswith(ENGINE_PREFIX) or _BACKWARD.match(name) is not None


def find_training_thread(events: EventTable) -> int:
    """The thread with most operators, or with most launches where there are none.

    The main thread (that has the number of its process) is preferred, then threads that run no backward pass only.
    """
    for categories in ((Category.OPERATOR,), (Category.PYTHON, Category.ANNOTATION), (Category.RUNTIME,)):
        chosen = np.isin(events.category, [int(one) for one in categories])
        threads, counts = np.unique(events.thread[chosen], return_counts=True)
        if len(threads):
            break
    else:
        return -1
    enough = counts >= _LEAST_SHARE * counts.max()
    main = threads[enough & (threads == events.header.process_id)]
    if len(main):
        return int(main[0])
    engine = events.names_where([is_backward_name(name) for name in events.strings]) & chosen
    backward = np.isin(threads, np.unique(events.thread[engine]))
    order = np.lexsort((-counts, backward & enough, ~enough))
    return int(threads[order[0]])
