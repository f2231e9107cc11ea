"""Draws `docs/reliability.md` from what `benchmarks/reliability.py` measured."""

import json
from pathlib import Path

from attacks import RESULTS as ATTACKED
from attacks import table
from support.reliability import DISTURBANCES

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
TRIALS = "tests/reliability/test_disturbances.py"
# tests of the same or a nearer look, beside the benchmark itself
TESTS = {
    "agent-killed": f"{TRIALS}, tests/cli/test_supervision.py",
    "collector-killed-at-start": "tests/cli/test_supervision.py",
    "collector-killed-in-window": f"{TRIALS}, tests/cli/test_supervision.py",
    "collector-killed-at-end": "tests/cli/test_supervision.py",
    "both-killed-for-good": "tests/cli/test_supervision.py",
    "both-stopped": f"{TRIALS}, tests/cli/test_supervision.py",
    "disk-full": f"{TRIALS}, tests/cli/test_supervision.py",
    "no-py-spy": "tests/agent/test_looks_at_jobs.py",
    "files-removed": f"{TRIALS} (hostile-files)",
    "memory-truncated": f"{TRIALS} (hostile-files), tests/wire/test_sealed.py",
    "garbage": f"{TRIALS} (hostile-files), tests/security/test_containment.py, tests/worker/test_answering.py",
    "hostile-files": TRIALS,
    "profiler-first": "tests/worker/test_jobs.py",
    "profiler-in-window": "tests/worker/test_jobs.py",
    "exception": TRIALS,
    "sigterm-job": TRIALS,
    "sigterm-run": "tests/cli/test_run.py",
    "elastic-restart": TRIALS,
    "worker-killed": "tests/agent/test_looks_at_jobs.py, tests/test_blocked.py",
    "guard": f"{TRIALS}, tests/reliability/test_one_guard.py, tests/worker/test_guard.py",
}
HEAD = """# Never in the way

Whatever happens to Eroica, the training does not notice. This page says what was tried and what the training saw. Its
tables are made from `benchmarks/results/reliability.json` by `python benchmarks/reliability.py --write-docs`.

## How it was tried

A small training says the loss of every step and a hash of all its parameters, to the bit, and is the same in every
run. It runs once alone and once under `eroica run`, where something is done to Eroica, or by the training itself.
Both runs are compared: every step of every worker that both have, everything else on standard output, standard error,
and the exit status. In every one of these runs the training also forks a child that steps an optimizer and leaves by
`os._exit`, sends itself signals that it has handlers for, and is interrupted by its own time limit (SIGALRM, whose
handler raises).

*Same* below means: losses, parameters, standard output, standard error to the byte, and exit status. Lines that begin
with `eroica:` are left out; `eroica run` writes them before the command begins and after it has ended. Where torchrun
reports a failed worker, standard error holds times, process ids, and lines that depend on who was faster; there it is
only asserted that it does not speak of Eroica (¹).

"""
SPEED = """
## Speed

Hooks taken off and put on again every few iterations inside one job (one rank), while Eroica's processes are left
alone, held by SIGSTOP, or killed each time that they are started again. Mean of the middle 80 % of the paired
ratios, and its 95 % interval. Wanted: an upper bound of 1 %.

| agent and collector | slowdown | 95 % interval | pairs |
|---|---|---|---|
"""
ATTACKS = """
## Attacks

Tried by somebody who had not read the code: `python benchmarks/attacks.py`. A training of one process does something
odd, or has it done to it, alone and under `eroica run` with a window early on; its output, standard error and status
are compared. What is not the same stands in bold.
"""
TAIL = """
## One border

Every function of ours that torch, the interpreter or a thread of the training calls goes through one guard
(`worker/guard.py`): hooks of optimizers and loaders, `atexit`, forks, the import of torch, `gc.callbacks`, weak
references, torch's profiler, our threads. The first failure is kept with its stack, written once to
`log/worker-<pid>.log` in the run directory, and shown by `eroica status`; after it nothing of ours runs any more in
that process, except what takes down a profiler of ours that stood then. `tests/reliability/test_one_guard.py` breaks
them one by one and counts them, so that a new one, or something that is caught elsewhere, fails it.

## Memory that cannot be cut short

A process that writes into a mapped file that was truncated meanwhile is killed by SIGBUS. A worker therefore does not
map its beat file. It shares a memory file that the kernel keeps from shrinking (`memfd_create`, `F_SEAL_SHRINK`); the
beat file only says where it is, and the agent opens it through `/proc/<pid>/fd`. Where the kernel has no such memory,
or the process is guarded (not dumpable), the beat file itself is mapped, and cutting it short ends the training; only
its own user can do that. `sealed_memory = false` asks for this where agents may not look into workers.
(`wire/sealed.py`, `tests/wire/test_sealed.py`)

## What does differ

- **A signal to all processes of a job reaches the training twice** if it is the direct child of `eroica run`: once from
  the sender and once passed on, for nobody can tell whether the sender meant everybody. A handler
  that is not prepared for a second call notices; the default action does not.
- **Healthy is said only of workers that were watched all along.** One that was lost, never seen or dropped out, or that
  had too few iterations to tell, is counted and named in the sentence; a command that failed is never called healthy:
  who ended first, and with what, is said. (`collector/attendance.py`)
- **A tracer, a debugger or cProfile sees our hook** at an optimizer's step and our count of a loader's batches, as
  functions that are called there. Nothing of ours stands between the training and torch: warnings, tracebacks and
  `stacklevel` name the training's lines.
- **torch's compiler sees our hook as an attribute that is stored**: no graph ends, no operator is added, and a step
  that is compiled whole is counted (torch 2.13; elsewhere it is not). With `TORCH_LOGS=side_effects` torch names it.
- **A window's trace is written beside the window's directory**, where nobody removes it under Kineto. Where the whole
  scratch directory goes meanwhile, one line of Kineto's can come on standard error.
- **`python -m eroica run` cannot know which of SIGPIPE and SIGXFSZ were ignored**: Python has changed that before. The
  command `eroica` passes it on.
- **One more process** stands between the launcher and the training, and two beside it.
- **A worker has a few more open files** (its shared memory, the FIFO) and, once it has several threads anyway, one more
  that sleeps until it is asked.
- **A beat file that is removed or cut short before the agent has seen it** leaves that worker unwatched; so does one
  that is gone when an agent was started again.
- **SIGKILL to `eroica run` alone** leaves the command running, unwatched at its end; without Eroica that signal would
  have ended the command.
- **A window on a GPU ends with one synchronization of the device**, when torch's profiler is stopped: two iterations
  after the window's last one or later, at once if it is given up before.
- **SIGTERM to `eroica run` reaches the training up to 2 s later** where a window is open, so that what was captured is
  saved; a second one passes at once.
- **A process that ends inside a window may end later**: by 2 s at most where a collective of the window is open or its
  GPU still works, and by 10 s at most while a complete window is saved. The device is not synchronized there.
- **Training that starts a profiler of its own inside a window** waits for a gloo collective of the window that is
  still open, 2 s at most. If it stays open, our profiler has to stand, recording nothing, and torch refuses theirs
  ("Profiler is already enabled on this thread") until the collective has ended.
- **A profiler that could not be stopped** stands until the process ends, and torch refuses others in that thread: where
  `with eroica.watch()` is left inside a window while a collective or the GPU has not come to rest within 2 s, or in
  another thread than trains, or where the end of a window fails in our own code. It records no operators any more,
  unless it was left in another thread, but on a GPU it goes on collecting kernels.
- **Where the host of worker 0 leaves and the others train on**, these go on unwatched.
- **Without `eroica run`** nobody starts a dead agent or collector again; the training goes on unwatched.
"""


