"""The demo: three workflows, two real engines, first come first served against Pythia on the same runs.

make demo
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from pythia.agents import Outcome, drive
from pythia.page import Bar, View, render
from pythia.records import Step
from pythia.replicas import free_port
from pythia.settings import REACTIVE, Policy
from pythia.workflow import Plan, Workflow, arrivals, mean_work, read_workflow

SLOTS, KV_TOKENS = 4, 6000
MIXTURE = [(read_workflow("coding"), 0.15), (read_workflow("research"), 0.25), (read_workflow("support"), 0.6)]


def get(url: str) -> dict:
    return httpx.get(url, timeout=30, trust_env=False).json()


@contextlib.contextmanager
def running(command: list[str], url: str, seconds: float) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "pythia.cli", *command], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"`pythia {' '.join(command)}` does not answer; run it by hand to see why")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def engines(folder: Path, count: int = 2) -> Iterator[list[str]]:
    """Start real engines with a tiny model of random weights."""
    from pythia.engine import make_model

    model = make_model(folder / "tiny")
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(count):
            port = free_port()
            urls.append(f"http://127.0.0.1:{port}")
            options = ["engine", str(model), "--port", str(port), "--slots", str(SLOTS), "--kv-tokens", str(KV_TOKENS)]
            stack.enter_context(running(options, urls[-1] + "/health", 400))
        yield urls


@contextlib.contextmanager
def gateway(folder: Path, urls: list[str], policy: Policy) -> Iterator[str]:
    """Start a gateway; every one begins with the same profiles."""
    port = free_port()
    replicas = [{"url": url, "slots": SLOTS, "kv_tokens": KV_TOKENS, "kind": "pythia"} for url in urls]
    (folder / "live.bin").write_bytes((folder / "profiles.bin").read_bytes())
    config = {
        "listen": f"127.0.0.1:{port}",
        "profiles": str(folder / "live.bin"),
        "models": {"*": {"replicas": replicas}},
        "policy": msgspec.to_builtins(policy),
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{port}"
    with running(["serve", "--config", str(folder / "config.yaml"), "--log-level", "warning"], url + "/metrics", 60):
        yield url


def learn(folder: Path, mixture: list[tuple[Workflow, float]], runs: int = 1200) -> None:
    """Write a log of past runs and learn from it, as an operator would."""
    lines = []
    for plan in arrivals(mixture, 1.0, runs, 77):
        at = plan.arrival_s * 100
        for stage in plan.stages:
            for i, s in enumerate(stage):
                final = stage is plan.stages[-1] and i == len(stage) - 1
                lines.append(
                    msgspec.json.encode(
                        Step(plan.workflow_type, plan.name, s.role, at, s.output, s.prompt, 1.0, "*", final=final)
                    )
                )
            at += 2.0
    (folder / "log.jsonl").write_bytes(b"\n".join(lines))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pythia.cli",
            "profile",
            "build",
            str(folder / "log.jsonl"),
            "-o",
            str(folder / "profiles.bin"),
        ],
        check=True,
    )
    subprocess.run(
        [sys.executable, "-m", "pythia.cli", "profile", "show", str(folder / "profiles.bin"), "--alpha", "0.0125"],
        check=True,
    )


def capacity(urls: list[str], mixture: list[tuple[Workflow, float]], runs: int) -> float:
    """Output tokens per second that the engines serve while requests wait."""
    plans = [msgspec.structs.replace(p, arrival_s=0.0) for p in arrivals(mixture, 1.0, runs, 5)]

    async def both() -> list[Outcome]:
        return await asyncio.gather(
            *(
                drive(plans[i :: len(urls)], url, "tiny", identifiers=False, variant="capacity")
                for i, url in enumerate(urls)
            )
        )

    records = sorted((r for o in asyncio.run(both()) for r in o.records), key=lambda r: r.ended)
    part = records[: int(0.7 * len(records))]
    return sum(r.output_tokens for r in part) / part[-1].ended


def schedule(mixture: list[tuple[Workflow, float]], rate: float, load: float, seconds: float, seed: int) -> list[Plan]:
    plans = arrivals(mixture, load * rate / mean_work(mixture, runs=2000), seconds, seed)
    stretch = sum(p.work for p in plans) / (load * rate * seconds)
    return [msgspec.structs.replace(p, arrival_s=p.arrival_s * stretch) for p in plans]


def measure(
    folder: Path, urls: list[str], name: str, policy: Policy, plans: list[Plan], variant: str = ""
) -> tuple[dict, Outcome, dict]:
    """Run plans under one policy."""
    before = [get(url + "/pythia/stats") for url in urls]
    with gateway(folder, urls, policy) as url:
        outcome = asyncio.run(drive(plans, url, "tiny", variant=f"{name}{variant}"))
        state = get(url + "/pythia/state")
    after = [get(url + "/pythia/stats") for url in urls]
    change = {k: sum(a[k] - b[k] for a, b in zip(after, before, strict=True)) for k in after[0]}
    row = {
        "policy": name, "runs": len(outcome.jct_s), "failed": outcome.failed, "mean_s": outcome.mean_s, "p95_s": outcome.p95_s,
        "ttft_later_s": outcome.later_ttft_s(), "hits": change["cached_tokens"] / max(change["prompt_tokens"], 1), "preempted": change["preempted"],
        "prefetched": change["prefetched_tokens"], "late_s": outcome.late_s, "worst_first_wait_s": state["worst_first_wait_s"],
    }  # fmt: skip
    return row, outcome, state


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learn(folder, MIXTURE)
        with engines(folder) as urls:
            print(f"two real engines after {time.monotonic() - began:.0f} s: {' '.join(urls)}", flush=True)
            rate = capacity(urls, MIXTURE, 30)
            plans = schedule(MIXTURE, rate, 0.97, 25.0, 1)
            print(f"they serve {rate:.0f} output tokens/s; {len(plans)} runs follow, under each policy", flush=True)
            rows, views = [], []
            for title, policy in (("first come, first served", REACTIVE), ("Pythia", Policy())):
                row, outcome, state = measure(folder, urls, title, policy, plans)
                rows.append(row)
                bars = [Bar(r.run, r.role, "", r.sent, r.first, r.ended) for r in outcome.records]
                views.append(View(title, bars, state["loads"]))
    header = [
        "policy",
        "runs",
        "failed",
        "completion mean",
        "P95",
        "first token of later steps",
        "prompt found in cache",
        "preempted",
    ]
    table = [
        header,
        *(
            [
                r["policy"],
                str(r["runs"]),
                str(r["failed"]),
                f"{r['mean_s']:.2f} s",
                f"{r['p95_s']:.2f} s",
                f"{r['ttft_later_s']:.2f} s",
                f"{r['hits']:.0%}",
                str(r["preempted"]),
            ]
            for r in rows
        ),
    ]
    for line in table:
        print("  ".join(f"{cell:>{len(h)}}" for cell, h in zip(line, header, strict=True)))
    print(
        f"mean {rows[0]['mean_s'] / rows[1]['mean_s']:.2f} ×, P95 {rows[0]['p95_s'] / rows[1]['p95_s']:.2f} × shorter; {time.monotonic() - began:.0f} s in all"
    )
    page = Path("pythia-demo.html")
    page.write_text(render(views, "The same runs on two real engines under both policies.", table), encoding="utf-8")
    print(f"page: {page.resolve()}")


if __name__ == "__main__":
    main()
