"""Settings that make workers slow: different from their peers' or from before, and able to explain the loss.

A setting is a culprit only in the direction that is slower, for causes that it can bring about, and if it explains as
much time as is lost. Other differences are told beside a cause and accuse nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.operators import queued_share
from eroica.diagnosis.outliers import JOB_WIDE
from eroica.diagnosis.placement import name_accused
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers

Setup = Mapping[str, str]
_COMPUTE = frozenset({"compute-slow", "cpu-contention", "unknown", "host-bound"})
_LOADING = frozenset({"slow-data-loading"})
_READING = frozenset({"slow-storage-read"})
_NETWORK = frozenset({"slow-collective-everywhere", "slow-link"})
_PYTHON = frozenset({"python-on-critical-path", "garbage-collection"})
_BLOCKING = frozenset({"blocking-checkpoint", "blocking-logging"})
_MEMORY = frozenset({"memory-operation-storm"})
_MORE_WORK = frozenset({"load-imbalance"})
#: Causes that say no more than that somebody lacks cores or computes slowly.
_GENERAL = frozenset({"compute-slow", "cpu-contention", "sibling-process"})
#: More threads than this many times the cores hinder each other.
_OVERSUBSCRIBED = 1.5
#: Waiting for a core this share of the time, and this share of the loss, is no noise.
_LEAST_QUEUE, _OF_LOSS = 0.1, 0.3
#: Fewer cores must explain this share of the loss; this ratio of cores, or of loader processes, is felt.
_EXPLAINS, _FELT, _FELT_IN_LOADING = 0.5, 1.2, 1.5
#: A governor makes a processor at most so many times as slow.
_MOST_BY_GOVERNOR = 4.0
#: Cores that Python can use, what no loader process counts as, and cores where nothing tells.
_CORES_OF_PYTHON, _NO_LOADERS, _ENOUGH = 2.0, 0.5, 1e6
_LISTED = 3
_OLD_INSTRUCTIONS = ("compatible", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2")
_ON = ("1", "on", "true", "yes", "y")


class Loss(NamedTuple):
    """The loss that a setting must explain.

    Attributes:
        cause: Cause that the workers would be accused of otherwise.
        factor: Factor by which they take longer than the reference, at least 1.
        waiting: By how much the share of time without a core exceeds the reference's, 0-1.
        threads: Computing threads of a host's workers per core; 0 where that cannot be the reason.
        operators: Factor by which operators take longer; NaN where nothing tells.
        on_device: The slow work runs on a device and needs no cores.
    """

    cause: str
    factor: float
    waiting: float
    threads: float = 0.0
    operators: float = math.nan
    on_device: bool = False


class Rule(NamedTuple):
    """A setting that can make a worker slow: one row of the table.

    Attributes:
        fact: Its name in `WorkerPattern.setup`.
        causes: Causes that it can explain.
        slower: "less", "more" or "differs", or the values that are slower than all others.
        text: Its name for people.
        explains: What must hold besides, from own set-up, the other's and the loss.
        is_proof: The values tell which one is slower; else a difference is only told.
    """

    fact: str
    causes: frozenset[str]
    slower: str | tuple[str, ...]
    text: str = ""
    explains: Callable[[Setup, Setup, Loss], bool] = lambda _own, _other, _loss: True
    is_proof: bool = True

    @property
    def name(self) -> str:
        """Name of the setting, for people."""
        return self.text or self.fact.removeprefix("env:")

    def is_worse(self, own: Setup, other: Setup) -> bool:
        """Return True if the own value is the slower one. Only variables that are missing are known not to be set."""
        here, there = own.get(self.fact), other.get(self.fact)
        if not self.fact.startswith("env:") and None in (here, there):
            return False
        if self.slower == "differs":
            return here != there
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


def _usable(setup: Setup, cause: str) -> float:
    """Return the cores that a worker can put to use: what it may have, and what it asks for."""
    limits = [number(setup.get(fact)) for fact in ("affinity_cores", "cpu_quota", "cores")]
    may = min([one for one in limits if one is not None], default=_ENOUGH)
    asks = number(setup.get("torch_threads"))
    if cause in _LOADING:
        loaders = number(setup.get("loader_workers"))
        asks = None if loaders is None else loaders + 1
    elif cause in _PYTHON | _BLOCKING:
        asks = _CORES_OF_PYTHON
    return min(may, asks if asks is not None else _ENOUGH)


def _lacks_cores(own: Setup, other: Setup, loss: Loss) -> bool:
    if loss.on_device:
        return False
    ratio = _usable(other, loss.cause) / max(_usable(own, loss.cause), 0.01)
    if loss.cause in _LOADING:
        return ratio >= _FELT_IN_LOADING
    return ratio >= _FELT and ratio - 1 >= _EXPLAINS * (loss.factor - 1)


def _lacks_loaders(own: Setup, other: Setup, _loss: Loss) -> bool:
    here, there = (number(one.get("loader_workers")) or _NO_LOADERS for one in (own, other))
    return there >= _FELT_IN_LOADING * here


def _queues(_own: Setup, _other: Setup, loss: Loss) -> bool:
    return not loss.on_device and loss.waiting >= max(_LEAST_QUEUE, _OF_LOSS * (1 - 1 / max(loss.factor, 1.0)))


def _crowds(own: Setup, other: Setup, loss: Loss) -> bool:
    cores = number(own.get("cores")) or _ENOUGH
    threads = max((number(own.get("torch_threads")) or 0.0) / cores, loss.threads)
    return threads > _OVERSUBSCRIBED and _queues(own, other, loss)


def _by_governor(_own: Setup, _other: Setup, loss: Loss) -> bool:
    operators_are_fast = max(loss.operators - 1, 0.0) < 0.5 * (loss.factor - 1)
    return not loss.on_device and loss.factor <= _MOST_BY_GOVERNOR and not operators_are_fast


def _told(causes: frozenset[str], names: str, text: str = "") -> list[Rule]:
    """Return rows of settings of which nobody can say which value is slower."""
    return [Rule(fact, causes, "differs", text, is_proof=False) for fact in names.split()]


_OF_HOST = _COMPUTE | _LOADING | _PYTHON | _BLOCKING
_VARIABLES_OF_CORES = (
    "env:OMP_NUM_THREADS env:MKL_NUM_THREADS env:OPENBLAS_NUM_THREADS env:OMP_THREAD_LIMIT env:KMP_AFFINITY "
    "env:GOMP_CPU_AFFINITY env:OMP_PROC_BIND env:OMP_PLACES env:LD_PRELOAD"
)
_VARIABLES_OF_NETWORK = (
    "env:NCCL_SOCKET_IFNAME env:NCCL_SOCKET_NTHREADS env:NCCL_NSOCKS_PERTHREAD env:NCCL_IB_HCA env:NCCL_IB_GID_INDEX "
    "env:NCCL_IB_TC env:NCCL_IB_QPS_PER_CONNECTION env:NCCL_NET env:NCCL_NET_PLUGIN env:NCCL_NET_GDR_LEVEL "
    "env:NCCL_P2P_LEVEL env:NCCL_ALGO env:NCCL_PROTO env:NCCL_BUFFSIZE env:NCCL_NTHREADS env:NCCL_MIN_NCHANNELS "
    "env:NCCL_MAX_NCHANNELS env:NCCL_CROSS_NIC env:NCCL_NVLS_ENABLE env:NCCL_TOPO_FILE env:NCCL_GRAPH_FILE "
    "env:GLOO_SOCKET_IFNAME env:GLOO_DEVICE_TRANSPORT nccl"
)
RULES: tuple[Rule, ...] = (
    Rule("affinity_cores", _COMPUTE | _LOADING, "less", "number of cores that it may run on", _lacks_cores),
    Rule("cpu_quota", _OF_HOST, "less", "CPU quota in cores", _lacks_cores),
    Rule("torch_threads", _COMPUTE, "less", "torch.get_num_threads()", _lacks_cores),
    Rule("torch_threads", _COMPUTE, "more", "torch.get_num_threads()", _crowds),
    Rule("nice", _OF_HOST, "more", "priority (nice)", _queues),
    Rule("governor", _COMPUTE | _PYTHON, ("powersave", "conservative"), "CPU governor", _by_governor),
    Rule("deterministic", _COMPUTE | _MEMORY | _MORE_WORK, _ON, "torch.use_deterministic_algorithms"),
    Rule("cudnn_deterministic", _COMPUTE, _ON, "cudnn.deterministic"),
    Rule("mkldnn", _COMPUTE, ("off",), "torch.backends.mkldnn.enabled"),
    Rule("env:MKL_CBWR", _COMPUTE, _OLD_INSTRUCTIONS),
    Rule("env:ATEN_CPU_CAPABILITY", _COMPUTE, ("default",)),
    Rule("tf32_matmul", _COMPUTE, ("off",), "cuda.matmul.allow_tf32"),
    Rule("tf32_cudnn", _COMPUTE, ("off",), "cudnn.allow_tf32"),
    Rule("matmul_precision", _COMPUTE, ("highest",), "float32 matmul precision"),
    Rule("fp32_matmul", _COMPUTE, ("ieee", "none"), "torch.backends.cuda.matmul.fp32_precision"),
    Rule("fp32_cudnn", _COMPUTE, ("ieee", "none"), "torch.backends.cudnn.conv.fp32_precision"),
    Rule("fp32_mkldnn", _COMPUTE, ("ieee", "none"), "torch.backends.mkldnn.matmul.fp32_precision"),
    Rule("anomaly_mode", _COMPUTE | _PYTHON | _MORE_WORK, _ON, "torch.autograd anomaly mode"),
    Rule("env:CUDA_LAUNCH_BLOCKING", _COMPUTE, _ON),
    Rule("env:PYTORCH_NO_CUDA_MEMORY_CACHING", _COMPUTE | _MEMORY, _ON),
    Rule("env:TORCH_COMPILE_DISABLE", _COMPUTE | _PYTHON | _MORE_WORK, _ON),
    Rule("env:TORCHDYNAMO_DISABLE", _COMPUTE | _PYTHON | _MORE_WORK, _ON),
    Rule("env:TORCH_DISTRIBUTED_DEBUG", _COMPUTE | _NETWORK | {"fragmented-collectives"}, ("detail",)),
    Rule("loader_workers", _LOADING | _READING, "less", "num_workers of its DataLoader", _lacks_loaders),
    Rule("env:NCCL_P2P_DISABLE", _NETWORK, _ON),
    Rule("env:NCCL_IB_DISABLE", _NETWORK, _ON),
    Rule("env:NCCL_SHM_DISABLE", _NETWORK, _ON),
    Rule("env:NCCL_DEBUG", _NETWORK, ("trace",)),
    Rule("env:PYTHONDEVMODE", _PYTHON | _LOADING, _ON),
    Rule("env:PYTHONTRACEMALLOC", _PYTHON | _LOADING, "more"),
    Rule("cudnn_benchmark", _COMPUTE, ("off",), "cudnn.benchmark", is_proof=False),
    Rule("loader_prefetch_factor", _LOADING | _READING, "less", "prefetch_factor of its DataLoader", is_proof=False),
    Rule("loader_persistent_workers", _LOADING | _READING, ("off",), "persistent_workers", is_proof=False),
    Rule("memory_limit_gib", _COMPUTE | _LOADING | _READING | _MEMORY, "less", "memory limit in GiB", is_proof=False),
    *_told(_COMPUTE, _VARIABLES_OF_CORES),
    *_told(_MEMORY, "env:PYTORCH_CUDA_ALLOC_CONF env:PYTORCH_ALLOC_CONF"),
    *_told(_LOADING | _READING | _MEMORY, "loader_pin_memory", "pin_memory of its DataLoader"),
    *_told(_NETWORK, _VARIABLES_OF_NETWORK),
    *_told(_COMPUTE | _PYTHON | _NETWORK, "torch python cuda nvidia_driver kernel cpu"),
    *_told(
        _PYTHON | _LOADING | _COMPUTE, "env:PYTHONMALLOC env:MALLOC_CHECK_ env:MALLOC_PERTURB_ env:MALLOC_ARENA_MAX"
    ),
)
#: Settings that are slow wherever they are, told beside a cause that they can make worse, even if all have them.
BAD: tuple[tuple[str, tuple[str, ...], frozenset[str], str], ...] = (
    ("env:CUDA_LAUNCH_BLOCKING", _ON, _COMPUTE, "CUDA_LAUNCH_BLOCKING=1 makes the host wait for every kernel."),
    ("anomaly_mode", _ON, _COMPUTE | _PYTHON | _MORE_WORK, "torch.autograd's anomaly mode is on."),
    ("deterministic", _ON, _COMPUTE | _MEMORY | _MORE_WORK, "Deterministic algorithms are on; some are far slower."),
    (
        "env:PYTORCH_NO_CUDA_MEMORY_CACHING", _ON, _COMPUTE | _MEMORY,
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1 asks the driver for every tensor.",
    ),
    ("env:TORCH_DISTRIBUTED_DEBUG", ("detail",), _NETWORK, "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every call."),
    ("env:NCCL_P2P_DISABLE", ("1",), _NETWORK, "NCCL_P2P_DISABLE=1 sends data between devices through the host."),
    ("env:NCCL_IB_DISABLE", ("1",), _NETWORK, "NCCL_IB_DISABLE=1 sends data between hosts over TCP."),
    ("env:MKL_CBWR", _OLD_INSTRUCTIONS, _COMPUTE, "MKL_CBWR forbids the instructions of newer processors."),
    ("env:PYTHONDEVMODE", ("1",), _PYTHON | _LOADING, "PYTHONDEVMODE=1 checks memory and makes Python slower."),
)  # fmt: skip


class Difference(NamedTuple):
    """One setting of the accused against that of those they are compared with, in words."""

    rule: Rule
    own: str
    other: str
    is_proof: bool

    def phrase(self, whom: str, whose: str) -> str:
        """Return the difference as a clause."""
        return f"{self.rule.name} is {self.own} for {whom} and {self.other} {whose}"


def find_setting(view: View, block: Block, cause: str) -> Culprit | None:
    """Find the setting of a block's workers that explains it; None without one."""
    if view.is_trace or not block.workers or not any(one.setup for one in view.fleet.patterns):
        return None
    found, whose = _compared(view, block, cause)
    proof = [one for one in found if one.is_proof]
    if not proof:
        return None
    whom = _whom(view, block.workers)
    be = "is" if whom.startswith(("worker ", "host ")) else "are"
    first = proof[0]
    return Culprit(
        kind="setting",
        subject=f"{whom[0].upper()}{whom[1:]} {be} set up differently: {first.rule.name} is {first.own}, and "
        f"{first.other} {whose}",
        evidence=tuple(f"{one.phrase(whom, whose)}." for one in proof[:_LISTED]),
    )


