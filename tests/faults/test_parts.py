from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from support.faults import FaultPlan, inject
from support.faults.training import tokens
from support.faults.training.parts import GradientScale
from support.faults.training.tokens import TokenIndex, TokenScorer

torch = pytest.importorskip("torch")


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_slow_dataset_gives_the_same_items_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(tokens, "time", clock)
    plan = FaultPlan("slow-loader", worker=0, from_iteration=1, until=2, options={"seconds": 0.25})
    with inject(plan, worker=0, workers=2) as faults:
        dataset = faults.dataset([10, 11, 12])
        assert (len(dataset), dataset[1], clock.now) == (3, 11, 0.0)
        faults.iteration(1, model=None)
        assert (dataset[2], clock.now) == (12, 0.25)
        faults.iteration(2, model=None)
        assert (dataset[0], clock.now) == (10, 0.25)


def test_a_dataset_built_in_after_the_fault_began_is_slow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(tokens, "time", clock)
    with inject(FaultPlan("slow-loader", options={"seconds": 0.25}), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        assert (faults.dataset([10])[0], clock.now) == (10, 0.25)


def test_the_dataset_of_a_healthy_worker_is_left_alone() -> None:
    dataset = [1, 2]
    assert inject(FaultPlan("slow-loader", worker=0), worker=1, workers=2).dataset(dataset) is dataset


def turns(workers: int, every: int, iterations: int) -> list[list[int]]:
    """Who collects in each iteration."""
    collected: list[list[int]] = [[] for _ in range(iterations)]

    class Counting(TokenIndex):
        def refresh(self) -> None:
            collected[self.turns - 1].append(self.number)

    for worker in range(workers):
        index = Counting(0, worker, workers * every)
        for _ in range(iterations):
            index(None, None)
    return collected


def test_collections_wander_over_all_workers_and_never_come_on_two_at_once() -> None:
    collected = turns(workers=4, every=2, iterations=400)
    assert max(map(len, collected)) == 1
    shares = Counter(worker for turn in collected for worker in turn)
    assert set(shares) == {0, 1, 2, 3}
    assert 120 < sum(shares.values()) < 280
    assert max(shares.values()) < 2 * min(shares.values())


def test_a_turn_is_a_full_collection_that_frees_cycles() -> None:
    seen: list[tuple[str, int, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append((phase, info["generation"], info.get("collected", 0)))

    index = TokenIndex(1000, 0, 1)
    gc.collect()
    gc.callbacks.append(note)
    try:
        index.refresh()
    finally:
        gc.callbacks.remove(note)
    full = [collected for phase, generation, collected in seen if phase == "stop" and generation == 2]
    assert len(full) == 1
    assert sum(collected for phase, _, collected in seen if phase == "stop") >= 200


def small_model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def test_python_before_forward_runs_only_while_the_fault_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(TokenScorer, "_score_tokens", lambda self: calls.append(self.tokens))
    model = small_model()
    plan = FaultPlan("slow-python", from_iteration=1, until=3, options={"tokens": 5})
    with inject(plan, worker=0, workers=1) as faults:
        for iteration in range(5):
            faults.iteration(iteration, model)
            model(torch.ones(2, 4))
    assert calls == [5, 5]


def test_the_backward_hook_leaves_the_gradients_as_they_are() -> None:
    def gradients(faulty: bool) -> list[Any]:
        torch.manual_seed(1)
        model = small_model()
        plan = FaultPlan("slow-backward", worker=0 if faulty else 1, options={"values": 100})
        with inject(plan, worker=0, workers=2) as faults:
            faults.iteration(0, model)
            model(torch.ones(2, 4)).sum().backward()
        return [weight.grad for weight in model.parameters()]

    for with_hook, without in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(with_hook, without)


def test_the_backward_hook_visits_as_many_values_as_it_is_told() -> None:
    part = GradientScale(values=8)
    part.scale_grad(None, None, (torch.tensor([1.0, 2.0]),))
    assert part.scale == pytest.approx((4 * (1 + 4)) ** 0.5)
