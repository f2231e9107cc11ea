"""What marks iterations where no optimizer steps: which source is chosen, how it counts, how it is heard."""

from __future__ import annotations

import copy
import pickle
import traceback
import types

import pytest

from eroica.wire.beat import ANNOUNCED, BACKWARD, BATCHES, EXCHANGES, NO_SOURCE, OPTIMIZER
from eroica.worker.attach import hear_backward, hear_exchanges
from eroica.worker.rhythm import Rhythm, Sources

SECOND = 1_000_000_000
PERIOD = {EXCHANGES: ["sizes", "gather", "broadcast"], BACKWARD: [None], BATCHES: [None]}


def play(sources: Sources, kinds: list[int], iterations: int, start_s: float = 1.0, pause_s: float = 0.1) -> float:
    """Let iterations pass in which events of these kinds happen in turn; return when the last one ended."""
    now_ns = int(start_s * SECOND)
    for _ in range(iterations):
        for source in kinds:
            for kind in PERIOD[source]:
                now_ns += int(pause_s * SECOND)
                sources.lesser[source].happened(kind, now_ns, 1)
                sources.choose(now_ns)
    return now_ns / SECOND


@pytest.mark.parametrize("source", [EXCHANGES, BACKWARD, BATCHES])
def test_a_source_is_chosen_once_it_repeats_and_the_patience_is_over_and_counts_from_its_first_event(source) -> None:
    sources = Sources(Rhythm())
    play(sources, [source], 12, pause_s=0.01)
    assert sources.shown == NO_SOURCE
    play(sources, [source], 60, start_s=12.0)
    assert (sources.shown, sources.rhythm.iteration, sources.relearned) == (source, 72, 0)


def test_an_optimizer_takes_the_place_of_another_source_at_its_first_step_and_is_learned_anew() -> None:
    sources = Sources(Rhythm())
    end_s = play(sources, [EXCHANGES], 60)
    steps = sources._steps
    steps.stepped(0, int(end_s * SECOND))
    assert sources.stepped() and not sources.stepped()
    assert (sources.shown, sources.relearned, sources.rhythm.learning) == (OPTIMIZER, 1, True)
    play(sources, [EXCHANGES], 60, start_s=end_s)
    assert sources.shown == OPTIMIZER  # never back to a worse one


def test_the_collector_can_order_what_all_workers_have_and_an_announcement_ends_that() -> None:
    sources = Sources(Rhythm())
    for at in range(20):
        sources._steps.stepped(0, at * SECOND)
        sources.stepped()
    assert not sources.order(EXCHANGES)  # never heard
    play(sources, [EXCHANGES], 40)
    assert sources.order(EXCHANGES) and not sources.order(EXCHANGES)
    assert (sources.shown, sources.rhythm.iteration, sources.relearned) == (EXCHANGES, 40, 1)
    sources._steps.stepped(0, 60 * SECOND)
    assert not sources.stepped()
    sources._steps.announced(61 * SECOND)
    assert sources.stepped() and sources.shown == ANNOUNCED


def test_events_of_other_threads_do_not_count_and_events_without_a_pattern_are_forgotten() -> None:
    one = Sources(Rhythm()).lesser[EXCHANGES]
    one.happened(0, 1, thread=1)
    assert one.happened(0, 2, thread=2) is None
    for at in range(2000):
        one.happened(at % 97, at, 1)
    assert one.rhythm.lost and not one.rhythm._stretch


# ---------------------------------------------------------------------- how they are heard


def distributed() -> types.SimpleNamespace:
    """Functions that ask whether this rank is in a group, as torch's do."""
    module = types.ModuleType("distributed")
    exec(
        "def _rank_not_in_group(group):\n    return group == 0\n"
        "def all_reduce(tensor, group=None):\n    return not _rank_not_in_group(group) and fail(tensor)\n"
        "def isend(tensor, dst=None, group=None, group_dst=None):\n    return _rank_not_in_group(group)\n"
        "def get_rank(group=None):\n    return _rank_not_in_group(group)\n"
        "def fail(tensor):\n    return tensor + 1\n",
        module.__dict__,
    )
    return module


def test_collectives_are_told_apart_by_operation_group_and_peer_and_questions_are_none() -> None:
    module, heard = distributed(), []
    undo = hear_exchanges(module, heard.append)
    groups = object(), object()
    assert module.all_reduce(1) == 2
    module.get_rank()
    for group in groups:
        module.all_reduce(1, group)
    module.isend(1, 3)
    module.isend(1, group_dst=3)
    module.isend(1, 4)
    assert len(heard) == 6 and len(set(heard)) == 5
    undo()
    module.all_reduce(1)
    assert len(heard) == 6


def test_nothing_of_ours_is_in_the_traceback_of_a_collective_that_fails() -> None:
    module = distributed()
    hear_exchanges(module, lambda _: None)
    with pytest.raises(TypeError) as failure:
        module.all_reduce("a")
    assert "attach.py" not in "".join(traceback.format_tb(failure.value.__traceback__))
    assert hear_exchanges(types.ModuleType("another torch"), lambda _: None)() is None


def test_backward_passes_are_heard_and_those_inside_of_another_one_are_not() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    module, heard = torch.autograd.variable, []
    before = module.Variable._execution_engine
    undo = hear_backward(module, heard.append)
    net = torch.nn.Linear(4, 4)
    try:
        for _ in range(3):
            checkpoint(net, torch.ones(2, 4, requires_grad=True), use_reentrant=True).sum().backward()
        again = pickle.loads(pickle.dumps(net))
        copy.deepcopy(net)
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        compiled(torch.ones(2, 4)).sum().backward()
        loss = again(torch.ones(2, 4)).sum()
        loss.backward()
        with pytest.raises(RuntimeError) as failure:
            loss.backward()
        assert "attach.py" not in "".join(traceback.format_tb(failure.value.__traceback__))
    finally:
        undo()
    assert heard == [None] * 6
    assert module.Variable._execution_engine is before
