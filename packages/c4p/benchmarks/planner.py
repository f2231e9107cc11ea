"""How long a plan of 1,000 hosts x 8 ports takes, how even it is, and how few flows move when a job comes or goes."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from c4p.planner import Assignment, Demand, Pair, Reach, link_loads, plan


def ring(hosts: list[int], nics: int, spines: int, hosts_per_leaf: int) -> Demand:
    """Each host sends to the next, NIC to NIC, one flow on each port of the NIC's bond."""
    tops = [[f"s{k}" for k in range(spines)]]
    pairs = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        for nic in range(nics):
            ends = [(f"l{a // hosts_per_leaf}.{nic}{s}", f"l{b // hosts_per_leaf}.{nic}{s}") for s in "LR"]
            reaches = [
                Reach(f"h{a}.{nic}", f"h{b}.{nic}", tops_of(tops, entry)) if entry == exit_ else Reach(entry, exit_, 0)
                for entry, exit_ in ends
            ]
            pairs.append(Pair(f"h{a}.{nic}", f"h{b}.{nic}", 2, reaches))
    return Demand(pairs, tops)


def tops_of(tops: list[list[str]], leaf: str) -> int:
    """Number of the list that has this leaf alone: the way between two hosts below it."""
    if [leaf] not in tops[-64:]:
        tops.append([leaf])
    return tops.index([leaf])


def spread(demands: dict[str, Demand], assignments: dict[str, Assignment]) -> dict[str, int]:
    """Largest difference between two links of one leaf toward the spines."""
    loads = link_loads(demands, assignments)
    up: dict[str, list[int]] = {}
    for (a, b), load in loads.items():
        if b.startswith("s"):
            up.setdefault(a, []).append(load)
    return {"most_on_a_link": max(loads.values()), "uneven_by": max(max(v) - min(v) for v in up.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--spines", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    records = []
    shuffled = list(range(options.hosts))
    random.Random(1).shuffle(shuffled)
    half = options.hosts // 2
    cases = {
        "ring in order": ({"a": list(range(options.hosts))}, {}),
        "ring shuffled": ({"a": shuffled}, {}),
        "8 jobs shuffled": ({f"j{k}": shuffled[k::8] for k in range(8)}, {}),
        "a job comes (half of the hosts)": ({"a": shuffled[:half], "b": shuffled[half:]}, {"a": shuffled[:half]}),
        "7 of 8 jobs stay": ({f"j{k}": shuffled[k::8] for k in range(7)}, {f"j{k}": shuffled[k::8] for k in range(8)}),
    }
    for name, (jobs, before) in cases.items():
        demands = {job: ring(hosts, 4, options.spines, 32) for job, hosts in jobs.items()}
        had = plan({job: ring(hosts, 4, options.spines, 32) for job, hosts in before.items()}, {}).assignments
        had = {job: assignment for job, assignment in had.items() if job in demands}
        times, cpu = [], []
        for _ in range(options.repeats):
            began, began_cpu = time.perf_counter(), time.process_time()
            planned = plan(demands, had)
            times.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - began_cpu))
        flows = sum(pair.flows for demand in demands.values() for pair in demand.pairs)
        record = {
            "case": name, "flows": flows,
            "median_ms": round(statistics.median(times), 1), "most_ms": round(max(times), 1),
            "median_cpu_ms": round(statistics.median(cpu), 1),
            "moved": sum(planned.moved.values()), **spread(demands, planned.assignments),
        }  # fmt: skip
        records.append(record)
        print(json.dumps(record))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"hosts": options.hosts, "spines": options.spines, "records": records}, file, indent=1)


if __name__ == "__main__":
    main()
