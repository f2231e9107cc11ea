"""What a worker tells of torch and its loader."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
import weakref
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from eroica.model.window import joined_setup
from eroica.worker.attach import _hear_of_batches
from eroica.worker.setup import Workload, torch_setup


def test_torchs_switches_and_threads_are_told_as_short_texts() -> None:
    torch = pytest.importorskip("torch")
    facts = torch_setup()
    assert facts["torch_threads"] == str(torch.get_num_threads())
    assert facts["torch"] == torch.__version__
    assert facts["anomaly_mode"] == "off"
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert torch_setup()["anomaly_mode"] == "on"
    assert facts["python"].startswith(f"{sys.version_info[0]}.")
    assert all(isinstance(value, str) and len(value) <= 80 for value in facts.values())


def test_a_variable_that_the_script_sets_itself_is_told_and_a_secret_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("HF_TOKEN", "geheim")
    facts = torch_setup()
    assert facts["env:CUDA_LAUNCH_BLOCKING"] == "1" and "geheim" not in "".join(facts.values())
    begun_with = {"env:CUDA_LAUNCH_BLOCKING": "0", "env:NCCL_DEBUG": "INFO", "affinity": "0-3"}
    joined = joined_setup(facts, begun_with)
    assert (joined["env:CUDA_LAUNCH_BLOCKING"], joined["affinity"]) == ("1", "0-3") and "env:NCCL_DEBUG" not in joined
    assert joined_setup({}, begun_with) == begun_with


def test_a_torch_that_tells_nothing_and_none_at_all_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HF_TOKEN": "geheim"})
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="0"))
    assert torch_setup() == {"python": ".".join(map(str, sys.version_info[:3])), "torch": "0"}
    monkeypatch.delitem(sys.modules, "torch")
    assert set(torch_setup()) == {"python"}


class Outdated(SimpleNamespace):
    """Names whose reading warns, as the old ones for precision do since torch 2.9."""

    old = frozenset({"allow_tf32"})

    def __getattribute__(self, name: str) -> Any:
        if name in Outdated.old:
            warnings.warn("Please use the new API settings to control TF32 behavior", UserWarning, stacklevel=2)
        return super().__getattribute__(name)


def fake_torch(version: str) -> SimpleNamespace:
    def precision() -> str:
        if not version.startswith("2.8"):
            warnings.warn("Please use the new API settings to control TF32 behavior", UserWarning, stacklevel=2)
        return "highest"

    old = version.startswith("2.8")
    switches = Outdated if not old else SimpleNamespace
    new = {} if old else {"fp32_precision": "tf32"}
    backends = SimpleNamespace(
        cuda=SimpleNamespace(matmul=switches(allow_tf32=True, **new)),
        cudnn=switches(allow_tf32=True, benchmark=False, conv=SimpleNamespace(**new)),
        mkldnn=SimpleNamespace(enabled=True, matmul=SimpleNamespace(**new)),
    )
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda="12.8"),
        backends=backends,
        get_float32_matmul_precision=precision,
        get_num_threads=lambda: 4,
    )


@pytest.mark.parametrize("version", ["2.8.0+cu128", "2.9.0+cu128", "2.13.1", "3.0.0a0+git1", "unknown"])
@pytest.mark.parametrize("action", ["error", "always"])
def test_no_version_of_torch_is_asked_for_what_it_warns_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], version: str, action: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(version))
    with warnings.catch_warnings(record=action == "always") as seen:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        facts = torch_setup()
    assert not seen and capfd.readouterr().err == ""
    assert facts["torch_threads"] == "4" and facts["mkldnn"] == "on"
    old, new = {"matmul_precision", "tf32_matmul", "tf32_cudnn"}, {"fp32_matmul", "fp32_cudnn", "fp32_mkldnn"}
    known = {"2.8.0+cu128": old, "unknown": set()}.get(version, new)
    assert (old | new) & set(facts) == known


def test_a_getter_that_warns_where_warnings_are_errors_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch("2.9.0")
    torch.get_num_threads = lambda: warnings.warn("odd", UserWarning, stacklevel=1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        facts = torch_setup()
    assert "torch_threads" not in facts and facts["fp32_matmul"] == "tf32"


def test_a_time_limit_that_raises_while_torch_is_asked_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any) -> None:
        raise RuntimeError("the time is up")

    torch = fake_torch("2.9.0")
    torch.get_num_threads = lambda: signal.raise_signal(signal.SIGUSR2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = signal.signal(signal.SIGUSR2, late)
    try:
        with pytest.raises(RuntimeError, match="the time is up"):
            torch_setup()
    finally:
        signal.signal(signal.SIGUSR2, before)


class Sentences(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": torch.zeros(50, dtype=torch.long), "label": (torch.tensor(index % 2), "text")}


class Refuses(torch.Tensor):
    """A tensor whose class has its say in everything that is asked of it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("the user's code was called")


@pytest.mark.parametrize(
    "collate", [None, lambda items: UserDict(tokens=torch.zeros(len(items), 50).as_subclass(Refuses))]
)
def test_batches_are_measured_where_the_loader_hands_them_out(collate: Any) -> None:
    workload, kept = Workload(), []
    loader = DataLoader(Sentences(), batch_size=8, collate_fn=collate)
    undo = _hear_of_batches(type(iter(loader)), SimpleNamespace(hooks=SimpleNamespace(loaded=workload.add_batch)))
    try:
        for batch in loader:
            kept.append(weakref.ref(batch["tokens"]))
    finally:
        undo()
    counts = workload.counts(iterations=2)
    assert (counts["batches"], counts["samples"], counts["elements"]) == (1.5, 8, 50)
    del batch
    gc.collect()
    assert not any(reference() is not None for reference in kept), "a batch is held"


def test_only_parameters_with_a_gradient_count() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 2))
    layers[0].requires_grad_(False)
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)
    layers(torch.ones(3, 10)).sum().backward()
    workload = Workload()
    workload.count_gradients([optimizer, None, SimpleNamespace()])
    counts = workload.counts(iterations=1)
    assert (counts["parameters"], counts["gradients"], counts["batches"]) == (22, 2, 0)
