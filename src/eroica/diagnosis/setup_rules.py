"""Settings that can make a worker slow: which cause each can explain, which value is the slower one, and how much.

Of some settings nobody can say which value is slower (an allocator preloaded, how threads are bound): a difference in
them is told beside a cause. Threads, cores and quotas count by what they do: too few of them for the time lost, or more
threads than cores while threads wait for a core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

COMPUTE = frozenset({"compute-slow", "cpu-contention", "unknown", "host-bound"})
LOADING = frozenset({"slow-data-loading"})
#: A read that waits needs no core: only how many wait at the same time matters.
READING = frozenset({"slow-storage-read"})
COMMUNICATION = frozenset({"slow-collective-everywhere", "slow-link", "link-fallback"})
#: More calls than there need be; how fast each is does not matter.
FRAGMENTED = frozenset({"fragmented-collectives"})
PYTHON = frozenset({"python-on-critical-path", "garbage-collection"})
BLOCKING = frozenset({"blocking-checkpoint", "blocking-logging"})
WAITING = frozenset({"host-device-sync"})
MEMORY = frozenset({"memory-operation-storm"})
#: More operators than the peers run: checks and slower ways of the same are operators, too.
MORE_WORK = frozenset({"load-imbalance"})
ALL = COMPUTE | LOADING | READING | COMMUNICATION | FRAGMENTED | PYTHON | BLOCKING | WAITING | MEMORY


#: Threads beyond this many times the cores hinder each other.
OVERSUBSCRIBED = 1.5
#: More waiting for a core than this share of the time is not noise, and it must hold this share of what is lost.
LEAST_QUEUE = 0.1
_LEAST_QUEUED = 0.3
#: Fewer cores must account for this share of what is lost.
_LEAST_EXPLAINED = 0.5
#: So many times fewer cores, or loader processes, are felt at all; and loading hides behind the iteration up to some
#: number of them, so that no ratio of times says how many it lacks.
_FELT = 1.2
_FELT_IN_LOADING = 1.5
#: A governor that holds a processor at its lowest clock makes it at most so many times as slow.
_MOST_BY_GOVERNOR = 4.0
#: And other work by at least this share of that.
_AS_SLOW = 0.5
#: What a loader without processes of its own counts as.
_NO_LOADERS = 0.5
#: An interpreter and its helpers.
_INTERPRETERS_CORES = 2.0
#: Cores where nothing says how many there are.
_ENOUGH = 1e6
Setup = Mapping[str, str]


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Loss that a setting must be able to explain.

    Attributes:
        cause: Cause that the workers would be accused of otherwise.
        factor: Factor by which they take longer than the reference, at least 1.
        waiting: By how much the share of time in which they wait for a core exceeds the others', 0-1.
        queue: The same against other hosts' workers only, or all of it where there are none: on a crowded host
            everybody waits.
        on_device: The slow work runs on a device and needs no cores.
        is_one_operator: Other operators are as fast as anywhere: no lack of cores is behind it.
        threads: Computing threads of all workers of a host by its cores, fewest of the accused's hosts; 0 if unknown.
        operators: Factor by which operators take longer there; NaN where nothing tells.
    """

    cause: str
    factor: float
    waiting: float
    queue: float
    on_device: bool = False
    is_one_operator: bool = False
    threads: float = 0.0
    operators: float = math.nan

    @property
    def is_of_cores(self) -> bool:
        """True if more cores, or faster ones, could shorten the loss."""
        return not self.on_device and not self.is_one_operator


