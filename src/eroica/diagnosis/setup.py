"""Switches that make workers slow: other than their peers' or than before, and on the slower side.

A switch is a culprit only in the direction that is slower, and for causes that it can bring about. All else that
differs, numbers of cores and threads included, is told beside a cause and accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import MOST
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW, name_affected

Setup = Mapping[str, str]
_COMPUTE = frozenset({"compute-slow", "cpu-contention", "unknown", "host-bound"})
_NETWORK = frozenset({"slow-collective-everywhere", "slow-link"})
_PYTHON = frozenset({"python-on-critical-path", "garbage-collection"})
_LOADING, _MEMORY = frozenset({"slow-data-loading"}), frozenset({"memory-operation-storm"})
_MORE_WORK = frozenset({"load-imbalance"})
#: Every worker has others.
_ITS_OWN = frozenset({"affinity", "siblings"})
_OLD_INSTRUCTIONS = ("compatible", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2")
_ON = ("1", "on", "true", "yes", "y")


class Rule(NamedTuple):
    """A switch that can make a worker slow: one row of the table.

    Attributes:
        fact: Its name in `WorkerPattern.setup`.
        causes: Causes that it can explain.
        slower: Values that are slower than all others.
        text: Its name for people.
        warning: Sentence on values that are slow wherever they are, told beside a cause even if all workers have them.
    """

    fact: str
    causes: frozenset[str]
    slower: tuple[str, ...]
    text: str = ""
    warning: str = ""

    def is_worse(self, own: Setup, other: Setup) -> bool:
        """Return True if the own value is the slower one. Only variables that are missing are known not to be set."""
        if not self.fact.startswith("env:") and not (self.fact in own and self.fact in other):
            return False
        return own.get(self.fact, "").lower() in self.slower and other.get(self.fact, "").lower() not in self.slower


RULES: tuple[Rule, ...] = (
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
    found, whose = _compared(view, block, cause)
    proof = [one for one in found if one.is_proof]
    if not proof:
        return None
    whom = name_affected(view, block.workers)
    be = "is" if whom.startswith(("worker ", "host ")) else "are"
    first = proof[0]
    return Culprit(
        kind="setting",
        subject=f"{whom[0].upper()}{whom[1:]} {be} set up differently: {first.name} is {first.own}, and "
        f"{first.other} {whose}",
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
    """Return the settings in which all of a block's workers differ from the reference, and the reference's name."""
    if block.scope == "some" and block.reference != "baseline":
        return _differences(_with_peers(view, block.workers), cause), "for the peers"
    return _differences(_with_baseline(view, block.workers), cause), f"in the {view.past_window}"


def _with_peers(view: View, accused: Sequence[int]) -> list[tuple[Setup, Setup]]:
    """Pair the set-up of every accused worker with those of all other workers of its role; none if one is unknown."""
    others: dict[int, dict[tuple[tuple[str, str], ...], Setup]] = {}
    roles = view.fleet.roles.tolist()
    for at in sorted(set(range(view.workers)) - set(accused)):
        setup = view.fleet.patterns[at].setup
        others.setdefault(roles[at], {})[tuple(sorted(setup.items()))] = setup
    peers = [(view.fleet.patterns[at].setup, others.get(roles[at], {})) for at in accused]
    pairs = [(own, one) for own, some in peers for one in some.values()]
    return pairs if all(some for _, some in peers) and all(own and one for own, one in pairs) else []


def _with_baseline(view: View, accused: Sequence[int]) -> list[tuple[Setup, Setup]]:
    """Pair the set-up of the accused with their own in the baseline window; none unless that of most is known."""
    past = view.suspects.baseline
    before = {pattern.worker.global_rank: pattern.setup for pattern in past.patterns} if past is not None else {}
    setups = [(view.fleet.patterns[at].setup, before.get(view.fleet.ranks[at], {})) for at in accused]
    pairs: list[tuple[Setup, Setup]] = [(now, then) for now, then in setups if now and then]
    distinct: dict[object, tuple[Setup, Setup]] = {tuple(tuple(side.items()) for side in one): one for one in pairs}
    return [*distinct.values()] if len(pairs) >= MOST * len(accused) else []


def _differences(pairs: Sequence[tuple[Setup, Setup]], cause: str) -> list[Difference]:
    """Return what is worse by a rule, and then all else that differs, of which nobody knows which value is slower."""
    if not pairs:
        return []
    ruled = {rule.fact for rule in RULES}
    worse = [
        (rule.fact, rule.text)
        for rule in RULES
        if cause in rule.causes and all(rule.is_worse(own, other) for own, other in pairs)
    ]
    others = []
    for fact in sorted({fact for both in pairs for one in both for fact in one} - _ITS_OWN - ruled):
        is_known = fact.startswith("env:") or all(fact in one for both in pairs for one in both)
        if is_known and all(own.get(fact) != other.get(fact) for own, other in pairs):
            others.append((fact, ""))

    def told(fact: str, text: str, is_proof: bool) -> Difference:
        own, usual = (
            " or ".join(sorted({one.get(fact, "not set") for one in some})[:FEW]) for some in zip(*pairs, strict=True)
        )
        return Difference(text or fact.removeprefix("env:"), own, usual, is_proof)

    return [*(told(*one, True) for one in worse), *(told(*one, False) for one in others)]


def warn_of_settings(view: View, workers: Iterable[int], cause: str | None = None) -> Iterator[str]:
    """Yield sentences on slow settings that all of these workers have, beside a cause; beside any for None."""
    setups = [view.fleet.patterns[worker].setup for worker in workers]
    for rule in RULES:
        is_about = rule.warning and (cause is None or cause in rule.causes)
        if is_about and all(one.get(rule.fact, "").lower() in rule.slower for one in setups):
            yield rule.warning
