"""Judges thousands of folders made at random: nobody may be accused without cause, and no slow job be healthy.

`python benchmarks/written_folders.py [--folders 10000] [--seed 1] [--processes 2] [--json FILE]`. Each folder is a job
of two to eight ranks (`support.written_jobs.random_folder`), healthy, with a slow rank, with another slow one
in each step, or with a long last stage that meets the first one in groups of two; most lost something: files are cut
anywhere, kernels or collectives of a rank are gone, ranks recorded other steps; collectives are NCCL's, another
library's. What is counted as wrong:

- accused: a worker that the others do not wait for stands in a cause;
- healthy: others wait a tenth of the time or more for a worker, and the verdict is healthy without saying of whom only;
- untold: another worker is slowest each time, nothing was lost, and the verdict does not say so.

"Healthy of some" says which workers it is said of: of those whose recordings are whole.
"""

import argparse
import collections
import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from eroica.errors import EroicaError
from eroica.offline.examine import examine
from eroica.settings import Settings
from machine import machine_facts
from support.written_jobs import NCCL, random_folder, write_files

KERNELS = (
    NCCL,
    NCCL,
    "void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2>(int4*)",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
)
LEAST_WAIT = 0.1


class Outcome(NamedTuple):
    """One folder."""

    seed: int
    mishap: str
    truth: str
    verdict: str
    wrong: str
    summary: str


def judge(seed: int) -> Outcome:
    """Write, diagnose and compare with the truth."""
    folder = random_folder(random.Random(seed), KERNELS)
    job = folder.job
    mishap = next(iter(folder.victims.values()), "none")
    truth = "slow" if job.truth.late else "rotating" if job.rotating else "stages" if job.stages > 1 else "healthy"
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place), folder.files)
        try:
            verdict = examine([place], Settings(readers=1)).verdict
        except EroicaError as error:
            return Outcome(seed, mishap, truth, "error", "", str(error))
    causes = [finding for finding in verdict.findings if finding.role == "cause" and finding.scope == "some"]
    accused = {worker for finding in causes for worker in finding.workers}
    wrong = "accused" if accused - job.truth.late else ""
    is_slow = bool(job.truth.late) and job.truth.wait_share >= LEAST_WAIT
    if is_slow and verdict.verdict == "healthy" and "in the trace of" not in verdict.summary:
        wrong = "healthy"
    if truth == "rotating" and mishap == "none" and "another worker each time" not in verdict.summary:
        wrong = "untold"
    word = f"{verdict.verdict}, the right one" if accused and not wrong else verdict.verdict
    if verdict.verdict == "healthy" and "in the trace of" in verdict.summary:
        word = "healthy of some"
    return Outcome(seed, mishap, truth, word, wrong, verdict.summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    seeds = [draw.randrange(1 << 40) for _ in range(arguments.folders)]
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        outcomes = list(pool.imap_unordered(judge, seeds, chunksize=20))
    seconds = time.perf_counter() - began
    counts = collections.Counter((one.truth, one.mishap, one.verdict) for one in outcomes)
    wrong = [one._asdict() for one in sorted(outcomes) if one.wrong]
    for (truth, mishap, verdict), count in sorted(counts.items()):
        print(f"{truth:9}{mishap:16}{verdict:28}{count:6}")
    for one in wrong[:20]:
        print(one)
    print(f"{len(outcomes)} folders in {seconds:.0f} s, {len(wrong)} wrong")
    if arguments.json is not None:
        table = [[*key, count] for key, count in sorted(counts.items())]
        record = {
            "machine": machine_facts(),
            "seed": arguments.seed,
            "seconds": round(seconds),
            "counts": table,
            "wrong": wrong,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
