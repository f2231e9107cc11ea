"""Table of the verdicts that each injected fault must get."""

from __future__ import annotations

from dataclasses import dataclass

from eroica.demo import rehearsal as demo
from eroica.demo.faults import FaultPlan
from eroica.demo.rehearsal import Judgement
from eroica.model.verdict import Verdict

LAYOUTS = ("ddp", "fsdp2", "pipeline")
#: Layouts whose batches may have any size on any worker.
_COPIES = ("ddp", "fsdp2")


@dataclass(frozen=True)
class Expectation(demo.Expectation):
    """The right answer to one fault, and the job in which it can be there.

    Attributes:
        ends_job: The job ends with it, by itself.
        worker: The only worker that can have it, where it matters; None = anyone.
        alone: One worker has it, though others of its host may suffer as much.
        layouts: Layouts in which it can be.
        in_copies: Whether it costs anything where copies of a pipeline share few cores: then all their work together
            sets the pace, however it is divided.
        onsets: When it can begin, at the job's "start" or in its "middle".
        job: Arguments that the training needs for it.
        calm_job: Arguments of the same job without it, where it lies in them; None = the same.
        variables: What the environment of those who have it says instead, from the job's start.
    """

    ends_job: bool = False
    worker: int | None = None
    alone: bool = False
    layouts: tuple[str, ...] = LAYOUTS
    in_copies: bool = True
    onsets: tuple[str, ...] = ("start", "middle")
    job: tuple[str, ...] = ()
    calm_job: tuple[str, ...] | None = None
    variables: tuple[str, ...] = ()

    @property
    def one_worker(self) -> bool:
        """Whether the fault belongs to one worker (else to all)."""
        return self.scope == "some" or self.alone or self.worker is not None

    @property
    def blocked(self) -> bool:
        """Whether the job does not move any more."""
        return self.verdict == "blocked"


_PYTHON = "python-on-critical-path"
_CROWDED = frozenset({"sibling-process", "misconfiguration"})
#: Causes that say the same of a processor that is taken away: seen as operators that take longer, or as waiting.
_SLOWED = frozenset({"compute-slow", "cpu-contention", "misconfiguration", "sibling-process"})


def _healthy(*job: str, onsets: tuple[str, ...] = ("start",), layouts: tuple[str, ...] = LAYOUTS) -> Expectation:
    return Expectation("", "", "healthy", job=job, onsets=onsets, layouts=layouts)


def _blocked(cause: str, file: str = "", ends_job: bool = False) -> Expectation:
    return Expectation(cause, "some", "blocked", file, ends_job=ends_job, layouts=("ddp",), onsets=("middle",))


