"""Two jobs of a production cluster, as operator times: who is to blame, and when nobody is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import ProcessGroup, Worker
from eroica.pipeline import analyze

JOBS = Path(__file__).parents[2] / "../shared/traces/jobs"


def diagnosed(name: str) -> Verdict:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: it reads these files")
    if not JOBS.is_dir():
        pytest.skip(f"there are no recorded jobs in {JOBS}")
    table = parquet.read_table(JOBS / f"trace-{name}.parquet")
    wanted = ("rank", "step", "optype", "start_ts", "duration")
    columns = {column: np.asarray(table.column(column).to_numpy()) for column in wanted}
    patterns = patterns_of(columns, read_layout(JOBS / f"meta-{name}.yaml"))
    window = Window(
        window_id=1,
        purpose="trace",
        kind="trace",
        reason="",
        first_iteration=0,
        last_iteration=patterns[0].last_iteration,
    )
    return analyze(name, window, patterns)


def test_the_four_workers_of_the_slow_stage_are_blamed_for_what_was_published_and_who_waits_is_not() -> None:
    slow_stage = diagnosed("AR")
    causes = [finding for finding in slow_stage.findings if finding.role == "cause"]
    assert slow_stage.verdict == "slow"
    assert [(cause.cause, cause.workers) for cause in causes] == [("compute-slow", (0, 1, 2, 3))]
    assert causes[0].gain is not None and 1 / (1 - causes[0].gain) == pytest.approx(1.97, rel=0.1)
    assert causes[0].confidence > 0.75
    symptoms = [finding for finding in slow_stage.findings if finding.role == "symptom"]
    assert symptoms and all(not set(symptom.workers) & {0, 1, 2, 3} for symptom in symptoms)


def test_a_long_last_stage_is_the_models_and_nobodys_fault_and_costs_what_was_published() -> None:
    long_stage = diagnosed("ST")
    causes = [finding for finding in long_stage.findings if finding.role == "cause"]
    assert [(cause.cause, cause.workers) for cause in causes] == [("stage-imbalance", ())]
    assert "last of 4 pipeline stages (workers 6 and 7)" in long_stage.summary
    assert causes[0].gain is not None and 1 / (1 - causes[0].gain) == pytest.approx(1.18, abs=0.05)


Floats = NDArray[np.float64]
_COMPUTE = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}
#: Communication that its group's members leave together: kind, and which group. Clipping gradients holds an all-reduce
#: of everybody's norm, and all leave it within a millisecond.
_TOGETHER = {
    "grads-reduce-scatter": ("reduce_scatter", "DATA_PARALLEL_GROUP"),
    "params-all-gather": ("all_gather", "DATA_PARALLEL_GROUP"),
    "embedding-grads-all-reduce": ("all_reduce", "EMBEDDING_GROUP"),
    "optimizer-clip-main-grad": ("all_reduce", "default_pg"),
}
_POINT_TO_POINT = {
    "forward-send": ("send", 1),
    "forward-recv": ("recv", -1),
    "backward-send": ("send", -1),
    "backward-recv": ("recv", 1),
}


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel dimensions; ranks count tensor first, then data, then pipeline."""

    tensor: int
    data: int
    pipeline: int

    @property
    def world(self) -> int:
        return self.tensor * self.data * self.pipeline

    def rank(self, tensor: int, data: int, stage: int) -> int:
        return tensor + self.tensor * (data + self.data * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tensor, rank // self.tensor % self.data, rank // self.tensor // self.data

    def groups(self, rank: int) -> tuple[ProcessGroup, ...]:
        """The groups of one worker, named and described as Megatron-LM does."""
        tensor, data, stage = self.place(rank)
        pipeline = tuple(self.rank(tensor, data, one) for one in range(self.pipeline))
        members = {
            "TENSOR_MODEL_PARALLEL_GROUP": tuple(self.rank(one, data, stage) for one in range(self.tensor)),
            "DATA_PARALLEL_GROUP": tuple(self.rank(tensor, one, stage) for one in range(self.data)),
            "PIPELINE_MODEL_PARALLEL_GROUP": pipeline,
            "EMBEDDING_GROUP": (pipeline[0], pipeline[-1]),
        }
        found = [ProcessGroup(name="0", description="default_pg", ranks=tuple(range(self.world)), backend="nccl")]
        for description, ranks in members.items():
            if len(ranks) > 1 and rank in ranks:
                name = f"{description} {'-'.join(map(str, ranks))}"
                found.append(ProcessGroup(name=name, description=description, ranks=ranks, backend="nccl"))
        return tuple(found)


def read_layout(path: Path) -> Layout:
    """The sizes that a job's description states."""
    lines = (line.split(":") for line in path.read_text(encoding="utf-8").splitlines() if ":" in line)
    stated = {name.strip(): value.strip() for name, value in lines}
    return Layout(int(stated["tp_size"]), int(stated["dp_size"]), int(stated["pp_size"]))


def patterns_of(columns: dict[str, NDArray[np.generic]], layout: Layout) -> list[WorkerPattern]:
    """Patterns of all workers.

    Args:
        columns: `rank`, `step`, `optype`, `start_ts` and `duration` of each operator, seconds.
        layout: Of the job.
    """
    steps, iteration = np.unique(columns["step"], return_inverse=True)
    start = columns["start_ts"].astype(np.float64) * 1e6
    end = start + columns["duration"].astype(np.float64) * 1e6
    lengths_I = np.zeros(len(steps))
    np.maximum.at(lengths_I, iteration, end)
    offset = np.concatenate([[0.0], np.cumsum(lengths_I)])
    patterns = []
    for leader in np.unique(columns["rank"]).tolist():
        rows = np.flatnonzero(columns["rank"] == leader)
        rows = rows[np.lexsort((start[rows], iteration[rows]))]
        at = offset[iteration[rows]]
        own = _Own(columns["optype"][rows].astype(str), start[rows] + at, end[rows] + at, iteration[rows], offset)
        patterns += [own.pattern(leader + tensor, layout) for tensor in range(layout.tensor)]
    return patterns


class _Own:
    """One recording."""

    def __init__(
        self, names: NDArray[np.str_], start: Floats, end: Floats, iteration: NDArray[np.intp], edges: Floats
    ) -> None:
        self.names, self.start, self.end, self.iteration, self.edges = names, start, end, iteration, edges
        self.critical = self._critical()

    def _critical(self) -> Floats:
        """Critical part of each operator. float64 [N]."""
        cuts = np.unique(np.concatenate([self.start, self.end, self.edges]))
        low, high = np.searchsorted(cuts, self.start), np.searchsorted(cuts, self.end)
        owner = np.full(len(cuts) - 1, -1, dtype=np.intp)
        computes = np.isin(self.names, list(_COMPUTE))
        for chosen in (~computes, computes):
            for number in np.flatnonzero(chosen)[::-1].tolist():
                owner[low[number] : high[number]] = number
        for gap in np.flatnonzero(owner < 0)[::-1].tolist():
            following = owner[gap + 1] if gap + 1 < len(owner) else -1
            if following >= 0 and not computes[following]:
                owner[gap] = following
        taken = owner >= 0
        return np.bincount(owner[taken], weights=np.diff(cuts)[taken], minlength=len(self.names))

    def pattern(self, rank: int, layout: Layout) -> WorkerPattern:
        groups = layout.groups(rank)
        by_description = {group.description: group for group in groups}
        kept = [name for name in np.unique(self.names).tolist() if name != "gc"]
        rows = [self._row(name, by_description) for name in kept]
        wait = sum(series for (row, series) in rows if row.key.kind == "collective")
        window_s = float(self.edges[-1] - self.edges[0]) / 1e6
        iterations = len(self.edges) - 1
        return WorkerPattern(
            worker=Worker(global_rank=rank, world_size=layout.world, device="cuda:0"),
            window_id=1,
            first_iteration=0,
            last_iteration=iterations,
            duration_s=window_s,
            iteration_us=encode_series(np.diff(self.edges).astype(np.float32), exact=True),
            wait_us=encode_series(np.asarray(wait, dtype=np.float32), exact=True),
            functions=tuple(sorted((row for row, _ in rows), key=lambda row: -row.beta)),
            collectives=tuple(self._records(rank, layout, by_description)),
            process_groups=groups,
            idle_s=max(window_s - float(self.critical.sum()) / 1e6, 0.0),
            has_accelerator=True,
            found_by="profiler steps",
        )

    def _row(self, name: str, groups: dict[str, ProcessGroup]) -> tuple[FunctionPattern, Floats]:
        mine = self.names == name
        series_I = np.bincount(self.iteration[mine], weights=self.critical[mine], minlength=len(self.edges) - 1)
        long = (self.end - self.start)[mine]
        row = FunctionPattern(
            key=_key(name, groups),
            beta=float(series_I.sum() / (self.edges[-1] - self.edges[0])),
            critical_s=float(series_I.sum()) / 1e6,
            total_s=float(long.sum()) / 1e6,
            count=int(mine.sum()),
            max_s=float(long.max()) / 1e6,
            active_iterations=int(np.count_nonzero(series_I)),
            per_iteration_us=encode_series(series_I.astype(np.float32)),
        )
        return row, series_I

    def _records(self, rank: int, layout: Layout, groups: dict[str, ProcessGroup]) -> list[CollectiveRecord]:
        found = []
        for name, (kind, description) in _TOGETHER.items():
            rows = np.flatnonzero(self.names == name)
            if description in groups and len(rows):
                found.append(self._record(rows, groups[description].name, kind, np.zeros(0)))
        tensor, data, stage = layout.place(rank)
        for kind in ("send", "recv"):
            beside = np.array([_POINT_TO_POINT.get(name, ("", 0))[1] for name in self.names.tolist()])
            goes = np.array([_POINT_TO_POINT.get(name, ("", 0))[0] == kind for name in self.names.tolist()])
            rows = np.flatnonzero(goes & (stage + beside >= 0) & (stage + beside < layout.pipeline))
            peers = np.array([layout.rank(tensor, data, stage + step) for step in beside[rows].tolist()])
            if len(rows):
                found.append(self._record(rows, groups["PIPELINE_MODEL_PARALLEL_GROUP"].name, kind, peers))
        return found

    def _record(self, rows: NDArray[np.intp], group: str, kind: str, peers: NDArray[np.generic]) -> CollectiveRecord:
        return CollectiveRecord(
            group=group,
            kind=kind,
            paired_by="order",
            executions=len(rows),
            sequence=encode_series(np.arange(len(rows), dtype=np.int64)),
            iteration=encode_series(self.iteration[rows].astype(np.int32)),
            duration_us=encode_series((self.end - self.start)[rows].astype(np.float32)),
            critical_us=encode_series(self.critical[rows].astype(np.float32)),
            peers=encode_series(peers.astype(np.int32)),
            end_us=encode_series(self.end[rows]),
        )


def _key(name: str, groups: dict[str, ProcessGroup]) -> FunctionKey:
    if name in _COMPUTE:
        return FunctionKey(kind="compute", name=name, thread="device", phase=_COMPUTE[name])
    description = _TOGETHER[name][1] if name in _TOGETHER else "PIPELINE_MODEL_PARALLEL_GROUP"
    group = groups[description].name if description in groups else ""
    return FunctionKey(kind="collective", name=name, thread="collective", group=group)
