"""Settings that make workers slow: different from their peers' or from before, and able to explain the loss.

A setting is a culprit only in the direction that is slower, for causes that it can bring about, and if it explains as
much time as is lost. Other differences are told beside a cause and accuse nobody.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, MOST
from eroica.diagnosis.operators import HELD, OF_LOSS
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW, name_affected

Setup = Mapping[str, str]
#: A worker's settings, and those that they are compared with.
Pair = tuple[Setup, Sequence[Setup]]
_COMPUTE = frozenset({"compute-slow", "cpu-contention", "unknown", "host-bound"})
_LOADING = frozenset({"slow-data-loading"})
_NETWORK = frozenset({"slow-collective-everywhere", "slow-link"})
_PYTHON = frozenset({"python-on-critical-path", "garbage-collection"})
_MEMORY = frozenset({"memory-operation-storm"})
_MORE_WORK = frozenset({"load-imbalance"})
#: This ratio of cores, or of loader processes and threads, is felt.
_FELT, _FELT_IN_PROCESSES = 1.2, 1.5
#: Every worker has others.
_ITS_OWN = frozenset({"affinity", "siblings"})
_OLD_INSTRUCTIONS = ("compatible", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2")
_ON = ("1", "on", "true", "yes", "y")


class Loss(NamedTuple):
    """The loss that a setting must explain.

    Attributes:
        factor: Factor by which workers take longer than the reference, at least 1.
        waiting: By how much the share of time without a core exceeds the reference's, 0-1.
        on_device: The slow work runs on a device and needs no cores.
    """

    factor: float
    waiting: float
    on_device: bool = False


class Rule(NamedTuple):
    """A setting that can make a worker slow: one row of the table.

    Attributes:
        fact: Its name in `WorkerPattern.setup`.
        causes: Causes that it can explain.
        slower: "less" or "more", or the values that are slower than all others.
        text: Its name for people.
        explains: What must hold besides, from own set-up, the other's and the loss.
        warning: Sentence on values that are slow wherever they are, told beside a cause even if all workers have them.
    """

    fact: str
    causes: frozenset[str]
    slower: str | tuple[str, ...]
    text: str = ""
    explains: Callable[[Setup, Setup, Loss], bool] = lambda _own, _other, _loss: True
    warning: str = ""

    @property
    def name(self) -> str:
        """Name of the setting, for people."""
        return self.text or self.fact.removeprefix("env:")

    def is_worse(self, own: Setup, other: Setup) -> bool:
        """Return True if the own value is the slower one. Only variables that are missing are known not to be set."""
        here, there = own.get(self.fact), other.get(self.fact)
        if not self.fact.startswith("env:") and None in (here, there):
            return False
        if self.slower == "more":
            return (number(here) or 0.0) > (number(there) or 0.0)
        if self.slower == "less":
            one, two = number(here), math.inf if there == "none" else number(there)
            return one is not None and two is not None and one < two
        return (here or "").lower() in self.slower and (there or "").lower() not in self.slower


def number(value: str | None) -> float | None:
    """Return a setting as a number; None for one that is not set, or is none."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _cores(setup: Setup) -> float:
    """Return the cores that a worker computes on: what it may have, and what it asks for; infinite where unknown."""
    limits = [number(setup.get(fact)) for fact in ("affinity_cores", "cpu_quota", "cores", "torch_threads")]
    return max(min([one for one in limits if one is not None], default=math.inf), 0.01)


def _lacks_cores(own: Setup, other: Setup, loss: Loss) -> bool:
    ratio = _cores(other) / _cores(own)
    return not loss.on_device and ratio >= _FELT and ratio - 1 >= HALF * (loss.factor - 1)


def _lacks_loaders(own: Setup, other: Setup, _loss: Loss) -> bool:
    here, there = (number(one.get("loader_workers")) or 0.5 for one in (own, other))
    return there >= _FELT_IN_PROCESSES * here


def _queues(_own: Setup, _other: Setup, loss: Loss) -> bool:
    return not loss.on_device and loss.waiting >= max(HELD, OF_LOSS * (1 - 1 / loss.factor))


def _crowds(own: Setup, other: Setup, loss: Loss) -> bool:
    threads, cores = number(own.get("torch_threads")) or 0.0, number(own.get("cores")) or math.inf
    return threads > _FELT_IN_PROCESSES * cores and _queues(own, other, loss)


