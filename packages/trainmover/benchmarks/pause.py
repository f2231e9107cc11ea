"""Pause of moves and of losses, beside what one has without: a restart under torchrun.

    python benchmarks/pause.py --shapes 2x2x1,2x2x2,4x2x2 --out docs/figures/pause.jsonl

One record a line: what, ranks, shape (DP x PP x TP), and seconds; the job shards with FSDP2 and is paced by sleeping.

- "planned": by order, to a warm standby.
- "planned, cold": the joiner has built its part of the model and has run no shadow iteration.
- "loss": killed; with a standby, or by a process that the supervisor starts.
- "restart under torchrun": killed; torchrun starts all workers again, with gloo, from a checkpoint of ten iterations.

"pause_s" is the time for which members stood at the boundary, or after a loss the time until the job is further than
it was, less a normal iteration. "extra_s" is all that iterations took beyond the median, from the order to the third
iteration after the switch. "back_s" is a restart's time until it trains again, without what it does again.
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
from tests.jobs import TRAIN, RunningJob, environment, running_job


def lines(out: Path, rank: int = 0) -> list[dict]:
    return [json.loads(line) for line in (out / f"losses-{rank}.jsonl").read_text().splitlines()]


def lost_s(records: list[dict], begin: float) -> float:
    """The longest time until the job is further than ever, over three iterations from `begin`, less a normal one."""
    before = [one for one in records if one["at"] <= begin]
    first = best = before[-1]["step"]
    longest, last = 0.0, before[-1]["at"]
    for one in records[len(before) :]:
        if one["step"] > best:
            longest, last, best = max(longest, one["at"] - last), one["at"], one["step"]
        if best >= first + 3:
            break
    return longest - statistics.median(one["took_s"] for one in before[-10:])


def extra_s(records: list[dict], begin: float, step: int) -> float:
    """What iterations took beyond the median before, from `begin` to the third one after `step`."""
    normal = statistics.median(one["took_s"] for one in records if one["at"] <= begin and one["step"] > 3)
    return sum(one["took_s"] - normal for one in records if one["at"] > begin and one["step"] <= step + 3)


def by_move(job: RunningJob, rank: int, fault: str = "") -> dict:
    """Move a rank by order, to a standby from which something may be left out."""
    job.standby(f"spare-{len(job.others)}", **({"TRAINMOVER_FAULT": fault} if fault else {}))
    job.until_ready(timeout_s=200)
    time.sleep(3.0)
    found = job.status()
    host = next(one["host"] for one in found["members"] if one["rank"] == rank)
    known, begin = len(found["history"]), time.time()
    answer = job.move(host)
    assert answer["done"], answer
    took_s, at = time.time() - begin, job.status()["history"][known:]
    step = next(one["at"] for one in at if one["what"] == "moved")
    job.until_step(step + 5, 60)
    new = job.status()["history"][known:]
    held = [one["took_s"] for one in new if one["what"] == "switched"]
    state = next(one for one in new if one["what"] == "state")
    return {
        "pause_s": max(held),
        "extra_s": extra_s(lines(job.out, int(rank == 0)), begin, step),
        "order_s": took_s,
        "state_s": state["took_s"],
        "state_bytes": state["n_bytes"],
    }


def by_loss(job: RunningJob, rank: int, *, standby: bool) -> dict:
    if standby:
        job.standby(f"spare-{len(job.others)}")
        job.until_ready(timeout_s=150)
    time.sleep(1.0)
    generation, begin = job.status()["generation"], time.time()
    job.hit(rank)
    step = max(one["step"] for one in lines(job.out) if one["at"] <= begin)
    job.until(lambda now: now["generation"] > generation and not now["under_way"], 120)
    job.until_step(step + 5, 120)
    took = [one for one in job.status()["history"] if one["what"] == "recovery"][-1]
    return {"pause_s": lost_s(lines(job.out), begin), "after_detection_s": took["took_s"]}


def ours(shape: tuple[int, int, int], arguments: list[str], pace_s: float, write, *, few: bool = False) -> None:
    """All kinds of moves and losses of one job; `few`: one move and one loss."""
    n_ranks = shape[0] * shape[1] * shape[2]
    folder = Path(tempfile.mkdtemp(prefix="trainmover-bench-"))
    with running_job(
        folder, n_ranks, *arguments, "--iterations", "100000", pace_s=pace_s, timeouts='{"heartbeat_timeout_s": 20}'
    ) as job:
        job.until_step(10, 200)
        write("planned", by_move(job, n_ranks // 2))
        if not few:
            write("planned", by_move(job, 0))
            write("planned, cold", by_move(job, n_ranks // 2, "cold"))
            write("loss, no standby", by_loss(job, n_ranks - 1, standby=False))
        write("loss, standby", by_loss(job, 1, standby=True))


def restart(shape: tuple[int, int, int], arguments: list[str], pace_s: float, write) -> None:
    """What one has without: torchrun starts all workers again, from the newest checkpoint."""
    n_ranks = shape[0] * shape[1] * shape[2]
    with tempfile.TemporaryDirectory() as folder:
        out, saved = Path(folder) / "out", Path(folder) / "saved"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
        command += ["--max-restarts", "3", str(TRAIN), "--out", str(out), "--iterations", "100000"]
        command += ["--backend", "gloo", *arguments, "--pace", str(pace_s)]
        command += ["--checkpoint", str(saved), "--checkpoint-every", "10", "--resume"]
        variables = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with (
            (out.parent / "job.log").open("wb") as log,
            subprocess.Popen(command, env=variables, start_new_session=True, stdout=log, stderr=log) as process,
        ):
            try:
                deadline = time.monotonic() + 900

                def until(ready) -> None:
                    while not ready():
                        assert time.monotonic() < deadline, (out.parent / "job.log").read_text()[-3000:]
                        time.sleep(0.1)

                until(lambda: (out / "losses-0.jsonl").exists() and lines(out)[-1]["step"] >= 24)
                begin = time.time()
                os.kill(lines(out, 1)[-1]["pid"], signal.SIGKILL)
                before = [one for one in lines(out) if one["at"] < begin]
                step, normal = before[-1]["step"], statistics.median(one["took_s"] for one in before)
                until(lambda: any(one["at"] > begin + 1 and one["step"] > step for one in lines(out)))
                after = [one for one in lines(out) if one["at"] > begin + 1]
                further = next(one["at"] for one in after if one["step"] > step)
                back_s, pause_s = (at - before[-1]["at"] - normal for at in (after[0]["at"], further))
                write("restart under torchrun", {"pause_s": pause_s, "back_s": back_s})
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
    parts = {"ours": ours, "few": partial(ours, few=True), "restart": restart}
    for text in given.shapes.split(","):
        dp, pp, tp = (int(one) for one in text.split("x"))
        arguments = ["--dp", str(dp), "--pp", str(pp), "--tp", str(tp), "--width", str(given.width)]
        arguments += ["--layers", str(given.layers), "--length", "16", "--batch", "2", "--fsdp"]

        def write(what: str, found: dict, text: str = text, n_ranks: int = dp * pp * tp) -> None:
            record = {
                "what": what,
                "ranks": n_ranks,
                "shape": text,
                "width": given.width,
                "layers": given.layers,
                "pace_s": given.pace,
                "load": round(os.getloadavg()[0], 1),
            }
            record.update({name: round(value, 4) for name, value in found.items()})
            print(json.dumps(record), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")

        for part in given.parts.split(","):
            parts[part]((dp, pp, tp), arguments, given.pace, write)


if __name__ == "__main__":
    main()
