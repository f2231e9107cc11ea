"""The package's demo: fits a log, generates, replays against two real servers, sizes a fleet, writes pages.

make demo
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import webbrowser
from pathlib import Path

import tiny_server

#: What the small servers of this demo can take; the workload's lengths are cut to it.
MOST_INPUT, MOST_OUTPUT = 400, 60
#: Requests per second of the replays, two servers together.
RATE = 4.0


def run(*arguments: object) -> None:
    command = [sys.executable, "-m", "servegen.cli", *map(str, arguments)]
    print(f"\n$ servegen {' '.join(map(str, arguments))}", flush=True)
    subprocess.run(command, check=True)


def shorten(source: Path, target: Path) -> None:
    """Write requests with lengths that the small servers can take."""
    with target.open("w") as file:
        for line in source.read_text().splitlines():
            row = json.loads(line)
            row["input_tokens"] = min(max(row["input_tokens"] // 8, 10), MOST_INPUT)
            row["output_tokens"] = min(max(row["output_tokens"] // 8, 4), MOST_OUTPUT)
            file.write(json.dumps(row) + "\n")


def main() -> None:
    began = time.monotonic()
    out = Path("servegen-demo")
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_server.make_model(Path(folder))
        with tiny_server.serve(model, instances=2) as urls:
            print(f"two real servers: {' '.join(urls)}")
            servers = [part for url in urls for part in ("--url", url)]
            log, short = out / "log.jsonl", out / "short.jsonl"
            run("generate", "sample", "--rate", RATE, "--hours", 1, "--start-hour", 12, "--seed", 1, "-o", log)
            shorten(log, short)
            run("fit", short, "-o", out / "pool", "--html", out / "fit.html")
            for name, seed in (("first", 2), ("second", 3)):
                run(
                    "generate",
                    out / "pool",
                    "--hours",
                    15 / 3600,
                    "--rate",
                    RATE,
                    "--seed",
                    seed,
                    "-o",
                    out / f"{name}.jsonl",
                )
            for name in ("first", "second"):
                records = [
                    "--records",
                    out / f"{name}.parquet",
                    "--json",
                    out / f"{name}.json",
                    "--html",
                    out / "replay.html",
                ]
                run("replay", out / f"{name}.jsonl", *servers, "--model", model, "--ttft", 1, "--tbt", 0.2, *records)
    base = out / "base.yaml"
    base.write_text("batch_tokens: 512\nblocks: 512\nblock_tokens: 32\n")
    check = ["--check", out / "second.parquet"]
    run("calibrate", out / "first.parquet", "-o", out / "engine.yaml", "--base", base, *check)
    seen = json.loads((out / "second.json").read_text())["all"]
    # On a busy machine the real servers are slow, and no fleet of them would keep the limits of a quiet one.
    ttft = max(1.0, 2 * seen["ttft_s"]["p50"])
    tbt = max(0.3, 2 * seen["time_per_output_token_s"]["max"])
    limits = ["--ttft", round(ttft, 2), "--tbt", round(tbt, 2), "--engine-file", out / "engine.yaml", *check]
    pages = ["--json", out / "size.json", "--html", out / "size.html"]
    run("size", out / "pool", "--rate", 200, "--hours", 0.05, "--seeds", 2, *limits, *pages)
    run(
        "compare",
        short,
        out / "pool",
        "--align",
        "start",
        "--json",
        out / "compare.json",
        "--html",
        out / "compare.html",
    )
    pages = sorted(page.resolve() for page in out.glob("*.html"))
    print(f"\n{time.monotonic() - began:.0f} s. Pages:\n" + "\n".join(f"  {page}" for page in pages))
    if sys.stdout.isatty():
        webbrowser.open((out / "size.html").resolve().as_uri())


if __name__ == "__main__":
    main()