_OF_HOST = _COMPUTE | _LOADING | _PYTHON | {"blocking-checkpoint", "blocking-logging"}
RULES: tuple[Rule, ...] = (
    Rule("affinity_cores", _COMPUTE, "less", "number of cores that it may run on", _lacks_cores),
    Rule("cpu_quota", _COMPUTE, "less", "CPU quota in cores", _lacks_cores),
    Rule("torch_threads", _COMPUTE, "less", "torch.get_num_threads()", _lacks_cores),
    Rule("torch_threads", _COMPUTE, "more", "torch.get_num_threads()", _crowds),
    Rule("nice", _OF_HOST, "more", "priority (nice)", _queues),
    Rule(
        "deterministic", _COMPUTE | _MEMORY | _MORE_WORK, _ON, "torch.use_deterministic_algorithms",
        warning="Deterministic algorithms are on; some are far slower.",
    ),
    Rule("cudnn_deterministic", _COMPUTE, _ON, "cudnn.deterministic"),
    Rule("mkldnn", _COMPUTE, ("off",), "torch.backends.mkldnn.enabled"),
    Rule(
        "env:MKL_CBWR", _COMPUTE, _OLD_INSTRUCTIONS,
        warning="MKL_CBWR forbids the instructions of newer processors.",
    ),
    Rule("env:ATEN_CPU_CAPABILITY", _COMPUTE, ("default",)),
    Rule("tf32_matmul", _COMPUTE, ("off",), "cuda.matmul.allow_tf32"),
    Rule("tf32_cudnn", _COMPUTE, ("off",), "cudnn.allow_tf32"),
    Rule("matmul_precision", _COMPUTE, ("highest",), "float32 matmul precision"),
    Rule("fp32_matmul", _COMPUTE, ("ieee", "none"), "torch.backends.cuda.matmul.fp32_precision"),
    Rule("fp32_cudnn", _COMPUTE, ("ieee", "none"), "torch.backends.cudnn.conv.fp32_precision"),
    Rule("fp32_mkldnn", _COMPUTE, ("ieee", "none"), "torch.backends.mkldnn.matmul.fp32_precision"),
    Rule(
        "anomaly_mode", _COMPUTE | _PYTHON | _MORE_WORK, _ON, "torch.autograd anomaly mode",
        warning="torch.autograd's anomaly mode is on.",
    ),
    Rule(
        "env:CUDA_LAUNCH_BLOCKING", _COMPUTE, _ON,
        warning="CUDA_LAUNCH_BLOCKING=1 makes the host wait for every kernel.",
    ),
    Rule(
        "env:PYTORCH_NO_CUDA_MEMORY_CACHING", _COMPUTE | _MEMORY, _ON,
        warning="PYTORCH_NO_CUDA_MEMORY_CACHING=1 asks the driver for every tensor.",
    ),
    Rule("env:TORCH_COMPILE_DISABLE", _COMPUTE | _PYTHON | _MORE_WORK, _ON),
    Rule("env:TORCHDYNAMO_DISABLE", _COMPUTE | _PYTHON | _MORE_WORK, _ON),
    Rule(
        "env:TORCH_DISTRIBUTED_DEBUG", _COMPUTE | _NETWORK | {"fragmented-collectives"}, ("detail",),
        warning="TORCH_DISTRIBUTED_DEBUG=DETAIL checks every call.",
    ),
    Rule("loader_workers", _LOADING | {"slow-storage-read"}, "less", "num_workers of its DataLoader", _lacks_loaders),
    Rule(
        "env:NCCL_P2P_DISABLE", _NETWORK, _ON,
        warning="NCCL_P2P_DISABLE=1 sends data between devices through the host.",
    ),
    Rule("env:NCCL_IB_DISABLE", _NETWORK, _ON, warning="NCCL_IB_DISABLE=1 sends data between hosts over TCP."),
    Rule("env:NCCL_SHM_DISABLE", _NETWORK, _ON),
    Rule("env:NCCL_DEBUG", _NETWORK, ("trace",)),
    Rule(
        "env:PYTHONDEVMODE", _PYTHON | _LOADING, _ON,
        warning="PYTHONDEVMODE=1 checks memory and makes Python slower.",
    ),
    Rule("env:PYTHONTRACEMALLOC", _PYTHON | _LOADING, "more"),
)  # fmt: skip


class Difference(NamedTuple):
    """One setting of the accused against that of those they are compared with, in words."""

    name: str
    own: str
    other: str
    is_proof: bool

    def phrase(self, whom: str, whose: str) -> str:
        """Return the difference as a clause."""
        return f"{self.name} is {self.own} for {whom} and {self.other} {whose}"