_LOADING: dict[str, Expectation] = {
    "slow-loader": Expectation("slow-data-loading", "some", function="_read_block"),
    "slow-loader-children": Expectation(
        "slow-data-loading", "some", function="_read_block", job=("--loader-workers", "1")
    ),
    "slow-storage": Expectation(
        "slow-storage-read", "some", function="_fetch_block", also=frozenset({"slow-data-loading"})
    ),
    "few-loader-workers": Expectation(
        "slow-data-loading",
        "all",
        function="_read_block",
        also=frozenset({"misconfiguration"}),
        job=("--loader-workers", "1"),
        layouts=_COPIES,
    ),
    "many-loader-workers": Expectation(
        "cpu-contention",
        "any",
        also=frozenset({"misconfiguration", "slow-data-loading"}),
        job=("--loader-workers", "5"),
        layouts=_COPIES,
    ),
    "heavy-collate": Expectation("slow-data-loading", "some", function="_count_pairs", also=frozenset({_PYTHON})),
    "load-imbalance": Expectation("load-imbalance", "some", layouts=_COPIES),
    "wandering-load": Expectation("load-imbalance", "rotating", layouts=_COPIES),
}
_STEPS: dict[str, Expectation] = {
    "gc-pause": Expectation("garbage-collection", "rotating"),
    "slow-compute": Expectation("compute-slow", "some"),
    "slow-python": Expectation(_PYTHON, "all", function="_score_tokens"),
    "slow-backward": Expectation(_PYTHON, "some", function="scale_grad"),
    "blocking-checkpoint": Expectation("blocking-checkpoint", "some", function="save_state", worker=0),
    "blocking-log": Expectation("blocking-logging", "some", function="log_step"),
    "memory-copies": Expectation(
        "memory-operation-storm", "some", function="keep_weights", also=frozenset({"load-imbalance"})
    ),
    "tiny-collectives": Expectation(
        "fragmented-collectives", "all", function="reduce_norms", also=frozenset({"misconfiguration"})
    ),
    "needless-sync": Expectation(
        "fragmented-collectives",
        "all",
        also=frozenset({"misconfiguration"}),
        layouts=("ddp",),
        job=("--accumulate", "6", "--batch", "2"),
    ),
    "serial-collectives": Expectation(
        "fragmented-collectives",
        "all",
        also=frozenset({"misconfiguration"}),
        layouts=("ddp",),
        onsets=("start",),
        job=("--layers", "6", "--serial-exchange"),
        calm_job=("--layers", "6"),
    ),
    "busy-thread": Expectation(_PYTHON, "some", function="_count_on", also=frozenset({"cpu-contention"})),
    "anomaly-mode": Expectation(
        _PYTHON,
        "some",
        also=frozenset({"misconfiguration", "load-imbalance"}),
        layouts=("ddp", "pipeline"),  # under FSDP2 calls of collectives set the pace of so small a model
        job=("--layers", "6", "--width", "32"),
    ),
    "heavy-stage": Expectation(
        "stage-imbalance",
        "all",  # nobody is to blame for how the model was cut
        layouts=("pipeline",),
        in_copies=False,
        onsets=("start",),
        job=("--layers", "5", "--first-layers", "4"),
        calm_job=("--layers", "5"),
    ),
    "small-buckets": Expectation(
        "fragmented-collectives",
        "all",
        also=frozenset({"misconfiguration"}),
        layouts=("ddp",),
        onsets=("start",),
        job=("--layers", "4", "--bucket-mb", "0.0001"),
        calm_job=("--layers", "4"),
    ),
}
_HOSTS: dict[str, Expectation] = {
    "burners": Expectation("sibling-process", "any", also=_SLOWED, worker=0),
    "memory-hog": Expectation("sibling-process", "any", also=_SLOWED, worker=0),
    "pinned-cpu": Expectation("cpu-contention", "any", also=_CROWDED, alone=True, job=("--pace-ms", "40")),
    "one-core": Expectation("cpu-contention", "any", also=_CROWDED),
    "cpu-quota": Expectation("compute-slow", "some", also=frozenset({"cpu-contention", "misconfiguration"})),
    "wrong-threads": Expectation(
        "misconfiguration",
        "some",
        also=frozenset({"cpu-contention", "compute-slow"}),
        onsets=("start",),
        job=("--threads", "0"),
        calm_job=("--threads", "0"),
        variables=("OMP_NUM_THREADS=64",),
    ),
}
_BLOCKED: dict[str, Expectation] = {
    "hang": _blocked("desynchronized-collective"),
    "hang-queue": _blocked("blocked-in-user-code", "reading.py"),
    "hang-lock": _blocked("blocked-in-user-code", "bookkeeping.py"),
    "hang-interpreter-lock": _blocked("held-interpreter-lock", "bookkeeping.py"),
    "hang-storage": _blocked("blocked-in-user-code", "reading.py"),
    "dead-worker": _blocked("dead-worker", ends_job=True),
    "stopped-worker": _blocked("dead-worker"),
}
_HEALTHY: dict[str, Expectation] = {
    "none": _healthy(),
    "warm-up": _healthy(),
    "evaluation": _healthy("--evaluate-every", "40"),
    "checkpoints": _healthy("--checkpoint-every", "40"),
    "changing-length": _healthy(layouts=_COPIES),
    "batch-ramp": _healthy(layouts=_COPIES),
    "learning-rate": _healthy("--halve-rate-every", "100"),
    "pause-of-all": _healthy(onsets=("middle",)),
    "noisy-host": Expectation("", "", "healthy", worker=0),
}
EXPECTED: dict[str, Expectation] = {**_LOADING, **_STEPS, **_HOSTS, **_BLOCKED, **_HEALTHY}


def culprit(fault: str, worker: int) -> int:
    """Who has the fault if `worker` is asked to."""
    only = EXPECTED[fault].worker
    return worker if only is None else only


def demo_plan(fault: str, worker: int, from_iteration: int) -> FaultPlan:
    """The plan of `fault`: on `worker` alone where it is a fault of one worker."""
    one = EXPECTED[fault].one_worker
    return FaultPlan(fault, culprit(fault, worker) if one else None, from_iteration)


def judge(verdict: Verdict, fault: str, worker: int) -> Judgement:
    """Whether `verdict` names `fault`, a key of `EXPECTED`, which `worker` was asked to have."""
    return demo.judge(verdict, fault, culprit(fault, worker), EXPECTED[fault])


def judge_parts(verdict: Verdict, fault: str, worker: int) -> dict[str, bool]:
    """What is right of the same; see `eroica.demo.rehearsal.judge_parts`."""
    return demo.judge_parts(verdict, culprit(fault, worker), EXPECTED[fault])
