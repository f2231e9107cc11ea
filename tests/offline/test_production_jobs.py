"""Two jobs of a production cluster, as operator times: who is to blame, and when nobody is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup, Worker
from eroica.pipeline import analyze
from support.fleet import synthesize_window
from support.recordings import recorded_collective

JOBS = Path(__file__).parents[2] / "../shared/traces/jobs"
Floats = NDArray[np.float64]
COMPUTE = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}
#: Communication that its group's members leave together: kind, and which group. Clipping gradients holds an all-reduce
#: of everybody's norm, and all leave it within a millisecond.
TOGETHER = {
    "grads-reduce-scatter": ("reduce_scatter", "DATA_PARALLEL_GROUP"),
    "params-all-gather": ("all_gather", "DATA_PARALLEL_GROUP"),
    "embedding-grads-all-reduce": ("all_reduce", "EMBEDDING_GROUP"),
    "optimizer-clip-main-grad": ("all_reduce", "default_pg"),
}
#: Communication with the stage before or behind.
BETWEEN = {
    "forward-send": ("send", 1),
    "forward-recv": ("recv", -1),
    "backward-send": ("send", -1),
    "backward-recv": ("recv", 1),
}
PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"


def diagnosed(name: str) -> Verdict:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: it reads these files")
    if not JOBS.is_dir():
        pytest.skip(f"there are no recorded jobs in {JOBS}")
    table = parquet.read_table(JOBS / f"trace-{name}.parquet")
    wanted = ("rank", "step", "optype", "start_ts", "duration")
    columns = {column: np.asarray(table.column(column).to_numpy()) for column in wanted}
    patterns = patterns_of(columns, read_layout(JOBS / f"meta-{name}.yaml"))
    window = msgspec.structs.replace(synthesize_window(patterns, "trace"), kind="trace")
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


class Layout(NamedTuple):
    """Sizes of the parallel dimensions; ranks count tensor first, then data, then pipeline."""

    tensor: int
    data: int
    pipeline: int

    def rank(self, tensor: int, data: int, stage: int) -> int:
        return tensor + self.tensor * (data + self.data * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tensor, rank // self.tensor % self.data, rank // self.tensor // self.data

    def groups(self, rank: int) -> dict[str, ProcessGroup]:
        """The groups of one worker by their description, named and described as Megatron-LM does."""
        tensor, data, stage = self.place(rank)
        pipeline = [self.rank(tensor, data, one) for one in range(self.pipeline)]
        members = {
            "default_pg": list(range(self.tensor * self.data * self.pipeline)),
            "TENSOR_MODEL_PARALLEL_GROUP": [self.rank(one, data, stage) for one in range(self.tensor)],
            "DATA_PARALLEL_GROUP": [self.rank(tensor, one, stage) for one in range(self.data)],
            PIPELINE: pipeline,
            "EMBEDDING_GROUP": [pipeline[0], pipeline[-1]],
        }
        return {
            about: ProcessGroup(name=f"{about} {ranks}", description=about, ranks=tuple(ranks), backend="nccl")
            for about, ranks in members.items()
            if len(ranks) > 1 and rank in ranks
        }


def read_layout(path: Path) -> Layout:
    """The sizes that a job's description states."""
    lines = (line.split(":") for line in path.read_text(encoding="utf-8").splitlines() if ":" in line)
    stated = {name.strip(): value.strip() for name, value in lines}
    return Layout(int(stated["tp_size"]), int(stated["dp_size"]), int(stated["pp_size"]))


def patterns_of(columns: dict[str, NDArray[np.generic]], layout: Layout) -> list[WorkerPattern]:
    """Patterns of all workers; `columns`: rank, step, optype, start_ts and duration of each operator, seconds."""
    steps, iteration = np.unique(columns["step"], return_inverse=True)
    start = columns["start_ts"].astype(np.float64) * 1e6
    end = start + columns["duration"].astype(np.float64) * 1e6
    lengths_I = np.zeros(len(steps))
    np.maximum.at(lengths_I, iteration, end)
    edges = np.concatenate([[0.0], np.cumsum(lengths_I)])
    patterns = []
    for leader in np.unique(columns["rank"]).tolist():
        rows = np.flatnonzero(columns["rank"] == leader)
        rows = rows[np.lexsort((start[rows], iteration[rows]))]
        at = edges[iteration[rows]]
        names = columns["optype"][rows].astype(str)
        own = Own(names, start[rows] + at, end[rows] + at, iteration[rows], edges)
        patterns += [own.pattern(leader + tensor, layout) for tensor in range(layout.tensor)]
    return patterns


