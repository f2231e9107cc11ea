"""Frames, and the words of sentences."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.frames import Focus, find_focus, is_own_frame
from eroica.diagnosis.loaders import is_idle_stack
from eroica.model.pattern import FunctionKey

MAIN = "main (project/train.py:20)"


def focus(rows: list[tuple[tuple[str, ...], float, float]]) -> Focus:
    """Focus of rows given as (stack, excess, time)."""
    keys = [FunctionKey(kind="python", name=stack[-1].split(" ")[0], stack=stack) for stack, _, _ in rows]
    excess, time = (np.array([row[at] for row in rows]) for at in (1, 2))
    found = find_focus(keys, range(len(rows)), excess, time)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        ("f (project/train.py:1)", True),
        ("f (code/train.py:1)", True),
        ("f (datasets/images.py:1)", True),
        ("f (ipykernel/cell.py:1)", True),
        ("f (torch/nn/modules/module.py:1)", False),
        ("wait (threading.py:1)", False),
        ("get (multiprocessing/queues.py:1)", False),
        ("_find (<frozen importlib>:1)", False),
        ("__next__ (eroica/worker/hooks.py:1)", False),
        ("built-in", False),
        ("load (rich/dataset.py:1)", True),
        ("train (redis/train.py:1)", True),
        ("_monitor_target (ray/train/v2/_internal/execution/worker_group/thread_runner.py:67)", False),
        ("train (ray/train.py:1)", True),
        ("training_step (trl/trainer/sft_trainer.py:1691)", False),
        ("fetch (google/cloud/storage/blob.py:1)", False),
        ("crawl (google/pages.py:1)", True),
        ("run (ignite/engine/engine.py:1)", False),
        ("fit (ignite/trainer.py:1)", True),
        ("poll (kafka/consumer/group.py:1)", False),
        ("main (kafka/stream.py:1)", True),
    ],
)
def test_the_users_own_code_is_told_from_libraries(entry: str, own: bool) -> None:
    assert is_own_frame(entry) is own


def test_the_users_frame_is_named_rather_than_the_library_below_it() -> None:
    item = "__getitem__ (project/dataset.py:41)"
    found = focus([((MAIN, item, "open (PIL/Image.py:3)"), 30, 30), ((MAIN, item, "copy (numpy/core.py:3)"), 10, 10)])
    assert found.label == "__getitem__ (dataset.py:41)"
    assert found.share == 1
    assert len(found.functions) == 2


def test_many_small_stacks_below_one_frame_add_up() -> None:
    rows = [((MAIN, "augment (project/data.py:9)", f"step{n} (torch/x.py:{n})"), 1.0, 1.0) for n in range(40)]
    rows.append(((MAIN, "forward (project/model.py:5)"), 2.0, 50.0))
    assert focus(rows).name == "augment"


def test_a_frame_around_everything_is_not_named_for_what_a_library_costs() -> None:
    step = "_multi_tensor_adamw (torch/optim/adamw.py:600)"
    found = focus([((MAIN, step), 30, 32), ((MAIN, "forward (project/model.py:5)"), 0, 60)])
    assert (found.name, found.is_own) == ("_multi_tensor_adamw", False)


LOOP = ("run (multiprocessing/process.py:9)", "_worker_loop (torch/utils/data/_utils/worker.py:240)")


@pytest.mark.parametrize(
    ("rest", "idle"),
    [
        (("get (multiprocessing/queues.py:100)", "poll (multiprocessing/connection.py:250)"), True),
        (("put (multiprocessing/queues.py:80)",), True),
        ((), True),
        (("fetch (torch/utils/data/_utils/fetch.py:40)", "__getitem__ (project/dataset.py:41)"), False),
        (("fetch (torch/utils/data/_utils/fetch.py:40)", "get (queue.py:1)"), False),
    ],
)
def test_a_loader_child_is_idle_only_while_it_waits_for_orders(rest: tuple[str, ...], idle: bool) -> None:
    assert is_idle_stack((*LOOP, *rest)) is idle


def test_the_entry_of_a_focus_is_its_own_frame_and_not_an_outer_one_of_the_same_name() -> None:
    """Before Python 3.11 every module's method is just "forward"."""
    outer, inner = "forward (project/model.py:10)", "forward (project/attention.py:43)"
    keys = [FunctionKey(kind="python", name="forward", stack=stack) for stack in ((outer, inner), (outer,))]
    focus = find_focus(keys, [0, 1], np.asarray([50.0, 0.0]), np.asarray([50.0, 30.0]))
    assert focus is not None and (focus.label, focus.entry) == ("forward (attention.py:43)", inner)
    assert msgspec.structs.replace(focus, stack=()).entry == ""