def find_setting(view: View, block: Block, cause: str) -> Culprit | None:
    """Find the setting of a block's workers that explains it; None without one."""
    if view.is_trace or not block.workers or not any(one.setup for one in view.fleet.patterns):
        return None
    found, whose = _compared(view, block, cause)
    proof = [one for one in found if one.is_proof]
    if not proof:
        return None
    whom = name_affected(view, block.workers)
    be = "is" if whom.startswith(("worker ", "host ")) else "are"
    return Culprit(
        kind="setting",
        subject=f"{whom[0].upper()}{whom[1:]} {be} set up differently: {proof[0].name} is {proof[0].own}, and "
        f"{proof[0].other} {whose}",
        evidence=tuple(f"{one.phrase(whom, whose)}." for one in proof[:FEW]),
    )


def tell_settings(view: View, block: Block, cause: str) -> tuple[str, ...]:
    """Return sentences on settings beside a cause: differences that prove nothing, and values that are always slow."""
    if view.is_trace or not block.workers:
        return ()
    found, whose = _compared(view, block, cause)
    beside = [one.phrase(name_affected(view, block.workers), whose) for one in found if not one.is_proof][:FEW]
    told = [f"Settings differ there: {'; '.join(beside)}."] if beside else []
    return (*told, *warn_of_settings(view, block.workers, cause))


def _compared(view: View, block: Block, cause: str) -> tuple[list[Difference], str]:
    """Return settings in which the block's workers are worse off than the reference, and the reference's name."""
    factor = max(block.mean_us / block.reference_us if block.reference_us > 0 else np.inf, 1.0)
    on_device = view.fleet.has_accelerator and block.kind == "compute"
    loss = Loss(factor=factor, waiting=block.facts.queued * (1 - 1 / factor), on_device=on_device)
    found: list[Difference] = []
    if block.scope == "some" and block.reference in ("peers", "expectation"):
        found = _differences(_beside_peers(view, block.workers), cause, loss)
        if block.reference == "peers" or any(one.is_proof for one in found):
            return found, "for the peers"
    return _differences(_beside_past(view, block.workers), cause, loss), f"in the {view.past_window}"


def _beside_peers(view: View, accused: Sequence[int]) -> list[Pair]:
    """Return each accused worker's settings with those of the other workers of its role; empty if some are unknown."""
    patterns, roles = view.fleet.patterns, view.fleet.roles.tolist()
    others: dict[int, dict[object, Setup]] = defaultdict(dict)
    for at in set(range(view.workers)).difference(accused):
        others[roles[at]][tuple(sorted(patterns[at].setup.items()))] = patterns[at].setup
    pairs: list[Pair] = [(patterns[at].setup, [*others[roles[at]].values()]) for at in accused]
    return pairs if all(own and peers and all(peers) for own, peers in pairs) else []


def _beside_past(view: View, accused: Sequence[int]) -> list[Pair]:
    """Return the settings of the accused now and in the baseline window; empty if those of most are unknown."""
    past = view.suspects.baseline
    before = {pattern.worker.global_rank: pattern.setup for pattern in past.patterns} if past is not None else {}
    setups = [(view.fleet.patterns[at].setup, before.get(view.fleet.ranks[at], {})) for at in accused]
    known = [(now, then) for now, then in setups if now and then]
    pairs = {(tuple(now.items()), tuple(then.items())): (now, [then]) for now, then in known}
    return list(pairs.values()) if len(known) >= MOST * len(accused) else []


def _differences(pairs: Sequence[Pair], cause: str, loss: Loss) -> list[Difference]:
    """Return what is worse by a rule, and then all else that differs, of which nobody knows which value is slower."""
    every = [(own, one) for own, others in pairs for one in others]
    if not every:
        return []
    found: list[Difference] = []

    def add(fact: str, name: str, is_proof: bool) -> None:
        own, usual = (
            " or ".join(sorted({one.get(fact, "not set") for one in some})[:FEW]) for some in zip(*every, strict=True)
        )
        found.append(Difference(name, own, usual, is_proof))

    for rule in RULES:
        if cause in rule.causes and all(rule.is_worse(own, one) for own, one in every):
            add(rule.fact, rule.name, all(rule.explains(own, one, loss) for own, one in every))
    for fact in sorted({fact for both in every for one in both for fact in one} - _ITS_OWN):
        is_known = fact.startswith("env:") or all(fact in one for both in every for one in both)
        is_ruled = any(rule.fact == fact for rule in RULES)
        if is_known and not is_ruled and all(own.get(fact) != one.get(fact) for own, one in every):
            add(fact, fact.removeprefix("env:"), False)
    return found


def warn_of_settings(view: View, workers: Iterable[int], cause: str | None = None) -> Iterator[str]:
    """Yield sentences on slow settings that all of these workers have, beside a cause; beside any for None."""
    setups = [view.fleet.patterns[worker].setup for worker in workers]
    for rule in RULES:
        is_about = rule.warning and (cause is None or cause in rule.causes)
        if is_about and all(one.get(rule.fact, "").lower() in rule.slower for one in setups):
            yield rule.warning
