"""Tools that read what PyTorch records, on one job: HTA, torch's Flight Recorder analyzer, NVRx."""

import json
import pickle
import re
import sys
import time
from pathlib import Path

from eroica.demo.rehearsal import running
from rival_jobs import (
    BLOCKED_S,
    ONSET,
    PHASE_S,
    WORKERS,
    Answer,
    Case,
    Changed,
    call,
    failed,
    last_line,
    reached,
    rehearse,
    wait_for,
)

#: Iterations of torch.profiler in HTA's traces: left out after the onset, warmed up, recorded.
SCHEDULE = (30, 2, 5)
PROFILED_LOOP = (
    (
        "        for iteration in range(self.options.iterations):\n",
        "        profiler = _make_profiler(self.options.directory)\n"
        "        profiler.start()\n"
        "        for iteration in range(self.options.iterations):\n"
        "            profiler.step()\n",
    ),
    (
        "def pick_device(",
        "def _make_profiler(directory):\n"
        "    from torch import profiler\n\n"
        "    return profiler.profile(\n"
        "        activities=[profiler.ProfilerActivity.CPU],\n"
        "        schedule=profiler.schedule(wait={wait}, warmup={warmup}, active={active}, repeat=1),\n"
        "        on_trace_ready=profiler.tensorboard_trace_handler(\n"
        '            str(directory / "traces"), worker_name=f"rank{{dist.get_rank()}}"\n'
        "        ),\n"
        "    )\n\n\n"
        "def pick_device(",
    ),
)
DUMPING_MAIN = (
    (
        '    dist.init_process_group("gloo")\n',
        '    dist.init_process_group("gloo")\n    _dump_when_asked(options.directory)\n',
    ),
    (
        "def pick_device(",
        "def _dump_when_asked(directory):\n"
        "    import threading\n"
        "    from torch._C._distributed_c10d import _dump_fr_trace\n\n"
        "    def wait():\n"
        '        while not (directory / "dumps").exists():\n'
        "            time.sleep(0.5)\n"
        '        (directory / "dumps" / f"rank_{dist.get_rank()}").write_bytes(_dump_fr_trace())\n\n'
        "    threading.Thread(target=wait, daemon=True).start()\n\n\n"
        "def pick_device(",
    ),
)
HTA_CALL = (
    "import json, sys; from hta.trace_analysis import TraceAnalysis; "
    "found = TraceAnalysis(trace_dir=sys.argv[1]).get_potential_stragglers(num_candidates=1); "
    "print(json.dumps([int(rank) for rank in found]))"
)
NVRX_CALL = (
    "from nvidia_resiliency_ext import straggler; "
    "straggler.Detector.initialize(scores_to_compute='all', gather_on_rank0=True)"
)


def profiled(wait: int, warmup: int, active: int) -> dict[str, tuple[tuple[str, str], ...]]:
    """Changes that put torch.profiler into the loop."""
    loop, maker = PROFILED_LOOP
    return {"loop.py": (loop, (maker[0], maker[1].format(wait=wait, warmup=warmup, active=active)))}


def watch_hta(case: Case, directory: Path, python: Path | None) -> Answer:
    """Traces of torch.profiler of each worker, five iterations of the faulty phase, then HTA's straggler analysis."""
    assert python is not None
    wait, warmup, active = SCHEDULE
    rehearsal = rehearse(Changed, case, directory, changes=profiled(ONSET + wait, warmup, active))
    traces = directory / "traces"
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        wait_for(lambda: len(list(traces.glob("*.json"))) >= WORKERS, PHASE_S * 2)
        time.sleep(2.0)
    return read_hta(*call([str(python), "-c", HTA_CALL, str(traces)]))


def read_hta(out: str, errors: str) -> Answer:
    """The ranks that it returns, of as many as it was asked for."""
    found = re.findall(r"^\[[\d, ]*\]$", out, flags=re.MULTILINE)
    if not found:
        return failed(last_line(errors) or last_line(out))
    workers = tuple(json.loads(found[-1]))
    return Answer(f"potential straggler: {', '.join(map(str, workers)) or 'nobody'}", workers, alarm=bool(workers))


def watch_fr(case: Case, directory: Path, _: Path | None) -> Answer:
    """Dumps from inside the workers of a job that is blocked, then `torchfrtrace`.

    Dumps of gloo do not name their process groups, which the analyzer needs: where it fails on them as they are, it
    gets them once more with the groups' names filled in from the entries, and both is written down.
    """
    rehearsal = rehearse(Changed, case, directory, changes={"loop.py": DUMPING_MAIN})
    dumps = directory / "dumps"
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        time.sleep(BLOCKED_S)
        dumps.mkdir()
        wait_for(lambda: len(list(dumps.iterdir())) >= WORKERS, 10.0)
        time.sleep(1.0)
    analyzer = str(Path(sys.executable).with_name("torchfrtrace"))
    answer = read_fr(*call([analyzer, str(dumps)]))
    if answer.error and not answer.workers:
        name_groups(dumps)
        more = () if len(list(dumps.iterdir())) == WORKERS else ("--allow-incomplete-ranks",)
        again = read_fr(*call([analyzer, str(dumps), *more]))
        text = f"{answer.error}; with the groups named by hand: {again.said}"
        answer = again._replace(said=text)
    return answer


def name_groups(dumps: Path) -> None:
    """Give each dump the process groups that its entries speak of, all of all workers."""
    for path in dumps.iterdir():
        dump = pickle.loads(path.read_bytes())  # noqa: S301  # written by the job above
        groups = {tuple(entry["process_group"]) for entry in dump["entries"]}
        everybody = str(list(range(WORKERS)))
        dump["pg_config"] = {name: {"name": name, "desc": desc, "ranks": everybody} for name, desc in sorted(groups)}
        path.write_bytes(pickle.dumps(dump))


def read_fr(out: str, errors: str) -> Answer:
    """Ranks of its first report: missing from a collective, culprit of a mismatch, or without a dump."""
    text = f"{out}\n{errors}"
    gone = re.search(r"Missing dump files from ranks \{([\d, ]+)\}", text)
    if gone:
        return Answer(gone[0], numbers(gone[1]), "process", None, True, gone[0])
    blamed = re.search(r"missing ranks: \{([\d, ]+)\}", text) or re.search(r"Culprit rank (\d+)", text)
    if blamed:
        what = re.findall(r"collective: (\S+)", text[: blamed.start()])
        about = f" ({what[-1]})" if what else ""
        return Answer(f"{blamed[0]}{about}", numbers(blamed[1]), "communication", None, True)
    if "Traceback" in text:
        return failed(last_line(errors))
    return Answer(last_line(text) or "nothing")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, re.findall(r"\d+", text))))


def watch_nvrx(_case: Case, _directory: Path, python: Path | None) -> Answer:
    """Its detector is started, no more: it needs CUPTI and a GPU."""
    out, errors = call([str(python), "-c", NVRX_CALL])
    if errors and "Error" in errors:
        return failed(last_line(errors))
    return Answer(last_line(out) or "the detector starts")
