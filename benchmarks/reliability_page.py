"""Draws `docs/results/disturbances.md` from what `benchmarks/reliability.py` measured."""

from pathlib import Path

from disturbances import DISTURBANCES

PAGE = Path(__file__).parents[1] / "docs" / "results" / "disturbances.md"
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
HEAD = """# Results: disturbances

`python benchmarks/reliability.py`; `--write-docs` draws this page from `benchmarks/results/reliability.json`.

A small training prints the loss of every step and a hash of all parameters, to the bit. It runs once alone and once
under `eroica run`, where something is done to Eroica, or by the training. Both runs are compared: steps, standard
output, standard error, and exit status. Each training also forks a child that steps an optimizer and leaves by
`os._exit`, sends itself signals that it handles, and is interrupted by its own time limit.

*Same* means equal to the byte, without lines that begin with `eroica:`. If torchrun reports a failed worker, standard
error holds times and process ids; there only the absence of Eroica is asserted (¹).

"""
SPEED = """
## Speed

Hooks taken off and put on again every few iterations inside one job (one rank), while Eroica's processes are left
alone, held by SIGSTOP, or killed each time that they are started again. Mean of the middle 80 % of the paired
ratios, and its 95 % interval. Wanted: an upper bound of 1 %.

| agent and collector | slowdown | 95 % interval | pairs |
|---|---|---|---|
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
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
