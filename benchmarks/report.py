"""The HTML report of a large job: seconds to build, bytes, and how soon a browser shows it.

`python benchmarks/report.py [--workers 10000] [--functions 30] [--keep DIR] [--json FILE]`.

A few hundred workers of a synthetic fleet are made, with timelines; all others are like one of them. One worker reads
slowly, and the verdict is the chain's own. Build: `gather` and `build_report` in a process of its own, best of three.
Page: headless Chromium opens the file anew each time; first contentful paint, then the time until the heat map's canvas
is drawn after a jump to it, both by the page's own clock, medians of five.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from eroica.archive.store import Store
from eroica.model.pattern import FunctionPattern, WorkerPattern
from eroica.model.worker import ProcessGroup, Worker
from eroica.pipeline import analyze
from machine import machine_facts
from support.browser import Browser
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.run_directories import save_patterns
from support.timelines import with_timeline
from support.troubles import SlowLoader

TEMPLATES, ITERATIONS, SHOWN, PER_HOST = 256, 10, 3, 8
RUNS, PAGES = 3, 5
MOST_S, MOST_BYTES, MOST_PAINT_S = 10.0, 15_000_000, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--functions", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="run directory and page stay here; an existing one is used again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--build", nargs=2, type=Path, help="one measurement, as JSON")
    options = parser.parse_args()
    if options.build:
        print(json.dumps(build(*options.build)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options.keep or Path(scratch), options.workers, options.functions)
    text = json.dumps({"machine": machine_facts(), **result}, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


def measure(room: Path, workers: int, functions: int) -> dict[str, object]:
    run, page = room / "run", room / "report.html"
    if not (run / "verdict.json").exists():
        write_run(run, workers, functions)
    parts = [build_apart(run, page) for _ in range(RUNS)]
    best = min(parts, key=lambda part: part["wall_s"])
    shown = show(page)
    return {
        "workers": workers,
        "functions": functions,
        "build": best,
        "page": shown,
        "holds": {
            "seconds": best["wall_s"] <= MOST_S,
            "bytes": best["bytes"] <= MOST_BYTES,
            "first_picture": shown["first_contentful_paint_s"] <= MOST_PAINT_S,
            "heat_map": shown["heat_map_usable_s"] <= MOST_PAINT_S,
        },
    }


def write_run(run: Path, workers: int, functions: int) -> None:
    """The run directory, with a verdict."""
    slow = workers // 2 + 1
    plan = FleetPlan(workers=TEMPLATES, iterations=ITERATIONS, jitter=0.02, pauses=0.02, unevenness=0.01)
    made = synthesize(plan, [SlowLoader((slow % TEMPLATES,), 60.0)])
    like = [with_timeline(pattern, SHOWN) for pattern in made]
    group = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(workers)), backend="gloo")
    healthy = [at for at in range(TEMPLATES) if at != slow % TEMPLATES]
    patterns = [
        as_worker(like[slow % TEMPLATES if rank == slow else healthy[rank % len(healthy)]], rank, group, functions)
        for rank in range(workers)
    ]
    window = synthesize_window(patterns)
    verdict = analyze("fleet", window, patterns)
    save_patterns(run / "windows" / "1", window, patterns)
    store = Store(run)
    store.save_verdict(1, verdict)
    store.save_final(verdict)


def as_worker(pattern: WorkerPattern, rank: int, group: ProcessGroup, functions: int) -> WorkerPattern:
    """The same pattern on another worker, with as many functions as asked for."""
    worker = Worker(
        global_rank=rank,
        local_rank=rank % PER_HOST,
        world_size=len(group.ranks),
        host=f"node-{rank // PER_HOST}",
        pid=4000 + rank % PER_HOST,
    )
    more = max(functions - len(pattern.functions), 0)
    rows = (*pattern.functions, *(_another(pattern.functions[1 + at % 5], at) for at in range(more)))
    return msgspec.structs.replace(pattern, worker=worker, process_groups=(group,), functions=rows, links=())


def _another(row: FunctionPattern, number: int) -> FunctionPattern:
    key = msgspec.structs.replace(row.key, name=f"{row.key.name}_{number}")
    return msgspec.structs.replace(row, key=key, critical_s=row.critical_s / 20, beta=row.beta / 20)


def build_apart(run: Path, page: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--build", str(run), str(page)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]


def build(run: Path, page: Path) -> dict[str, object]:
    """Seconds of each part, in this process."""
    from eroica.views.material import gather
    from eroica.views.page import PICTURES, build_report, draw_picture

    began, cpu = time.perf_counter(), time.process_time()
    material = gather(run)
    gathered = time.perf_counter()
    page.write_bytes(data := build_report(material))
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    pictures = {}
    for name in PICTURES:
        start = time.perf_counter()
        draw_picture(name, material)
        pictures[name] = round(time.perf_counter() - start, 3)
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(used, 2),
        "gather_s": round(gathered - began, 2),
        "bytes": len(data),
        "pictures_s": pictures,
        "summary": material.verdict.summary[:300],
    }


_PAINT = "return performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime / 1000)[0] ?? null;"
_LOOK = """
const done = arguments[arguments.length - 1], began = performance.now();
document.getElementById("heatmap").scrollIntoView({ behavior: "instant" });
const look = () => {
  const canvas = document.querySelector("#picture-heatmap canvas");
  if (canvas && canvas.width > 0) done((performance.now() - began) / 1000);
  else requestAnimationFrame(look);
};
look();
"""


def show(page: Path) -> dict[str, float]:
    """What a reader waits for, from the beginning of navigation."""
    browser = Browser()
    paints, looks, heap = [], [], 0
    try:
        for _ in range(PAGES):
            browser.reset()
            browser.open(page)
            paints.append(float(browser.until(lambda: browser.script(_PAINT))))
            looks.append(float(browser.driver.execute_async_script(_LOOK)))
            heap = int(browser.script("return performance.memory.usedJSHeapSize"))
            if browser.errors():
                raise RuntimeError(f"the page says {browser.errors()}")
    finally:
        browser.quit()
    return {
        "first_contentful_paint_s": round(statistics.median(paints), 3),
        "heat_map_usable_s": round(
            statistics.median(paint + look for paint, look in zip(paints, looks, strict=True)), 3
        ),
        "heat_map_after_scroll_s": round(statistics.median(looks), 3),
        "heap_mb": round(heap / 1e6, 1),
    }


if __name__ == "__main__":
    main()
