"""py-spy on one job: dumps of every worker, read by rules that stand for a person."""

import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eroica.demo.rehearsal import running
from injected.expected import EXPECTED
from injected.rehearsal import Rehearsal
from rival_jobs import (
    BLOCKED_S,
    ONSET,
    PHASE_S,
    Answer,
    Case,
    Frame,
    call,
    failed,
    last_line,
    reached,
    rehearse,
    worker_pids,
)

#: Dumps of py-spy of each worker, and what share of them (0-1) must stand out.
DUMPS = 20
BLOCKED_DUMPS = 3
STANDS_OUT = 0.25
#: Which part of the iteration the training's own code belongs to, by file and function; "" = by file alone.
OWN_AREAS = {
    ("data.py", ""): "input",
    ("reading.py", ""): "input",
    ("batching.py", ""): "input",
    ("model.py", ""): "compute",
    ("tokens.py", "_read_block"): "input",
    ("parts.py", "_split_text"): "input",
    ("tokens.py", "__getitem__"): "input",
    ("parts.py", "__getitem__"): "input",
    ("tokens.py", "_score_tokens"): "compute",
    ("parts.py", "scale_grad"): "compute",
    ("tokens.py", "refresh"): "compute",
    ("tokens.py", "_entry"): "compute",
    ("tokens.py", "agree"): "communication",
    ("watching.py", "reduce_norms"): "communication",
    ("saving.py", ""): "outside",
    ("train.py", "save_checkpoint"): "outside",
}


def watch_pyspy(case: Case, directory: Path, _: Path | None) -> Answer:
    """`py-spy dump` of every worker, over and over."""
    rehearsal = rehearse(Rehearsal, case, directory)
    blocked = EXPECTED[case.fault].blocked
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        time.sleep(BLOCKED_S if blocked else 2.0)
        count = BLOCKED_DUMPS if blocked else DUMPS
        seen = dump_often(worker_pids(job.pid), directory / "code", count)
    return read_blocked(seen) if blocked else read_shares(seen)


def dump_often(pids: Mapping[int, int], code: Path, count: int) -> dict[int, list[Frame | None]]:
    """Innermost own frame of each worker's main thread in each dump, by global rank."""
    seen: dict[int, list[Frame | None]] = {worker: [] for worker in pids}
    for _ in range(count):
        due = time.monotonic() + PHASE_S / DUMPS
        for worker, pid in pids.items():
            out, _errors = call([str(Path(sys.executable).with_name("py-spy")), *PYSPY, str(pid)])
            with contextlib.suppress(json.JSONDecodeError):
                seen[worker].append(own_frame(json.loads(out), code))
        time.sleep(max(0.0, due - time.monotonic()))
    return seen


PYSPY = ("dump", "--nonblocking", "--json", "--full-filenames", "--pid")


def own_frame(threads: Sequence[Mapping[str, Any]], code: Path) -> Frame | None:
    """The innermost frame of the main thread that lies in the user's code; None if there is none."""
    main = next((thread for thread in threads if thread.get("thread_name") == "MainThread"), None)
    for frame in (main or {}).get("frames", ()):
        path = Path(str(frame.get("filename", "")))
        if path.is_relative_to(code):
            return path.name, str(frame["name"]).rpartition(".")[2]
    return None


def read_shares(seen: Mapping[int, Sequence[Frame | None]]) -> Answer:
    """Who is in one frame in more of his dumps than the others are in theirs (median), by 25 points or more.

    If nobody is, the frame that all are in most often is what a reader would report, and no alarm.
    """
    shares = {worker: {frame: n / len(all_) for frame, n in Counter(all_).items()} for worker, all_ in seen.items()}
    frames = sorted({frame for one in shares.values() for frame in one if frame is not None})
    if not frames:
        return failed("no dump shows a frame of the training's own code")
    ahead = {
        (worker, frame): mine.get(frame, 0.0) - _usual(frame, [one for w, one in shares.items() if w != worker])
        for worker, mine in shares.items()
        for frame in frames
    }
    (worker, frame), gap = max(ahead.items(), key=lambda pair: pair[1])
    if gap >= STANDS_OUT:
        mine = shares[worker][frame]
        text = f"worker {worker} is in {':'.join(frame)} in {mine:.0%} of its dumps, others in {mine - gap:.0%}"
        return Answer(text, (worker,), own_area(frame), frame, True)
    common = max(frames, key=lambda frame: _usual(frame, [*shares.values()]))
    often = _usual(common, [*shares.values()])
    text = f"nobody stands out; all are most often in {':'.join(common)} ({often:.0%})"
    return Answer(text, (), own_area(common), common)


def _usual(frame: Frame, shares: Sequence[Mapping[Frame | None, float]]) -> float:
    """Median share of the dumps in this frame."""
    return statistics.median(share.get(frame, 0.0) for share in shares) if shares else 0.0


def read_blocked(seen: Mapping[int, Sequence[Frame | None]]) -> Answer:
    """Whose main thread is in another frame than that of the majority."""
    now = {worker: Counter(frames).most_common(1)[0][0] for worker, frames in seen.items() if frames}
    if not now:
        return failed("no dump could be made")
    usual, count = Counter(now.values()).most_common(1)[0]
    odd = [worker for worker, frame in now.items() if frame != usual]
    if not odd or count <= len(now) / 2:
        places = ", ".join(sorted({spelled(frame) for frame in now.values()}))
        return Answer(f"no worker is elsewhere than the majority: {places}", alarm=True)
    places = "; ".join(f"worker {worker} is in {spelled(now[worker])}" for worker in odd)
    mine = now[odd[0]]
    area = own_area(mine) or own_area(usual)
    return Answer(f"{places}, the others in {spelled(usual)}", tuple(odd), area, mine, True)


def spelled(frame: Frame | None) -> str:
    return ":".join(frame) if frame else "no code of its own"


def own_area(frame: Frame | None) -> str:
    """The part of the iteration that a frame of the training belongs to; "" where it can be any."""
    if frame is None:
        return ""
    return OWN_AREAS.get(frame) or OWN_AREAS.get((frame[0], ""), "")
