"""Frames, and the words of sentences."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.frames import Focus, find_focus, is_own_frame, split_frame
from eroica.diagnosis.loaders import is_idle_stack
from eroica.diagnosis.words import format_ms, list_numbers, name_workers, short_name
from eroica.model.pattern import FunctionKey

MAIN = "main (project/train.py:20)"


def focus(rows: list[tuple[tuple[str, ...], float, float]]) -> Focus:
    """Focus of rows given as (stack, excess, time)."""
    keys = [FunctionKey(kind="python", name=stack[-1].split(" ")[0], stack=stack) for stack, _, _ in rows]
    excess, time = (np.array([row[at] for row in rows]) for at in (1, 2))
    found = find_focus(keys, range(len(rows)), excess, time)
    assert found is not None
    return found


def test_a_frame_is_taken_apart() -> None:
    frame = split_frame("<lambda> (project/data (new).py:7)")
    assert (frame.name, frame.file, frame.line, frame.place) == (
        "<lambda>",
        "project/data (new).py",
        "7",
        "data (new).py:7",
    )
    assert split_frame("no file at all").name == "no file at all"


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


def test_the_deepest_of_frames_with_the_same_time_is_named() -> None:
    found = focus([((MAIN, "load (project/a.py:1)", "parse (project/b.py:2)"), 20, 20)])
    assert found.name == "parse"


def test_a_frame_around_everything_is_not_named_for_what_a_library_costs() -> None:
    step = "_multi_tensor_adamw (torch/optim/adamw.py:600)"
    found = focus([((MAIN, step), 30, 32), ((MAIN, "forward (project/model.py:5)"), 0, 60)])
    assert (found.name, found.is_own) == ("_multi_tensor_adamw", False)


def test_time_spent_in_the_loop_itself_names_the_loop() -> None:
    found = focus([((MAIN,), 30, 31), ((MAIN, "forward (project/model.py:5)"), 0, 60)])
    assert found.name == "main"
    assert found.functions == (0,)


def test_without_excess_there_is_no_focus() -> None:
    keys = [FunctionKey(kind="python", name="f", stack=(MAIN,))]
    assert find_focus(keys, [0], np.array([-1.0]), np.array([1.0])) is None


def test_a_row_without_a_stack_is_named_by_its_key() -> None:
    key = FunctionKey(kind="other", name="enumerate(DataLoader)#next", phase="input")
    found = find_focus([key], [0], np.array([5.0]), np.array([5.0]))
    assert found is not None
    assert found.label == "enumerate(DataLoader)#next"


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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2], "1 and 2"),
        ([0, 1, 2, 3], "0 to 3"),
        ([1, 4, 5, 6], "1 and 4 to 6"),
        ([2, 5], "2 and 5"),
    ],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], text: str) -> None:
    assert list_numbers(numbers) == text


def test_a_kernels_name_loses_its_template() -> None:
    assert short_name("void at::native::reduce_kernel<128, 4, at::f<int>>(int)") == "at::native::reduce_kernel<...>"
    assert short_name("volta_sgemm_64x64_nt") == "volta_sgemm_64x64_nt"
    assert short_name("<lambda>") == "<lambda>"
    assert len(short_name("x" * 200)) == 60


def test_workers_and_times_read_like_a_sentence() -> None:
    assert name_workers([4], capital=True) == "Worker 4"
    assert name_workers(range(12)) == "12 workers (0, 1, 2, ...)"
    assert [format_ms(us) for us in (41_000, 3210, 35)] == ["41 ms", "3.2 ms", "0.04 ms"]
