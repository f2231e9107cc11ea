"""Latency that the gateway adds at 200 requests a second, and memory of 100 workflows with 10,000 runs each.

python benchmarks/proxy.py [--rate 200] [--seconds 10] [--part latency|memory]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import httpx
import numpy as np
import psutil

from pythia.profile import Profiles
from pythia.records import Identifiers, Step
from pythia.replicas import free_port
from pythia.workflow import draw, read_workflow

OUT = Path(__file__).parent / "results"
STUB = """
import sys, uvicorn
body = b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            m = await receive(); await send({"type": m["type"] + ".complete"})
            if m["type"] == "lifespan.shutdown": return
    while (await receive()).get("more_body"): pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
"""


async def volley(url: str, rate: float, seconds: float, ids: bool) -> list[float]:
    """Return the latencies of requests at a rate. The client must be light: it shares the cores with the gateway."""
    times: list[float] = []

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        body: dict = {"model": "m", "messages": [{"role": "user", "content": "x" * 2000}], "max_tokens": 4}
        if ids:
            body["app_metadata"] = {
                "workflow_type_id": "w",
                "workflow_id": f"r{number // 3}",
                "agent_id": f"a{number % 3}",
                "final": number % 3 == 2,
            }
        began = time.perf_counter()
        async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()
        times.append(time.perf_counter() - began)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as client:
        await asyncio.gather(*(one(client, i) for i in range(20)))
        times.clear()
        began, tasks = time.perf_counter(), []
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + i / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(one(client, 1000 + i)))
        await asyncio.gather(*tasks)
    return times


async def latency(rate: float, seconds: float) -> dict:
    stub, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "c.yaml"
        config.write_text(
            f"listen: 127.0.0.1:{port}\nprofiles: {folder}/p.bin\nmodels: {{'*': {{replicas: [{{url: 'http://127.0.0.1:{stub}', slots: 64}}]}}}}\n"
        )
        processes = [
            subprocess.Popen([sys.executable, "-c", STUB, str(stub)]),
            subprocess.Popen(
                [sys.executable, "-m", "pythia.cli", "serve", "--config", str(config), "--log-level", "warning"]
            ),
        ]
        try:
            for at in (stub, port):
                for _ in range(600):
                    try:
                        async with httpx.AsyncClient() as client:
                            await client.get(f"http://127.0.0.1:{at}/metrics")
                        break
                    except httpx.HTTPError:
                        await asyncio.sleep(0.1)
            rows = []
            for turn in range(3):
                pair = {}
                for name, url, ids in (
                    ("direct", f"http://127.0.0.1:{stub}", False),
                    ("through", f"http://127.0.0.1:{port}", False),
                    ("with ids", f"http://127.0.0.1:{port}", True),
                ):
                    before, own = psutil.Process(processes[1].pid).cpu_times(), time.process_time()
                    times = await volley(url, rate, seconds, ids)
                    after = psutil.Process(processes[1].pid).cpu_times()
                    pair[name] = {f"p{q}_ms": round(1000 * float(np.quantile(times, q / 100)), 2) for q in (50, 90, 99)}
                    cpu = after.user + after.system - before.user - before.system
                    pair[name]["gateway_cpu_ms"] = round(1000 * cpu / len(times), 3)
                    pair[name]["client_cpu_ms"] = round(1000 * (time.process_time() - own) / len(times), 3)
                rows.append(pair)
                print(turn, pair, flush=True)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    return {"rate": rate, "load_average": os.getloadavg()[0], "rounds": rows}


def memory(runs: int) -> dict:
    process = psutil.Process()
    before = process.memory_info().rss
    profiles = Profiles()
    workflow = read_workflow("coding")
    rng = random.Random(0)
    began = time.process_time()
    for kind in range(100):
        plans = [draw(workflow, str(i), 0.0, rng) for i in range(200)]
        for number in range(runs):
            plan = plans[number % 200]
            steps = plan.steps
            for place, step in enumerate(steps):
                ids = Identifiers(f"w{kind}", str(number), step.role, place == len(steps) - 1)
                run, at, _ = profiles.begin(ids, "", float(number), 0.01)
                profiles.end(run, at, Step(f"w{kind}", "", step.role, 0.0, step.output), float(number))
        if kind in (0, 9, 49, 99):
            print(
                kind + 1,
                (process.memory_info().rss - before) >> 20,
                "MB",
                round(time.process_time() - began),
                "CPU s",
                flush=True,
            )
    return {
        "workflows": 100,
        "runs_each": runs,
        "mb": (process.memory_info().rss - before) / 2**20,
        "cpu_s": time.process_time() - began,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=10_000, help="runs per workflow (memory)")
    parser.add_argument("--part", choices=["latency", "memory"], action="append")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for part in options.part or ["latency", "memory"]:
        found = asyncio.run(latency(options.rate, options.seconds)) if part == "latency" else memory(options.runs)
        (OUT / f"proxy_{part}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(found)