def find_changed_setting(view: View) -> Culprit | None:
    """Find a setting that was different in the baseline window of a job that got slower on all workers."""
    before_us = view.baseline_us
    if view.is_trace or view.suspects.baseline is None or not view.is_slow or not before_us:
        return None
    everybody = list(range(view.workers))
    loss = Loss(
        cause="unknown",
        factor=max(view.iteration_us / before_us, 1.0),
        waiting=_waiting(view, everybody, "baseline"),
        threads=_threads_by_cores(view, everybody),
        operators=_operators(view, everybody, "baseline"),
    )
    found = [one for one in _against_baseline(view, everybody, None, loss) if one.is_proof]
    if not found:
        return None
    then = f"in the {view.past_window}"
    return Culprit(
        kind="setting",
        subject=f"since {found[0].rule.name} became {found[0].own} ({found[0].other} {view.back_then})",
        evidence=tuple(f"{one.phrase(_whom(view, everybody), then)}." for one in found[:_LISTED]),
        doubt=0.8,
    )


def tell_settings(view: View, block: Block, cause: str) -> tuple[str, ...]:
    """Return sentences on settings beside a cause: differences that prove nothing, and values that are always slow."""
    if view.is_trace or not block.workers:
        return ()
    found, whose = _compared(view, block, cause)
    beside = [one.phrase(_whom(view, block.workers), whose) for one in found if not one.is_proof][:_LISTED]
    told = [f"Settings differ there: {'; '.join(beside)}."] if beside else []
    return (*told, *_known_bad(view, block.workers, cause))


