"""Replayed iterations as PyTorch's profiler writes them, one file for each rank.

Own work is a kernel of one stream, a call a kernel of another from the rank's coming to the common end, with the
arguments that NCCL's kernels carry. So a recording of ranks that ran elsewhere says who came late and who waited.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prismllm.graph import Graph, rows_of
from prismllm.model import Call
from prismllm.replay import Iteration, Track

Event = dict[str, Any]
START_US = 1_700_000_000_000_000.0
_NAMES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
          "broadcast": "Broadcast", "reduce": "Reduce", "all_to_all": "SendRecv", "send": "SendRecv",
          "recv": "SendRecv", "barrier": "AllReduce"}  # fmt: skip
_SAID = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
         "all_to_all": "all_to_all"}  # fmt: skip
_HOST, _COMPUTE, _COMMUNICATION = 1, 7, 20
_SHORTEST_S = 2e-6
_FIRST_STEP = 10


def write_traces(
    graph: Graph, iterations: Sequence[Iteration], folder: Path, ranks: Iterable[int] | None = None
) -> int:
    """Write `rank<R>.json.gz` of finished iterations, one after the other, for each rank; return how many files."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = [{"pg_name": str(number), "pg_desc": group.description, "pg_size": len(group.ranks), "ranks": group.ranks}
              for number, group in enumerate(graph.job.groups)]  # fmt: skip
    encoder = msgspec.json.Encoder()
    rows = rows_of(graph.blocks, ranks)
    for at, row, rank in rows:
        tracks = [(one.tracks[at], one) for one in iterations]
        info = {"backend": "nccl", "rank": rank, "world_size": graph.job.world,
                "pg_config": [groups[number] for number in graph.groups_of.get(rank, [])]}  # fmt: skip
        trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "replayed"}], "distributedInfo": info,
                 "traceEvents": _events(graph, tracks, row), "traceName": f"rank{rank}.json"}  # fmt: skip
        with gzip.open(folder / f"rank{rank}.json.gz", "wb", compresslevel=1) as file:
            file.write(encoder.encode(trace))
    return len(rows)


class _Recorder:
    """Events of one rank."""

    def __init__(self, rank: int) -> None:
        self.pid = 1000 + rank
        self.host: list[Event] = []
        self.device: list[Event] = []
        self._links = 0

    def launch(self, name: str, stream: int, begin_s: float, end_s: float, launched_s: float, said: Event) -> None:
        """A kernel and the call of the driver that launched it."""
        self._links += 1
        link = {"correlation": self._links}
        self.host.append(self._event("cuda_runtime", "cudaLaunchKernel", self.pid, _HOST, launched_s, launched_s + 1e-6,
                                     link))  # fmt: skip
        self.device.append(self._event("kernel", name, 0, stream, begin_s, end_s,
                                       {"device": 0, "stream": stream, **link, **said}))  # fmt: skip

    def mark(self, category: str, name: str, begin_s: float, end_s: float) -> None:
        """An event of the host."""
        self.host.append(self._event(category, name, self.pid, _HOST, begin_s, end_s))

    @staticmethod
    def _event(category: str, name: str, pid: int, tid: int, begin_s: float, end_s: float,
               args: Event | None = None) -> Event:  # fmt: skip
        event: Event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
                        "ts": round(START_US + 1e6 * begin_s, 3),
                        "dur": round(max(0.5, 1e6 * (end_s - begin_s)), 3)}  # fmt: skip
        return {**event, "args": args} if args else event


def _events(graph: Graph, tracks: Sequence[tuple[Track, Iteration]], row: int) -> list[Event]:
    rank = int(tracks[0][0].block.ranks[row])
    recorder = _Recorder(rank)
    step = graph.job.classes[tracks[0][0].block.rank_class].step
    per_group = Counter(call.group for call in step.calls)
    for number, (track, iteration) in enumerate(tracks):
        _iteration(graph, recorder, track, iteration, row, number, per_group)
    recorder.host.sort(key=lambda event: float(event["ts"]))
    return [*recorder.host, *recorder.device]


def _iteration(
    graph: Graph, recorder: _Recorder, track: Track, iteration: Iteration, row: int, number: int,
    per_group: dict[int, int],
) -> None:  # fmt: skip
    step = graph.job.classes[track.block.rank_class].step
    family_of = graph.layout.family_of
    now = begin = float(track.begin_s[row])
    seen: Counter[int] = Counter()
    busy: dict[int, float] = {}
    rank = int(track.block.ranks[row])
    for at, event in enumerate(step.events):
        reached, left = float(track.at_s[at, row]), float(track.left_s[at, row])
        call = step.call_at(at)
        if reached - now > _SHORTEST_S:
            _own_work(recorder, f"before {call.op} at {call.site}", now, reached)
        if event >= 0:
            operation = int(track.block.operations[event][row])
            end = float(iteration.done_s[operation])
            seen[call.group] += 1
            sequence = number * per_group[call.group] + seen[call.group]
            mine = graph.layout.group_of(family_of(call.group), rank)
            start = max(reached, busy.get(call.group, 0.0) if not call.is_pairwise else 0.0)
            busy[call.group] = end
            said = _arguments(graph, call, mine, sequence, graph.pair[operation])
            name = f"ncclDevKernel_{_NAMES.get(call.op, 'SendRecv')}{'_Sum_f32_RING_LL' if 'reduce' in call.op else ''}"
            stream = _COMMUNICATION + family_of(call.group) * 3 + ("send", "recv").index(call.op) + 1 if (
                call.is_pairwise) else _COMMUNICATION + family_of(call.group) * 3  # fmt: skip
            recorder.launch(f"{name}(ncclDevComm*)", stream, start, end, reached - 1e-6, said)
        now = left
    end = float(track.end_s[row])
    if end - now > _SHORTEST_S:
        _own_work(recorder, "to the end of the iteration", now, end)
    recorder.mark("user_annotation", f"ProfilerStep#{_FIRST_STEP + number}", begin, end - 2e-6)


def _own_work(recorder: _Recorder, name: str, begin_s: float, end_s: float) -> None:
    recorder.mark("cpu_op", f"aten::work {name}", begin_s, min(end_s, begin_s + 2e-6))
    recorder.launch(f"work_kernel {name}", _COMPUTE, begin_s + 1e-6, end_s, begin_s + 0.5e-6, {})


def _arguments(graph: Graph, call: Call, group: int, sequence: int, pair: Any) -> Event:
    members = graph.job.groups[group].ranks
    said: Event = {
        "Collective name": _SAID.get(call.op, call.op), "Process Group Name": str(group),
        "Process Group Description": graph.job.groups[group].description, "Group size": len(members),
        "In msg nelems": max(1, call.nbytes // 4), "dtype": "Float", "Seq": sequence,
    }  # fmt: skip
    if call.is_pairwise:
        said |= {"Dst Rank": int(pair[1])} if call.op == "send" else {"Src Rank": int(pair[0])}
    return said