def saw(result: dict) -> str:
    """What the training saw, in a cell."""
    if "skipped" in result:
        return f"not tried: {result['skipped']}"
    if "failed" in result:
        return f"**not shown**: {result['failed'][:200]}"
    if result["differences"]:
        return "**" + "; ".join(result["differences"])[:300] + "**"
    mark = "" if result["stderr_exact"] else "¹"
    return f"same{mark}; {result['steps']} steps, exit status {result['status']}"


def row(name: str, what: str, result: dict) -> str:
    said = "; ".join(part for part in (result.get("eroica", ""), *result.get("said", ())) if part)
    said = said.partition("; see ")[0]
    cells = (what, saw(result), said or "–", TESTS.get(name, "–"))
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def write_page(results: dict) -> None:
    """Write the page."""
    machine = results["machine"]
    lines = [
        f"Machine: {machine['cores']} cores ({machine['processor']}), Linux {machine['kernel']}, Python "
        f"{machine['python']}, PyTorch {machine['torch']}. No GPU.",
        "",
        "## What the training saw",
        "",
        "| what was done | what the training saw | what Eroica made of it | tests, beside the benchmark |",
        "|---|---|---|---|",
    ]
    found = results.get("disturbances", {})
    lines += [row(each.name, each.what, found[each.name]) for each in DISTURBANCES if each.name in found]
    text = HEAD + "\n".join(lines) + "\n"
    if "speed" in results:
        text += SPEED
        for name, measured in results["speed"].items():
            low, high = (f"{100 * measured[bound]:.2f}" for bound in ("lower95", "upper95"))
            text += f"| {name} | {100 * measured['mean']:.2f} % | {low} to {high} % | {measured['pairs']} |\n"
    if ATTACKED.exists():
        text += "\n".join([ATTACKS, *table(json.loads(ATTACKED.read_text())), ""])
    PAGE.write_text(text + TAIL, encoding="utf-8")