def setup_notes(view: View, causes: Collection[str]) -> Iterator[str]:
    """Yield notes on settings that differ between workers of a role, and on bad ones of a slow job without a cause."""
    if view.is_trace or not all(pattern.setup for pattern in view.fleet.patterns):
        return
    if _GENERAL.issuperset(causes):
        names = [name for name in sorted({rule.fact for rule in RULES}) if _differs_in_role(view, name)]
        if names and (causes or view.is_slow or len(names) <= _LISTED):
            told = "; ".join(_by_value(view, name) for name in names[:_LISTED])
            more = f"; and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            yield f"Settings differ between workers: {told}{more}."
    if not causes and view.is_slow:
        yield from _known_bad(view, range(view.workers), None)


def _compared(view: View, block: Block, cause: str) -> tuple[list[Difference], str]:
    """Return settings in which the block's workers are worse off than the reference, and the reference's name."""
    found: list[Difference] = []
    if block.scope == "some" and block.reference in ("peers", "expectation"):
        found = _against_peers(view, block.workers, cause, _loss(view, block, cause, "peers"))
    if (block.reference == "peers" and block.scope == "some") or any(one.is_proof for one in found):
        return found, "for the peers"
    loss = _loss(view, block, cause, block.reference)
    return _against_baseline(view, block.workers, cause, loss), f"in the {view.past_window}"


