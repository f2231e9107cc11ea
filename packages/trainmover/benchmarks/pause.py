"""Pause of moves and of losses, by ranks, beside a restart under torchrun of the same job from its checkpoint.

    python benchmarks/pause.py --shapes 2x2x1,2x2x2 --out docs/measured/pause.jsonl

One record a line: what, ranks, shape (DP x PP x TP), parameters, and seconds. More than four ranks are paced by
sleeping. "pause" is what the training loses: the longest interval between two iterations' ends around the event, less
the median interval; for losses and restarts plus the iterations that are done again.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.rehearsal import TRAIN, Rehearsal, environment, rehearsal


def lines(out: Path, rank: int = 0) -> list[dict]:
    return [json.loads(line) for line in (out / f"losses-{rank}.jsonl").read_text().splitlines()]


def lost_s(records: list[dict], begin: float) -> float:
    """From the last iteration before `begin` to the moment when the job is further, less a normal iteration."""
    before = [one for one in records if one["at"] <= begin]
    step = before[-1]["step"] if before else -1
    beyond = next(one["at"] for one in records if one["at"] > begin and one["step"] > step)
    return beyond - before[-1]["at"] - statistics.median(one["took_s"] for one in records)


def by_move(job: Rehearsal, host: str) -> dict:
    job.standby(f"spare-{len(job.others)}")
    job.until_ready(timeout_s=150)
    time.sleep(1.0)
    known, begin = len(job.status()["history"]), time.time()
    answer = job.move(host)
    assert answer["done"], answer
    took_s = time.time() - begin
    time.sleep(1.5)
    new = job.status()["history"][known:]
    held = [one["took_s"] for one in new if one["what"] == "switched"]
    state = [one for one in new if one["what"] == "state"]
    return {"pause_s": max(held), "order_s": took_s, "state_s": state[0]["took_s"], "state_bytes": state[0]["n_bytes"]}


def by_loss(job: Rehearsal, rank: int, *, standby: bool) -> dict:
    if standby:
        job.standby(f"spare-{len(job.others)}")
        job.until_ready(timeout_s=150)
    time.sleep(1.0)
    generation, begin = job.status()["generation"], time.time()
    job.hit(rank)
    step = max(one["step"] for one in lines(job.out) if one["at"] <= begin)
    job.until(lambda now: now["generation"] > generation and not now["under_way"], 120)
    job.until_step(step + 2, 120)
    time.sleep(1.0)
    took = [one for one in job.status()["history"] if one["what"] == "recovery"][-1]
    return {"pause_s": lost_s(lines(job.out), begin), "after_detection_s": took["took_s"]}


def ours(shape: tuple[int, int, int], arguments: list[str], pace_s: float, write, *, planned: bool = True) -> None:
    dp, pp, tp = shape
    n_ranks = dp * pp * tp
    folder = Path(tempfile.mkdtemp(prefix="trainmover-bench-"))
    with rehearsal(folder, n_ranks, *arguments, "--iterations", "100000", pace_s=pace_s, times='{"beat_s": 20}') as job:
        job.until_step(10, 200)
        time.sleep(2)
        if planned:
            write("planned", by_move(job, f"node-{n_ranks // 2}"))
            write("planned", by_move(job, "node-0"))
        write("loss, standby", by_loss(job, 1, standby=True))
        write("loss, no standby", by_loss(job, n_ranks - 1, standby=False))


def restart(shape: tuple[int, int, int], arguments: list[str], pace_s: float, write) -> None:
    """What one has without: torchrun starts all workers again, from the newest checkpoint."""
    n_ranks = shape[0] * shape[1] * shape[2]
    with tempfile.TemporaryDirectory() as folder:
        out, saved = Path(folder) / "out", Path(folder) / "saved"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
        command += [
            "--max-restarts",
            "3",
            str(TRAIN),
            "--out",
            str(out),
            "--iterations",
            "100000",
            "--backend",
            "trainmover",
        ]
        command += [*arguments, "--pace", str(pace_s), "--checkpoint", str(saved), "--resume"]
        variables = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with subprocess.Popen(command, env=variables, start_new_session=True, stderr=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + 200
                while not (out / "losses-0.jsonl").exists() or lines(out)[-1]["step"] < 60:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                begin = time.time()
                os.kill(lines(out, 1)[-1]["pid"], signal.SIGKILL)
                step = max(one["step"] for one in lines(out) if one["at"] < begin)
                while not any(one["at"] > begin + 0.5 and one["step"] > step for one in lines(out)):
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                write(
                    "restart under torchrun",
                    {"pause_s": lost_s([o for o in lines(out) if o["at"] < begin or o["at"] > begin + 0.5], begin)},
                )
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="2x2x1")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.2)
    parser.add_argument("--parts", default="ours,restart")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    parts = {"ours": ours, "loss": partial(ours, planned=False), "restart": restart}
    for text in given.shapes.split(","):
        dp, pp, tp = (int(one) for one in text.split("x"))
        arguments = ["--dp", str(dp), "--pp", str(pp), "--tp", str(tp), "--width", str(given.width)]
        arguments += ["--layers", str(given.layers), "--length", "16", "--batch", "2"]

        def write(what: str, found: dict, text: str = text, n_ranks: int = dp * pp * tp) -> None:
            record = {
                "what": what,
                "ranks": n_ranks,
                "shape": text,
                "width": given.width,
                "layers": given.layers,
                "pace_s": given.pace,
            }
            record.update({name: round(value, 4) for name, value in found.items()})
            print(json.dumps(record), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")

        for part in given.parts.split(","):
            parts[part]((dp, pp, tp), arguments, given.pace, write)


if __name__ == "__main__":
    main()