class Rule(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One setting that can make a worker slow.

    Attributes:
        fact: Its name in `WorkerPattern.setup`.
        causes: Causes that it can explain.
        worse: True if a value (None: not set) is slower than another one.
        explains: True if the setting (own set-up, the other's) can have brought about the loss.
        text: Name of the setting for people.
        is_proof: Values tell which one is slower; else a difference is told beside a cause and never is one.
    """

    fact: str
    causes: frozenset[str]
    worse: Callable[[str | None, str | None], bool]
    explains: Callable[[Setup, Setup, Loss], bool] = lambda _own, _other, _loss: True
    text: str = ""
    is_proof: bool = True

    @property
    def name(self) -> str:
        """Name of the setting, for people."""
        return self.text or self.fact.removeprefix("env:")

    def is_worse(self, own: Setup, other: Setup) -> bool:
        """True if the own value is the slower one; only variables that are missing are known not to be set."""
        values = own.get(self.fact), other.get(self.fact)
        return (self.fact.startswith("env:") or None not in values) and self.worse(*values)


def number(value: str | None) -> float | None:
    """Read a setting as a number; None for one that is not set, or is none."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _less(own: str | None, other: str | None) -> bool:
    """True if the own number is smaller, where both are known; "none" is no limit."""
    one, two = number(own), math.inf if other == "none" else number(other)
    return one is not None and two is not None and one < two


def _more(own: str | None, other: str | None) -> bool:
    """True if the own number is larger; a setting that is not set counts as none."""
    return (number(own) or 0.0) > (number(other) or 0.0)


def _among(*bad: str) -> Callable[[str | None, str | None], bool]:
    return lambda own, other: (own or "").lower() in bad and (other or "").lower() not in bad


def _differs(own: str | None, other: str | None) -> bool:
    return own != other


def _lacks_cores(own: Setup, other: Setup, loss: Loss) -> bool:
    """True if a worker can use fewer cores than the other, by as much as the time lost asks for."""
    if not loss.is_of_cores:
        return False
    ratio = _usable(other, loss.cause) / max(_usable(own, loss.cause), 0.01)
    if loss.cause in LOADING:
        return ratio >= _FELT_IN_LOADING
    return ratio >= _FELT and ratio - 1 >= _LEAST_EXPLAINED * (loss.factor - 1)


def _lacks_loaders(own: Setup, other: Setup, _loss: Loss) -> bool:
    """True if a worker has fewer loader processes, by a number that is felt; none at all always is."""
    here, there = (number(one.get("loader_workers")) or _NO_LOADERS for one in (own, other))
    return there >= _FELT_IN_LOADING * here


def _usable(setup: Setup, cause: str) -> float:
    """Return the cores that a worker can put to use: what it may have, and what it asks for."""
    asked = number(setup.get("torch_threads"))
    if cause in LOADING:
        loaders = number(setup.get("loader_workers"))
        asked = None if loaders is None else loaders + 1
    elif cause in PYTHON | BLOCKING:
        asked = _INTERPRETERS_CORES
    return min(_cores(setup), asked if asked is not None else _ENOUGH)


def _cores(setup: Setup) -> float:
    """Return the cores that a worker may have."""
    known = [number(setup.get(fact)) for fact in ("affinity_cores", "cpu_quota", "cores")]
    return min([one for one in known if one is not None], default=_ENOUGH)


def _crowds(own: Setup, _other: Setup, loss: Loss) -> bool:
    """True if a host's workers have more threads than cores, and lose time to waiting for these."""
    threads = max((number(own.get("torch_threads")) or 0.0) / _cores(own), loss.threads)
    return threads > OVERSUBSCRIBED and _holds_much(loss.queue, loss)


def _queues(_own: Setup, _other: Setup, loss: Loss) -> bool:
    """True if workers wait for a core more than anybody else."""
    return _holds_much(loss.waiting, loss)


def _holds_much(waiting: float, loss: Loss) -> bool:
    lost = 1 - 1 / max(loss.factor, 1.0)
    return loss.is_of_cores and waiting >= max(LEAST_QUEUE, _LEAST_QUEUED * lost)


def _is_by_governor(_own: Setup, _other: Setup, loss: Loss) -> bool:
    others_are_fast = max(loss.operators - 1, 0.0) < _AS_SLOW * (loss.factor - 1)  # a low clock slows operators, too
    return loss.is_of_cores and loss.factor <= _MOST_BY_GOVERNOR and not others_are_fast


#: What decides over which path, in which way and in what portions data travels.
_TRANSPORT_VARIABLES = """
    NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TC
    NCCL_IB_QPS_PER_CONNECTION NCCL_NET NCCL_NET_PLUGIN NCCL_NET_GDR_LEVEL NCCL_P2P_LEVEL NCCL_ALGO NCCL_PROTO
    NCCL_BUFFSIZE NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_CROSS_NIC NCCL_NVLS_ENABLE NCCL_TOPO_FILE
    NCCL_GRAPH_FILE GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT
"""
#: Values of MKL_CBWR (MKL's conditional numerical reproducibility) that forbid what processors of today can do.
OLD_INSTRUCTIONS = ("compatible", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2")
_OF_CORES = """
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS OMP_THREAD_LIMIT
    KMP_AFFINITY GOMP_CPU_AFFINITY OMP_PROC_BIND OMP_PLACES LD_PRELOAD
"""
_ON = _among("1", "on", "true", "yes", "y")
RULES = (
    Rule(
        fact="affinity_cores",
        causes=COMPUTE | LOADING,
        worse=_less,
        explains=_lacks_cores,
        text="number of cores that it may run on",
    ),
    Rule(
        fact="cpu_quota",
        causes=COMPUTE | LOADING | PYTHON | BLOCKING,
        worse=_less,
        explains=_lacks_cores,
        text="CPU quota in cores",
    ),
    Rule(fact="torch_threads", causes=COMPUTE, worse=_less, explains=_lacks_cores, text="torch.get_num_threads()"),
    Rule(fact="torch_threads", causes=COMPUTE, worse=_more, explains=_crowds, text="torch.get_num_threads()"),
    *(Rule(fact=f"env:{name}", causes=COMPUTE, worse=_differs, is_proof=False) for name in _OF_CORES.split()),
    Rule(
        fact="nice", causes=COMPUTE | LOADING | PYTHON | BLOCKING, worse=_more, explains=_queues, text="priority (nice)"
    ),
    Rule(
        fact="governor",
        causes=COMPUTE | PYTHON,
        worse=_among("powersave", "conservative"),
        explains=_is_by_governor,
        text="CPU governor",
    ),
    Rule(
        fact="deterministic", causes=COMPUTE | MEMORY | MORE_WORK, worse=_ON, text="torch.use_deterministic_algorithms"
    ),
    Rule(fact="cudnn_deterministic", causes=COMPUTE, worse=_ON, text="cudnn.deterministic"),
    Rule(fact="cudnn_benchmark", causes=COMPUTE, worse=_among("off"), text="cudnn.benchmark", is_proof=False),
    Rule(fact="mkldnn", causes=COMPUTE, worse=_among("off"), text="torch.backends.mkldnn.enabled"),
    Rule(fact="env:MKL_CBWR", causes=COMPUTE, worse=_among(*OLD_INSTRUCTIONS)),
    Rule(fact="env:ATEN_CPU_CAPABILITY", causes=COMPUTE, worse=_among("default")),
    Rule(fact="tf32_matmul", causes=COMPUTE, worse=_among("off"), text="cuda.matmul.allow_tf32"),
    Rule(fact="tf32_cudnn", causes=COMPUTE, worse=_among("off"), text="cudnn.allow_tf32"),
    Rule(fact="matmul_precision", causes=COMPUTE, worse=_among("highest"), text="float32 matmul precision"),
    *(
        Rule(fact=fact, causes=COMPUTE, worse=_among("ieee", "none"), text=f"torch.backends.{name}.fp32_precision")
        for fact, name in (
            ("fp32_matmul", "cuda.matmul"),
            ("fp32_cudnn", "cudnn.conv"),
            ("fp32_mkldnn", "mkldnn.matmul"),
        )
    ),
    Rule(
        fact="anomaly_mode",
        causes=COMPUTE | PYTHON | WAITING | MORE_WORK,
        worse=_ON,
        text="torch.autograd anomaly mode",
    ),
    Rule(fact="env:CUDA_LAUNCH_BLOCKING", causes=COMPUTE | WAITING, worse=_ON),
    Rule(fact="env:PYTORCH_NO_CUDA_MEMORY_CACHING", causes=COMPUTE | WAITING | MEMORY, worse=_ON),
    *(
        Rule(fact=f"env:{name}", causes=COMPUTE | PYTHON | MORE_WORK, worse=_ON)
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    ),
    *(
        Rule(fact=f"env:{name}", causes=MEMORY, worse=_differs, is_proof=False)
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    ),
    Rule(
        fact="memory_limit_gib",
        causes=COMPUTE | LOADING | READING | MEMORY,
        worse=_less,
        text="memory limit in GiB",
        is_proof=False,
    ),
    Rule(fact="env:TORCH_DISTRIBUTED_DEBUG", causes=COMPUTE | COMMUNICATION | FRAGMENTED, worse=_among("detail")),
    Rule(
        fact="loader_workers",
        causes=LOADING | READING,
        worse=_less,
        explains=_lacks_loaders,
        text="num_workers of its DataLoader",
    ),
    Rule(
        fact="loader_prefetch_factor",
        causes=LOADING | READING,
        worse=_less,
        text="prefetch_factor of its DataLoader",
        is_proof=False,
    ),
    Rule(
        fact="loader_persistent_workers",
        causes=LOADING | READING,
        worse=_among("off"),
        text="persistent_workers",
        is_proof=False,
    ),
    Rule(
        fact="loader_pin_memory",
        causes=LOADING | READING | MEMORY,
        worse=_differs,
        text="pin_memory of its DataLoader",
        is_proof=False,
    ),
    *(
        Rule(fact=f"env:{name}", causes=COMMUNICATION, worse=_ON)
        for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
    ),
    *(
        Rule(fact=f"env:{name}", causes=COMMUNICATION, worse=_differs, is_proof=False)
        for name in _TRANSPORT_VARIABLES.split()
    ),
    Rule(fact="nccl", causes=COMMUNICATION, worse=_differs, text="NCCL's version", is_proof=False),
    *(
        Rule(fact=fact, causes=COMPUTE | PYTHON | COMMUNICATION, worse=_differs, text=text, is_proof=False)
        for fact, text in (
            ("torch", "PyTorch's version"),
            ("python", "Python's version"),
            ("cuda", "CUDA's version"),
            ("nvidia_driver", "NVIDIA driver"),
            ("kernel", "kernel"),
            ("cpu", "processor"),
        )
    ),
    Rule(fact="env:NCCL_DEBUG", causes=COMMUNICATION, worse=_among("trace")),
    Rule(fact="env:PYTHONDEVMODE", causes=PYTHON | LOADING, worse=_ON),
    Rule(fact="env:PYTHONTRACEMALLOC", causes=PYTHON | LOADING, worse=_more),
    *(
        Rule(fact=f"env:{name}", causes=PYTHON | LOADING | COMPUTE, worse=_differs, is_proof=False)
        for name in ("PYTHONMALLOC", "PYTHONPROFILEIMPORTTIME", "MALLOC_CHECK_", "MALLOC_PERTURB_", "MALLOC_ARENA_MAX")
    ),
)
#: Differences between workers worth a word though nobody is slow.
TOLD = frozenset(rule.fact for rule in RULES)
#: Values known to be slow wherever they are: setting, values, what they can explain, and why.
BAD: tuple[tuple[str, tuple[str, ...], frozenset[str], str], ...] = (
    (
        "env:CUDA_LAUNCH_BLOCKING",
        ("1",),
        COMPUTE | WAITING,
        "CUDA_LAUNCH_BLOCKING=1 makes the host wait for every kernel: for looking for errors, not for training.",
    ),
    (
        "anomaly_mode",
        ("on",),
        COMPUTE | PYTHON | WAITING | MORE_WORK,
        "torch.autograd's anomaly mode is on: it checks every gradient and keeps stacks, for looking for errors only.",
    ),
    (
        "deterministic",
        ("on",),
        COMPUTE | MEMORY | MORE_WORK,
        "Deterministic algorithms are on; some of them are far slower.",
    ),
    (
        "env:PYTORCH_NO_CUDA_MEMORY_CACHING",
        ("1",),
        COMPUTE | WAITING | MEMORY,
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1 asks the driver for every tensor: for looking for errors, not for training.",
    ),
    (
        "env:TORCH_DISTRIBUTED_DEBUG",
        ("detail",),
        COMMUNICATION | FRAGMENTED,
        "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every call.",
    ),
    ("env:NCCL_DEBUG", ("trace",), COMMUNICATION, "NCCL_DEBUG=TRACE writes down every call."),
    ("env:NCCL_P2P_DISABLE", ("1",), COMMUNICATION, "NCCL_P2P_DISABLE=1 sends data between devices through the host."),
    ("env:NCCL_IB_DISABLE", ("1",), COMMUNICATION, "NCCL_IB_DISABLE=1 sends data between hosts over TCP."),
    (
        "env:MKL_CBWR",
        OLD_INSTRUCTIONS,
        COMPUTE,
        "MKL_CBWR forbids the instructions of newer processors, for results that are the same everywhere.",
    ),
    ("env:PYTHONDEVMODE", ("1",), PYTHON | LOADING, "PYTHONDEVMODE=1 checks memory and makes Python slower."),
)