def _loss(view: View, block: Block, cause: str, reference: str) -> Loss:
    factor = block.mean_us / block.reference_us if block.reference_us > 0 else np.inf
    return Loss(
        cause=cause,
        factor=max(factor, 1.0),
        waiting=_waiting(view, block.workers, reference),
        threads=_threads_by_cores(view, block.workers) if reference != "peers" else 0.0,
        operators=_operators(view, block.workers, reference),
        on_device=view.fleet.has_accelerator and block.kind == "compute",
    )


def _waiting(view: View, workers: Sequence[int], reference: str) -> float:
    """Return by how much longer workers wait for a core than the reference, as a share of an iteration of now."""
    wait_W, past = np.nan_to_num(queued_share(view.fleet)), view.suspects.baseline
    now = float(wait_W[list(workers)].mean())
    if reference == "peers":
        others = np.delete(wait_W, list(workers))
        return now - float(others.mean()) if others.size else now
    before_us = 0.0 if past is None else float(np.nan_to_num(queued_share(past)).mean()) * past.mean_iteration_us
    return now - before_us / max(view.iteration_us, 1e-9)


def _operators(view: View, workers: Sequence[int], reference: str) -> float:
    speed = view.speed if reference == "peers" else view.speed_change
    factor_W = speed.factor[list(workers)]
    return math.nan if view.fleet.has_accelerator or np.isnan(factor_W).all() else float(np.nanmedian(factor_W))


