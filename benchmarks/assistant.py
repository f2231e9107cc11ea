"""How long the MCP server takes to answer on a run directory of 100 windows, asked by the official client.

`python benchmarks/assistant.py [--windows 100] [--workers 8] [--json FILE]`.

Synthetic windows, every tenth with a slow loader, with the verdicts that the rules give them. `source` finds the named
function in a directory of 200 Python files. One server process, whose tools the client has listed, as assistants do
first; each is asked ten times in turn; milliseconds from the call to the parsed answer, the first one, in which files
are decoded, told apart. Exit status 1 if any answer, the first ones included, takes longer than 200 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

from eroica.archive.store import Store
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from machine import machine_facts, revision
from support import FleetPlan, SlowLoader, synthesize, synthesize_window
from support.run_directories import save_patterns

MOST_MS, TIMES = 200.0, 10
#: Python files below `--source`, the one with the named function among them.
FILES = 200
#: Windows that are worked out; the others are copies of these under their own numbers.
DISTINCT = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_source(root / "project", write_run(root / "runs" / "job", options.windows, options.workers))
        tools = dict(ask_all(root, options.windows))
    slowest = max(tool["slowest_ms"] for tool in tools.values())
    record = {
        "machine": machine_facts(),
        "revision": revision(),
        "load": round(os.getloadavg()[0], 1),
        "windows": options.windows,
        "workers": options.workers,
        "source_files": FILES,
        "slowest_ms": slowest,
        "tools": tools,
        "holds": slowest <= MOST_MS,
    }
    text = json.dumps(record, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    return int(slowest > MOST_MS)


def write_run(run: Path, windows: int, workers: int) -> Verdict:
    """Make a run directory whose last window is its verdict's, which is returned."""
    made = []
    for draw in range(DISTINCT):
        troubles = (SlowLoader((2,), 20.0),) if draw == DISTINCT - 1 else ()
        patterns = synthesize(FleetPlan(workers=workers, iterations=20, draw=draw), troubles, 1)
        window = synthesize_window(patterns, "manual")
        made.append((window, patterns, analyze("job", window, patterns)))
    store = Store(run)
    for number in range(1, windows + 1):
        window, patterns, verdict = made[(number - 1) % DISTINCT]
        window = msgspec.structs.replace(window, window_id=number)
        save_patterns(run / "windows" / str(number), window, patterns)
        store.save_verdict(number, verdict)
    store.save_final(verdict)
    return verdict


def write_source(directory: Path, verdict: Verdict) -> None:
    """Write Python files of forty functions, and at its place in one of them the function that the verdict names."""
    assert verdict.cause is not None
    frame = next(one for one in reversed(verdict.cause.function.stack) if "_read_block" in one)
    name, _, place = frame.rpartition(" (")
    file, _, number = place.rstrip(")").rpartition(":")
    filling = "".join(f"def step_{at}(batch):\n    return [item + {at} for item in batch]\n\n\n" for at in range(40))
    for at in range(FILES - 1):
        path = directory / f"part_{at % 20}" / f"module_{at}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filling)
    named = directory / file.lstrip("/")
    named.parent.mkdir(parents=True, exist_ok=True)
    above = filling.splitlines()[: int(number) - 4]
    above += [""] * (int(number) - 1 - len(above))
    body = "".join(f"    block_{at} = self.read({at})\n" for at in range(12))
    named.write_text("\n".join(above) + f"\ndef {name.rpartition('.')[2]}(self):\n{body}    return block_0\n")


def ask_all(root: Path, windows: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Tool -> milliseconds and bytes of an answer."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "eroica", "mcp", "--runs", str(root / "runs"), "--source", str(root / "project")],
        env={"EROICA_RUNTIME_DIR": str(root)},
    )
    last = {"run": "job", "window": windows}
    questions: dict[str, dict[str, Any]] = {
        "jobs": {},
        "verdict": {"run": "job"},
        "evidence": last,
        "why": last,
        "source": last,
        "compare": {"before": "job", "window_before": "1", "after": "job"},
    }
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        portal.call(client.list_tools)
        for tool, asked in questions.items():
            times, size = [], 0
            for _ in range(TIMES):
                begin = time.perf_counter()
                result = portal.call(client.call_tool, tool, asked)
                times.append(1000 * (time.perf_counter() - begin))
                assert not result.is_error, result.content
                assert tool != "source" or result.structured_content["innermost_first"], "no source was found"
                size = len(json.dumps(result.structured_content))
            yield (
                tool,
                {
                    "median_ms": round(statistics.median(times), 1),
                    "first_ms": round(times[0], 1),
                    "slowest_ms": round(max(times), 1),
                    "bytes": size,
                },
            )


if __name__ == "__main__":
    sys.exit(main())
