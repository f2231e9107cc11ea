"""Policies on simulated fleets: three regimes, all baselines, shares per mechanism, wrong profiles, waits.

python benchmarks/simulated.py [--seeds 3] [--part main|wrong|cache|overflow]
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import msgspec
import numpy as np

from pythia.profile import Profiles
from pythia.settings import REACTIVE, Policy
from pythia.simulation import POLICIES, Engine, loaded, simulate, tokens_per_s, trained
from pythia.workflow import Plan, Workflow, read_workflow

OUT = Path(__file__).parent / "results"
FEW, MANY = Engine(slots=4, kv_tokens=8192), Engine()
MIXTURES = {
    "mostly short": [
        (read_workflow("coding"), 0.15),
        (read_workflow("research"), 0.25),
        (read_workflow("support"), 0.6),
    ],
    "even": [(read_workflow("coding"), 0.3), (read_workflow("research"), 0.3), (read_workflow("support"), 0.4)],
    "three reviews": [(read_workflow("reviews"), 1.0)],
}


def burst(mixture: list[tuple[Workflow, float]], engine: Engine, replicas: int, seed: int, rate: float) -> list[Plan]:
    """Twice the capacity for a minute, then half of it for two minutes."""
    high = loaded(mixture, engine, replicas, 2.0, 60, seed, rate)
    low = loaded(mixture, engine, replicas, 0.5, 120, seed + 1000, rate)
    return high + [msgspec.structs.replace(p, name=f"low-{p.name}", arrival_s=60 + p.arrival_s) for p in low]


def gains(rows: list[dict], base: list[dict]) -> dict[str, float]:
    """Geometric means over seeds of how much shorter times are than with the first policy."""
    found = {
        k: math.exp(np.mean([math.log(b[k] / max(r[k], 1e-9)) for b, r in zip(base, rows, strict=True)]))
        for k in ("mean_s", "p95_s")
    }
    return {"mean_x": round(found["mean_s"], 3), "p95_x": round(found["p95_s"], 3)}


def measured(
    plans: list[Plan], policy: Policy, engine: Engine, replicas: int, profiles: Profiles, **changes: object
) -> dict:
    r = simulate(plans, policy, engine, profiles=profiles.copy(), models={"": replicas}, **changes)
    return {
        "mean_s": r.mean_s, "p95_s": r.p95_s, "hits": r.hit_share, "ttft_later_s": r.later_ttft_s(), "preempted": r.preemptions,
        "requests": r.requests, "worst_first_wait_s": max(r.waits_first_s, default=0.0), "missed": r.missed, "bounded": r.bounded,
        "prefetched": r.prefetched,
    }  # fmt: skip


def compare(
    title: str,
    plans: dict[int, list[Plan]],
    names: list[str],
    engine: Engine,
    replicas: int,
    profiles: Profiles,
    out: list,
) -> None:
    print(f"\n{title}", flush=True)
    base: list[dict] = []
    for name in names:
        rows = [measured(one, POLICIES[name], engine, replicas, profiles) for one in plans.values()]
        base = base or rows
        record = {
            "table": title,
            "policy": name,
            **gains(rows, base),
            **{k: round(float(np.mean([r[k] for r in rows])), 4) for k in rows[0]},
        }
        out.append(record)
        print(
            f"  {name:<14} mean ×{record['mean_x']:.2f}  P95 ×{record['p95_x']:.2f}  mean {record['mean_s']:.2f} s  hits {record['hits']:.2f}  "
            f"TTFT 2+ {record['ttft_later_s']:.2f} s  preempted {record['preempted']:.0f}  first waits {record['worst_first_wait_s']:.1f} s",
            flush=True,
        )


def main_part(seeds: int, out: list) -> None:
    for mix, mixture in MIXTURES.items():
        profiles = trained(mixture, MANY, 300)
        rate = tokens_per_s(mixture, FEW, 2)
        plans = {s: loaded(mixture, FEW, 2, 0.97, 600, s, rate) for s in range(seeds)}
        names = list(POLICIES) if mix == "mostly short" else ["fcfs+least", "by session", "pythia", "oracle"]
        compare(f"2 × 4 slots at 0.97, {mix}", plans, names, FEW, 2, profiles, out)
        if mix == "mostly short":
            low = {s: loaded(mixture, FEW, 2, 0.3, 600, s, rate) for s in range(seeds)}
            few = ["fcfs+least", "by session", "pythia order", "pythia route", "pythia cache", "pythia"]
            compare("2 × 4 slots at 0.3, mostly short", low, few, FEW, 2, profiles, out)
    for mix in ("mostly short", "even"):
        mixture = MIXTURES[mix]
        profiles = trained(mixture, MANY, 300)
        rate = tokens_per_s(mixture, MANY, 8)
        names = ["fcfs+least", "by session", "las", "pythia", "oracle"]
        bursts = {s: burst(mixture, MANY, 8, s, rate) for s in range(max(1, seeds // 2))}
        compare(f"8 × 8 slots at 2.0 for 60 s, {mix}", bursts, names, MANY, 8, profiles, out)
        if mix == "mostly short":
            plans = {s: loaded(mixture, MANY, 8, 0.97, 120, s, rate) for s in range(max(1, seeds // 2))}
            compare(f"8 × 8 slots at 0.97, {mix}", plans, names, MANY, 8, profiles, out)


def shuffled(profiles: Profiles) -> Profiles:
    """Exchange what is known of the workflow types."""
    other = profiles.copy()
    keys = sorted(other.known)
    other.known = {key: other.known[keys[(i + 1) % len(keys)]] for i, key in enumerate(keys)}
    return other


def lying(profiles: Profiles) -> Profiles:
    """Reverse what is known of the remaining work: long runs look short."""
    other = profiles.copy()
    for profile in other.known.values():
        most = max(sums[1] / sums[0] for sums in profile.automaton.after.values())
        for sums in profile.automaton.after.values():
            sums[1] = (most * 1.05 - sums[1] / sums[0]) * sums[0]
    return other


def wrong_part(seeds: int, out: list) -> None:
    mixture = MIXTURES["mostly short"]
    profiles = trained(mixture, MANY, 300)
    rate = tokens_per_s(mixture, FEW, 2)
    print("\nwrong profiles, 2 × 4 slots at 0.97, against first come, first served, by session")
    for name, wrong in {"none": Profiles(), "exchanged": shuffled(profiles), "reversed": lying(profiles)}.items():
        rows, base, fcfs = [], [], []
        for seed in range(seeds):
            plans = loaded(mixture, FEW, 2, 0.97, 600, seed, rate)
            rows.append(measured(plans, POLICIES["pythia"], FEW, 2, wrong))
            base.append(measured(plans, POLICIES["by session"], FEW, 2, wrong))
            fcfs.append(measured(plans, REACTIVE, FEW, 2, wrong))
        record = {
            "table": "wrong",
            "profiles": name,
            "against_session": gains(rows, base),
            "against_fcfs": gains(rows, fcfs),
        }
        out.append(record)
        print(" ", record, flush=True)


def cache_part(seeds: int, out: list) -> None:
    """The KV cache in which LRU finds less than 30 %, order and routing equal."""
    shipped = [read_workflow(name) for name in ("coding", "research", "reviews", "support")]
    for pause_s in (None, (5.0, 20.0)):  # the workflows' own tools, below 2 s; tools that let caches turn over
        flows = [[msgspec.structs.replace(p, tool_s=pause_s or p.tool_s) for p in w.flow] for w in shipped]
        pairs = list(zip(shipped, flows, strict=True))
        mixture = [(msgspec.structs.replace(w, name=f"{w.name}-{i}", flow=f), 1.0) for w, f in pairs for i in range(4)]
        profiles = trained(mixture, MANY, 900)
        for tokens in (2000, 3000, 4000):
            engine = Engine(slots=2, kv_tokens=tokens, prefill_s=0.0005)
            rate = tokens_per_s(mixture, engine, 1, 120)
            plans = {s: loaded(mixture, engine, 1, 0.7, 400, s, rate) for s in range(seeds)}
            print(f"\nKV cache of {tokens} tokens, pauses {pause_s or 'of the workflows'}")
            for cache in ("lru", "ttl", "kvflow", "pythia", "belady"):
                policy = Policy("session", "least", True, cache, cache == "pythia")  # type: ignore[arg-type]
                rows = [measured(one, policy, engine, 1, profiles) for one in plans.values()]
                means = {k: round(float(np.mean([r[k] for r in rows])), 4) for k in rows[0]}
                out.append({"table": "cache", "kv_tokens": tokens, "pause_s": pause_s, "cache": cache, **means})
                later = f"TTFT of later steps {means['ttft_later_s']:.3f} s"
                print(f"  {cache:<8} hits {means['hits']:.3f}  {later}  mean {means['mean_s']:.2f} s", flush=True)


def overflow_part(seeds: int, out: list) -> None:
    """Few KV tokens for the slots: preemptions."""
    mixture = MIXTURES["even"]
    profiles = trained(mixture, MANY, 1500)
    engine = Engine(slots=8, kv_tokens=3600)
    rate = tokens_per_s(mixture, engine, 2, 150)
    plans = {s: loaded(mixture, engine, 2, 0.8, 300, s, rate) for s in range(seeds)}
    print("\npreemptions per 1,000 requests, 8 slots of 450 KV tokens each")
    for name in ("round robin", "fcfs+least", "by session", "pythia"):
        rows = [measured(one, POLICIES[name], engine, 2, profiles) for one in plans.values()]
        requests = sum(r["requests"] for r in rows)
        share = 1000 * sum(r["preempted"] for r in rows) / requests
        record = {"table": "overflow", "policy": name, "per_1000": round(share, 2), "requests": requests, "mean_s": round(float(np.mean([r["mean_s"] for r in rows])), 2),
                  "missed": sum(r["missed"] for r in rows), "bounded": sum(r["bounded"] for r in rows)}  # fmt: skip
        out.append(record)
        print(" ", record, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=["main", "wrong", "cache", "overflow"], action="append")
    options = parser.parse_args()
    parts = {"main": main_part, "wrong": wrong_part, "cache": cache_part, "overflow": overflow_part}
    for part in options.part or parts:
        records: list = []
        parts[part](options.seeds, records)
        OUT.mkdir(exist_ok=True)
        (OUT / f"simulated_{part}.json").write_text(json.dumps(records, indent=1) + "\n")
