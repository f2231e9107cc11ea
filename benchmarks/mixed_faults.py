"""Two faults at once in real jobs at default settings: are both told, each with its workers and its gain, and no third?

    python benchmarks/mixed_faults.py --out benchmarks/results/mixed.jsonl --seeds 0,1

Goes on where it was stopped. Jobs are data-parallel, four workers, both faults from iteration 300 on; of a heavy stage,
one pipeline of two workers that is slow from its start and is told what an iteration should take. What each fault
costs is measured: beside the job with both, the same training runs with each alone, without Eroica. A fault's cost is
the larger of what goes when it alone is taken out, and what it adds to a job without the other; faults on two workers
hide each other.

`link-and-collections` needs root: six workers on three network namespaces. What the link alone costs is not measured
there, so any gain above 0 is right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import host_faults
from corpus_collect import watch
from eroica.demo.faults import VARIABLE, FaultPlan
from eroica.demo.rehearsal import MIDDLE, names_workers, running, shows
from eroica.model.verdict import Finding, Verdict
from eroica.settings import Settings
from faults import PACE_LINES, START, paces
from injected.expected import EXPECTED, culprit
from injected.rehearsal import Rehearsal, write_endless
from machine import machine_facts, revision
from support.hosts import Hosts, available
from support.node_jobs import SETTINGS, end_job, start_job, wait_for_status

#: Mixtures: two faults each, and by how many ranks the worker of each is after the one that was asked for.
MIXED: dict[str, tuple[tuple[str, int], ...]] = {
    "loader-and-compute": (("slow-loader", 0), ("slow-compute", 1)),
    "checkpoint-and-quota": (("blocking-checkpoint", 0), ("cpu-quota", 0)),
    "backward-and-log": (("slow-backward", 0), ("blocking-log", 1)),
    "python-and-loader": (("slow-python", 0), ("slow-loader", 0)),
    "collectives-and-compute": (("tiny-collectives", 0), ("slow-compute", 0)),
    "collections-and-loader": (("gc-pause", 0), ("slow-loader", 0)),
    "stage-and-compute": (("heavy-stage", 0), ("slow-compute", 0)),
}
#: A told gain is right within this factor of what the fault costs, or within this share of the iteration.
GAIN_FACTOR = 2.0
GAIN_APART = 0.05
WORKERS = 4
#: Windows with the faults that are waited for.
WINDOWS = 2
#: Lines of the training are printed after so many iterations.
LOG_EVERY = 50
#: A job with one fault alone, or none, has it from here on, and is watched for so long at most, s.
ALONE_FROM, ALONE_S = 50, 90.0
#: The mixture that takes three hosts: iteration from which garbage is collected, and its faults.
ON_HOSTS, COLLECT_FROM = "link-and-collections", 150
COLLECTIONS, LINK = "gc-pause", host_faults.FAULTS["slow-link"]._replace(rate="240mbit")
#: Settings that jobs on hosts shorten, at their defaults.
DEFAULTS = {name: str(getattr(Settings(), name)).lower() for name in SETTINGS}


class Job(NamedTuple):
    """How a mixture's job differs: its layout, its arguments, the same without what lies in them, and its workers.

    Where pipelines share few cores, all their work together sets the pace: how it is divided costs in a single one.
    """

    layout: str = "ddp"
    onset: int = MIDDLE
    arguments: tuple[str, ...] = ()
    calm: tuple[str, ...] = ()
    in_arguments: str = ""
    workers: int = WORKERS


JOBS = {
    "stage-and-compute": Job(
        "pipeline",
        START,
        ("--layers", "5", "--first-layers", "4"),
        ("--layers", "5"),
        in_arguments="heavy-stage",
        workers=2,
    )
}


def mixed_parts(name: str, worker: int, workers: int) -> tuple[tuple[str, int], ...]:
    """Return the faults of a mixture, each with the worker that has it. Some faults only one certain worker can have.

    Args:
        name: A key of `MIXED`.
        worker: Who is asked to have the first one.
        workers: Workers of the job.
    """
    parts = [(fault, culprit(fault, (worker + apart) % workers)) for fault, apart in MIXED[name]]
    taken = {one for fault, one in parts if EXPECTED[fault].worker is not None}
    return tuple(
        (fault, (one + 1) % workers if one in taken and EXPECTED[fault].worker is None else one) for fault, one in parts
    )


def mixed_plans(name: str, worker: int, workers: int, from_iteration: int) -> tuple[FaultPlan, ...]:
    """The plans of a mixture; see `mixed_parts`."""
    parts = mixed_parts(name, worker, workers)
    return tuple(FaultPlan(fault, one if EXPECTED[fault].one_worker else None, from_iteration) for fault, one in parts)


def judge_mixed(verdict: Verdict, name: str, worker: int, gains: Mapping[str, float] | None = None) -> dict[str, bool]:
    """Which faults of a mixture a verdict tells, by name: cause, workers and file of one of its causes, with a gain.

    Args:
        verdict: What Eroica said; one that is not "slow" tells none.
        name: A key of `MIXED`.
        worker: Who was asked to have the first one.
        gains: What each fault costs of an iteration, 0-1; a gain that is told must be as much within a factor of
            `GAIN_FACTOR`, or within `GAIN_APART`. None = any gain above 0 will do.
    """
    told: dict[str, bool] = {}
    left = list(_causes(verdict)) if verdict.verdict == "slow" else []
    for fault, own in mixed_parts(name, worker, verdict.coverage.workers_expected):
        true = None if gains is None else gains[fault]
        found = next((one for one in left if tells(one, fault, own) and is_gain(one.gain, true)), None)
        told[fault] = found is not None
        left = [one for one in left if one is not found]
    return told


def strange_causes(verdict: Verdict, name: str, worker: int) -> tuple[str, ...]:
    """Slugs of causes in a verdict that tell neither fault of a mixture; see `judge_mixed`."""
    parts = mixed_parts(name, worker, verdict.coverage.workers_expected)
    return tuple(one.cause for one in _causes(verdict) if not any(tells(one, fault, own) for fault, own in parts))


def tells(found: Finding, fault: str, worker: int) -> bool:
    """Return whether a cause tells a fault: its slug, its workers and its file.

    Args:
        found: A finding that is a cause.
        fault: A key of `EXPECTED`.
        worker: Global rank of the worker that has it.
    """
    wanted = EXPECTED[fault]
    return found.cause in wanted.causes and names_workers(found, worker, wanted) and shows(found, wanted.file)


def is_gain(told: float | None, true: float | None) -> bool:
    """Whether a gain that is told is that of a fault, within a factor of `GAIN_FACTOR` or within `GAIN_APART`.

    Args:
        told: Share of the iteration, 0-1.
        true: The same as it was measured; None = not known, so any above 0 is right.
    """
    if not told:
        return False
    return true is None or true / GAIN_FACTOR <= told <= true * GAIN_FACTOR or abs(told - true) <= GAIN_APART


def _causes(verdict: Verdict) -> Iterator[Finding]:
    return (one for one in verdict.findings if one.role == "cause")


def run(name: str, seed: int, directory: Path) -> dict[str, Any]:
    """One job and those with each fault alone; what was told of each fault by the final verdict."""
    job = JOBS.get(name, Job())
    worker = 1 + seed % (job.workers - 1)
    plans = mixed_plans(name, worker, job.workers, job.onset)
    case = Rehearsal(
        "none", worker, job.workers, directory / "both",
        layout=job.layout, from_iteration=job.onset, seed=seed, settings={}, injected=plans, job=job.arguments,
    )  # fmt: skip
    alone = {
        plan.name: pace_of(
            replace(
                case,
                directory=directory / plan.name,
                injected=(replace(plan, from_iteration=ALONE_FROM),),
                job=job.arguments if plan.name == job.in_arguments else job.calm,
            )
        )
        for plan in plans
    }
    healthy_ms = 0.0
    if job.onset < MIDDLE:
        healthy_ms = pace_of(replace(case, directory=directory / "calm", injected=(), job=job.calm))
        case = replace(case, expected_iteration_s=healthy_ms / 1e3)
    case.directory.mkdir()
    watch(case, job.onset, WINDOWS, blocks=False)
    verdict, seen = case.verdict(), paces(case.log)
    calm = job.onset // LOG_EVERY
    healthy_ms = healthy_ms or median(seen[1:calm])
    gains = true_gains(healthy_ms, alone, median(seen[calm + 1 :] or seen[calm:]))
    told = dict.fromkeys(alone, False) if verdict is None else judge_mixed(verdict, name, worker, gains)
    strange = () if verdict is None else strange_causes(verdict, name, worker)
    return {
        **line(name, seed, verdict, told, strange),
        "gains": gains,
        "paces_ms": {"healthy": healthy_ms, **alone, "both": seen},
        "plans": [str(plan) for plan in plans],
    }


def line(
    name: str, seed: int, verdict: Verdict | None, told: Mapping[str, bool], strange: tuple[str, ...]
) -> dict[str, Any]:
    """What every line holds; "wrong" lists what is missing and what is too much."""
    causes = [one for one in verdict.findings if one.role == "cause"] if verdict is not None else []
    return {
        "key": f"{name}/{seed}",
        "told": dict(told),
        "strange": list(strange),
        "right": all(told.values()) and not strange,
        "wrong": [*(f"{fault} not told" for fault, so in told.items() if not so), *(f"{one} told" for one in strange)],
        "verdict": verdict.verdict if verdict is not None else "none",
        "summary": verdict.summary if verdict is not None else "",
        "causes": [[one.cause, one.function.name, list(one.workers), one.scope, one.gain] for one in causes],
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision(),
        "machine": machine_facts(),
        "load": round(os.getloadavg()[0], 2),
    }


def true_gains(healthy_ms: float, alone_ms: Mapping[str, float], both_ms: float) -> dict[str, float]:
    """What each of two faults costs, as a share of an iteration with both, 0-1.

    Args:
        healthy_ms: An iteration without either.
        alone_ms: With each of them alone.
        both_ms: With both.
    """
    gains = {}
    for fault, own_ms in alone_ms.items():
        other_ms = next(ms for name, ms in alone_ms.items() if name != fault)
        gains[fault] = round(max(1 - other_ms / both_ms, (own_ms - healthy_ms) / both_ms, 0.0), 4)
    return gains


def median(values: list[float]) -> float:
    """Raises: ValueError: there are none."""
    if not values:
        raise ValueError("the job printed no pace")
    return sorted(values)[len(values) // 2]


def pace_of(case: Rehearsal) -> float:
    """An iteration of a job without Eroica, ms."""
    case.directory.mkdir()
    skipped = 1 + ALONE_FROM // LOG_EVERY
    until = time.monotonic() + ALONE_S
    with case.log.open("wb") as log, running(case, log, watched=False):
        while time.monotonic() < until and len(paces(case.log)) < skipped + PACE_LINES:
            time.sleep(0.5)
    return median(paces(case.log)[skipped:])


def run_on_hosts(seed: int, directory: Path) -> dict[str, Any]:
    """A slow link of one host, and garbage collection on all: the same for jobs on network namespaces."""
    plan = FaultPlan(COLLECTIONS, None, COLLECT_FROM)
    options = (*host_faults.TRAINING, "--seed", str(seed), "--iterations", "20000")
    with Hosts(3) as hosts:
        variables = {VARIABLE: str(plan)}
        started = start_job(
            hosts, directory, write_endless(directory / "code"), *options, settings=DEFAULTS, variables=variables
        )
        report = directory / "node0" / "report"
        wait_for_status(report, 120, lambda status: status.iteration >= COLLECT_FROM, started[0])
        host_faults.answer(hosts, LINK, report, started[0])
        verdict = end_job(directory, started, 60)[0].verdict
    causes = [one for one in verdict.findings if one.role == "cause"] if verdict is not None else []
    told = {
        fault: verdict is not None
        and verdict.verdict == "slow"
        and any(_tells_on_hosts(one, fault) and is_gain(one.gain, None) for one in causes)
        for fault in ("slow-link", COLLECTIONS)
    }
    strange = tuple(one.cause for one in causes if not any(_tells_on_hosts(one, fault) for fault in told))
    return {**line(ON_HOSTS, seed, verdict, told, strange), "gains": None}


def _tells_on_hosts(one: Finding, fault: str) -> bool:
    if fault == COLLECTIONS:
        return one.cause == "garbage-collection" and one.scope == "rotating"
    return one.cause == "slow-link" and (
        one.hosts == (f"node{host_faults.HOST}",) or one.workers == host_faults.WORKERS
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a run; appended to")
    parser.add_argument("--faults", default=",".join((*MIXED, ON_HOSTS)), help="with commas between them")
    parser.add_argument("--seeds", default="0")
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        done = {json.loads(text)["key"] for text in options.out.read_text().splitlines()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    possible, why = available()
    for seed in map(int, options.seeds.split(",")):
        for name in options.faults.split(","):
            if f"{name}/{seed}" in done:
                continue
            if name == ON_HOSTS and not possible:
                print(f"{name}/{seed}: not run: {why}")
                continue
            with tempfile.TemporaryDirectory(prefix="eroica-mixed-") as directory:
                place = Path(directory)
                found = run_on_hosts(seed, place) if name == ON_HOSTS else run(name, seed, place)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            word = "right" if found["right"] else f"WRONG ({', '.join(found['wrong'])})"
            print(f"{found['key']}: {word}: {found['summary']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
