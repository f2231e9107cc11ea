"""Eroica in the workers of Ray Train, where the prefix does not reach: a cluster whose raylets were started elsewhere.

    TorchTrainer(watched(train_loop), ...)
    ray.train.report({"loss": loss, **metrics()})

Under `eroica run -- python train.py` with a local Ray, nothing of this is needed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from eroica.integrations.news import Companion, metrics

__all__ = ["metrics", "watched"]


def watched(train_loop: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`train_loop` with watching begun first, in each worker.

    Args:
        train_loop: What `TorchTrainer` calls in each worker, with its configuration or without.
        **settings: Any of `eroica settings`; they reach the workers along with the function.

    Returns:
        A function that takes what `train_loop` takes: Ray counts the parameters.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """
    companion = Companion(settings)

    @functools.wraps(train_loop)
    def loop(*given: Any, **named: Any) -> Any:
        companion.begin(speaks=False)
        return train_loop(*given, **named)

    loop.__signature__ = inspect.signature(train_loop)  # type: ignore[attr-defined]
    return loop
