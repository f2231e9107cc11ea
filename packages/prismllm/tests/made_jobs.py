"""Jobs made by hand, without a process; scripts made of a few lines; and a slow twin of the replay."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from prismllm.capture import CaptureOptions
from prismllm.costs import Costs
from prismllm.graph import Graph, Job, RankClass
from prismllm.model import Call, Group, Step

MS = 1_000_000
HEAD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    model(torch.ones(2, 4)).sum().backward()
"""
TAIL = """
    optimizer.step()
    optimizer.zero_grad()
"""


def script(folder, body: str, world: int = 2, before: str = "", **others) -> CaptureOptions:
    path = folder / "t.py"
    head, loop = HEAD.split("for number")
    path.write_text(head + before + "for number" + loop + "".join(f"    {line}\n" for line in body.splitlines()) + TAIL)
    chosen = {"slice_size": world, "timed": 1, "timeout_s": 20.0} | others
    return CaptureOptions((str(path),), world, folder / "c", **chosen)


def call(op: str, group: int, number: int = 0, nbytes: int = 1000, peer: int = -1, tag: int = 0, site: str = "t.py:1",
         signature: str = "float32 [250]") -> Call:  # fmt: skip
    return Call(op, group, number, signature, nbytes, peer, tag, site, "rule")


def step(*parts: Any) -> Step:
    """Calls and waits with the milliseconds of own work before them: 3, call, 2, ("wait", 0), 1."""
    calls: list[Call] = []
    events: list[int] = []
    segments: list[int] = []
    for part in parts:
        if isinstance(part, Call):
            events.append(len(calls))
            calls.append(part)
        elif isinstance(part, tuple):
            events.append(-1 - part[1])
        else:
            segments.append(int(part * MS))
    return Step(calls, events, segments)


def rank_class(rank: int, what: Step, samples: list[list[int]] | None = None) -> RankClass:
    return RankClass(rank, [rank], what, samples or [], 0.0, 0)


def group(*ranks: int, description: str = "g", site: str = "t.py:9") -> Group:
    return Group(list(ranks), description, site)


def data_parallel(world: int, own_ms: float = 10.0) -> Job:
    """Everybody works, then all reduce."""
    what = step(own_ms, call("all_reduce", 0), 0, ("wait", 0), 1)
    return Job(world, [group(*range(world), description="world")], [rank_class(0, what)], [0] * world, 8, ["train.py"])


def pipeline(stages: int, columns: int, own_ms: float = 5.0) -> Job:
    """Stage after stage, then each stage reduces over its columns; rank = column * stages + stage."""
    world = stages * columns
    groups = [group(*range(world), description="world")]
    groups += [
        group(*(column * stages + stage for stage in range(stages)), description="pp") for column in range(columns)
    ]
    groups += [group(*(column * stages + stage for column in range(columns)), description="dp", site="t.py:10")
               for stage in range(stages)]  # fmt: skip
    classes = []
    for stage in range(stages):
        parts: list[Any] = [0]
        count = 0
        if stage > 0:
            parts += [call("recv", 1, peer=stage - 1), 0, ("wait", 0)]
            count = 1
        if stage > 0:
            parts.append(own_ms)
        else:
            parts = [own_ms]
        if stage < stages - 1:
            parts += [call("send", 1, peer=stage + 1), 0]
            count += 1
        parts += [call("all_reduce", 1 + columns + stage), 0, ("wait", count), 0.5]
        classes.append(rank_class(stage, step(*parts)))
    return Job(world, groups, classes, [rank % stages for rank in range(world)], 8, ["train.py"])


def slow_twin(graph: Graph, costs: Costs, factors: dict[int, float] | None = None) -> dict[int, float]:
    """When each rank is through one iteration, rank by rank and call by call, without arrays."""
    job, layout = graph.job, graph.layout
    programs = {}
    for rank in range(job.world):
        programs[rank] = job.classes[job.class_of[rank]]
    now = dict.fromkeys(range(job.world), 0.0)
    at = dict.fromkeys(range(job.world), 0)
    inside = dict.fromkeys(range(job.world), False)
    launched: dict[Any, dict[int, float]] = defaultdict(dict)
    ended: dict[Any, float] = {}

    def key_of(rank: int, one: Call) -> tuple[Any, list[int]]:
        family = layout.family_of(one.group)
        row = layout.row[family, rank]
        ranks = layout.families[family][row].tolist()
        if one.is_pairwise:
            mine = programs[rank].rank
            size = len(ranks)
            away = layout.position[family, one.peer] - layout.position[family, mine]
            peer = ranks[(ranks.index(rank) + away) % size]
            ends = (rank, peer) if one.op == "send" else (peer, rank)
            return ("message", *ends, one.tag, one.number, family), sorted(ends)
        return ("collective", family, int(row), one.number), ranks

    moved = True
    while moved:
        moved = False
        for rank in range(job.world):
            what = programs[rank].step
            while at[rank] < len(what.events):
                if not inside[rank]:
                    now[rank] += what.segments_ns[at[rank]] / 1e9 * (factors or {}).get(rank, 1.0)
                    inside[rank] = True
                event = what.events[at[rank]]
                one = what.calls[event if event >= 0 else -1 - event]
                key, ranks = key_of(rank, one)
                if event >= 0:
                    launched[key][rank] = now[rank]
                else:
                    if len(launched[key]) < len(ranks):
                        break
                    if key not in ended:
                        free = 0.0
                        if key[0] == "collective" and key[3] > 0:
                            free = ended[(*key[:3], key[3] - 1)]
                        remote = len({one // job.local_world for one in ranks}) > 1
                        op = "send" if one.is_pairwise else one.op
                        cost = costs.seconds(op, one.nbytes, len(ranks), is_remote=remote)
                        ended[key] = max(*launched[key].values(), free) + cost
                    now[rank] = max(now[rank], ended[key])
                at[rank] += 1
                inside[rank] = False
                moved = True
            if at[rank] == len(what.events):
                now[rank] += what.segments_ns[-1] / 1e9 * (factors or {}).get(rank, 1.0)
                at[rank] += 1
                moved = True
    return now
