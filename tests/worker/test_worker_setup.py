"""What a worker tells of torch and its loader."""

from __future__ import annotations

import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from eroica.model.setup import joined_setup
from eroica.worker.setup import torch_setup


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