def _threads_by_cores(view: View, workers: Sequence[int]) -> float:
    """Return computing threads of a host's workers per core, fewest of these workers' hosts; 0 where unknown."""
    theirs = {view.fleet.patterns[worker].worker.host for worker in workers}
    shares = [
        sum(number(view.fleet.patterns[at].setup.get("torch_threads")) or 0.0 for at in members)
        / max(view.cores[host].allowed, 1.0)
        for host, members in view.homes.items()
        if host in theirs
    ]
    return min((share for share in shares if not np.isnan(share)), default=0.0)


def _against_peers(view: View, accused: Sequence[int], cause: str, loss: Loss) -> list[Difference]:
    """Return settings in which every accused worker is worse off than every other worker of its role."""
    guilty = set(accused)
    others: dict[int, dict[tuple[tuple[str, str], ...], Setup]] = {}
    for at, pattern in enumerate(view.fleet.patterns):
        if at not in guilty:
            others.setdefault(int(view.fleet.roles[at]), {})[tuple(sorted(pattern.setup.items()))] = pattern.setup
    roles = view.fleet.roles.tolist()
    pairs = [(view.fleet.patterns[at].setup, list(others.get(roles[at], {}).values())) for at in accused]
    if not all(own and peers and all(peers) for own, peers in pairs):
        return []
    return _differences(pairs, cause, loss)