class Own(NamedTuple):
    """Operators of one recording: names, times, iterations, and the edges of these."""

    names: NDArray[np.str_]
    start: Floats
    end: Floats
    iteration: NDArray[np.intp]
    edges: Floats

    def critical(self) -> Floats:
        """Critical part of each operator. float64 [N]."""
        cuts = np.unique(np.concatenate([self.start, self.end, self.edges]))
        low, high = np.searchsorted(cuts, self.start), np.searchsorted(cuts, self.end)
        owner = np.full(len(cuts) - 1, -1, dtype=np.intp)
        computes = np.isin(self.names, list(COMPUTE))
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
        groups, critical, iterations = layout.groups(rank), self.critical(), len(self.edges) - 1
        window_us = float(self.edges[-1] - self.edges[0])
        rows, wait = [], np.zeros(iterations)
        for name in (name for name in np.unique(self.names).tolist() if name != "gc"):
            mine = self.names == name
            series_I = np.bincount(self.iteration[mine], weights=critical[mine], minlength=iterations)
            wait += 0 if name in COMPUTE else series_I
            row = FunctionPattern(
                key=_key(name, groups),
                beta=float(series_I.sum() / window_us),
                critical_s=float(series_I.sum()) / 1e6,
                total_s=float((self.end - self.start)[mine].sum()) / 1e6,
                count=int(mine.sum()),
                active_iterations=int(np.count_nonzero(series_I)),
                per_iteration_us=encode_series(series_I.astype(np.float32)),
            )
            rows.append(row)
        lengths = np.diff(self.edges).astype(np.float32)
        tensor, data, stage = layout.place(rank)
        records = []
        for name, (kind, about) in TOGETHER.items():
            if about in groups:
                records.append((np.flatnonzero(self.names == name), about, kind, np.zeros(0)))
        for kind in ("send", "recv"):
            beside = np.array([BETWEEN.get(name, ("", 0))[1] for name in self.names.tolist()])
            goes = np.array([BETWEEN.get(name, ("", 0))[0] == kind for name in self.names.tolist()])
            chosen = np.flatnonzero(goes & (stage + beside >= 0) & (stage + beside < layout.pipeline))
            peers = np.array([layout.rank(tensor, data, stage + step) for step in beside[chosen].tolist()])
            records.append((chosen, PIPELINE, kind, peers))
        return WorkerPattern(
            worker=Worker(global_rank=rank, world_size=len(groups["default_pg"].ranks), device="cuda:0"),
            window_id=1,
            first_iteration=0,
            last_iteration=iterations,
            duration_s=window_us / 1e6,
            iteration_us=encode_series(lengths, exact=True),
            wait_us=encode_series(wait.astype(np.float32), exact=True),
            functions=tuple(sorted(rows, key=lambda row: -row.beta)),
            collectives=tuple(
                recorded_collective(
                    self.end[chosen],
                    (self.end - self.start)[chosen],
                    self.iteration[chosen].tolist(),
                    group=groups[about].name,
                    kind=kind,
                    critical_us=encode_series(critical[chosen].astype(np.float32)),
                    peers=encode_series(peers.astype(np.int32)),
                )
                for chosen, about, kind, peers in records
                if len(chosen)
            ),
            process_groups=tuple(groups.values()),
            idle_s=max((window_us - float(critical.sum())) / 1e6, 0.0),
            has_accelerator=True,
            found_by="profiler steps",
        )


def _key(name: str, groups: dict[str, ProcessGroup]) -> FunctionKey:
    if name in COMPUTE:
        return FunctionKey(kind="compute", name=name, thread="device", phase=COMPUTE[name])  # type: ignore[arg-type]
    about = TOGETHER[name][1] if name in TOGETHER else PIPELINE
    return FunctionKey(
        kind="collective", name=name, thread="collective", group=groups[about].name if about in groups else ""
    )
