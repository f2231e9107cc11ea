"""Which function of one run is which of the other."""

from __future__ import annotations

from eroica.compare.matching import match_functions
from eroica.model.pattern import FunctionKey


def python(*stack: str, phase: str = "forward") -> FunctionKey:
    return FunctionKey(kind="python", name=stack[-1].split(" (")[0], stack=stack, phase=phase)  # type: ignore[arg-type]


def kernel(name: str, **more: object) -> FunctionKey:
    return FunctionKey(kind="compute", name=name, **more)  # type: ignore[arg-type]


def matched(before: list[FunctionKey], after: list[FunctionKey]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(pair.before, pair.after) for pair in match_functions(before, after)}


def test_a_function_moved_by_a_commit_above_it_is_the_same() -> None:
    before = [python("main (train.py:20)", "score (tokens.py:30)")]
    after = [python("main (train.py:25)", "score (tokens.py:48)")]
    assert matched(before, after) == {((0,), (0,))}


def test_a_function_under_other_callers_is_found_by_name_and_file() -> None:
    before = [python("main (train.py:1)", "score (tokens.py:30)")]
    after = [python("main (train.py:1)", "helper (train.py:9)", "score (tokens.py:30)")]
    assert matched(before, after) == {((0,), (0,))}


def test_a_kernel_with_other_template_arguments_is_the_same_where_its_plain_name_is_unique() -> None:
    before = [kernel("void at::elementwise<4, at::Add<float> >(int, float*)"), kernel("gemm")]
    after = [kernel("gemm"), kernel("void at::elementwise<8, at::Add<half> >(int, half*)")]
    assert matched(before, after) == {((0,), (1,)), ((1,), (0,))}
    twice = [*after, kernel("void at::elementwise<2>(int)")]
    assert matched(before, twice) == {((1,), (0,)), ((0,), ()), ((), (1,)), ((), (2,))}


def test_a_loaders_next_is_the_same_with_and_without_loader_processes() -> None:
    before = [python("_SingleProcessDataLoaderIter.__next__", phase="input")]
    after = [python("_MultiProcessingDataLoaderIter.__next__", phase="input")]
    assert matched(before, after) == {((0,), (0,))}


def test_every_function_is_in_exactly_one_pair() -> None:
    keys = [python(f"f{i % 3} (a.py:{i})") for i in range(12)] + [kernel(f"k<{i}>") for i in range(5)]
    pairs = match_functions(keys[:9] + keys[12:14], keys[3:])
    assert sorted(index for pair in pairs for index in pair.before) == list(range(11))
    assert sorted(index for pair in pairs for index in pair.after) == list(range(14))