def _against_baseline(view: View, accused: Sequence[int], cause: str | None, loss: Loss) -> list[Difference]:
    """Return settings in which most of the accused are worse off than in the baseline window."""
    past = view.suspects.baseline
    before = {pattern.worker.global_rank: pattern.setup for pattern in past.patterns} if past is not None else {}
    setups = [(view.fleet.patterns[at].setup, before.get(view.fleet.ranks[at], {})) for at in accused]
    pairs = {(tuple(now.items()), tuple(then.items())): (now, [then]) for now, then in setups if now and then}
    known = sum(bool(now and then) for now, then in setups)
    return _differences(list(pairs.values()), cause, loss) if known >= JOB_WIDE * len(accused) and pairs else []


def _differences(pairs: Sequence[tuple[Setup, Sequence[Setup]]], cause: str | None, loss: Loss) -> list[Difference]:
    found = []
    for rule in RULES:
        if cause is not None and cause not in rule.causes:
            continue
        if not all(rule.is_worse(own, one) for own, others in pairs for one in others):
            continue
        proof = rule.is_proof and all(rule.explains(own, one, loss) for own, others in pairs for one in others)
        own = _values(own.get(rule.fact) for own, _ in pairs)
        usual = _values(one.get(rule.fact) for _, others in pairs for one in others)
        found.append(Difference(rule, own, usual, proof))
    return found


def _values(values: Iterable[str | None]) -> str:
    distinct = sorted({"not set" if value is None else value for value in values})
    return " or ".join(distinct[:_LISTED])


def _whom(view: View, workers: Sequence[int]) -> str:
    if len(workers) == view.workers:
        return f"all {view.workers} workers" if view.workers > 1 else name_workers([view.fleet.ranks[0]])
    return name_accused(view, workers)[0]


def _known_bad(view: View, workers: Iterable[int], cause: str | None) -> Iterator[str]:
    """Yield settings of these workers that are known to make the cause worse; of any cause for None."""
    members = list(workers)
    setups = [view.fleet.patterns[worker].setup for worker in members]
    for fact, values, causes, text in BAD:
        if (cause is None or cause in causes) and setups and all(one.get(fact, "").lower() in values for one in setups):
            yield text
    if cause is None or cause in _COMPUTE:
        hosts = sorted({view.fleet.patterns[worker].worker.host for worker in members})
        yield from list(filter(None, (_threads_of(view, host) for host in hosts)))[:1]


def _threads_of(view: View, host: str) -> str:
    """Return a sentence on more threads than cores, or on one thread where cores are idle; "" for neither."""
    here = [view.fleet.patterns[worker] for worker in view.homes[host]]
    each = [number(one.setup.get("torch_threads")) or 0.0 for one in here]
    cores, idle, where = view.cores[host].allowed, view.cores[host].idle, host or "their host"
    waiting = float(np.mean([one.host_facts.get("run_queue_wait", 0.0) for one in here]))
    if max(each) > 1 and sum(each) >= _OVERSUBSCRIBED * cores and waiting >= _LEAST_QUEUE:
        return (
            f"{len(here)} workers with {sum(each):.0f} computing threads together share the {cores:.0f} cores of "
            f"{where}: set OMP_NUM_THREADS to {max(int(cores) // len(here), 1)}."
        )
    if not view.fleet.has_accelerator and set(each) == {1.0} and idle >= 3 * len(here):
        return (
            f"Each worker computes with one thread while {idle:.0f} of the {cores:.0f} cores of {where} are idle: "
            "torchrun sets OMP_NUM_THREADS=1 unless told otherwise."
        )
    return ""


def _differs_in_role(view: View, name: str) -> bool:
    values: dict[int, set[str | None]] = {}
    for role, pattern in zip(view.fleet.roles.tolist(), view.fleet.patterns, strict=True):
        values.setdefault(role, set()).add(pattern.setup.get(name))
    return any(len(one) > 1 for one in values.values())


def _by_value(view: View, name: str) -> str:
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        owners.setdefault(pattern.setup.get(name, "not set"), []).append(pattern.worker.global_rank)
    listed = [f"{value} on {name_workers(ranks)}" for value, ranks in list(owners.items())[:_LISTED]]
    return f"{name.removeprefix('env:')} is {' and '.join(listed)}"
