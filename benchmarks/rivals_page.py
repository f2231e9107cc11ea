"""Draws `docs/rivals.md` from `benchmarks/results/faults/`: other tools beside Eroica, on the same jobs.

python benchmarks/rivals_page.py
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import accuracy
from accuracy_page import PAGE as ACCURACY_PAGE
from accuracy_page import RESULTS, machines, read_lines, table
from injected.expected import EXPECTED
from rival_jobs import LAYOUT, PHASE_S
from rival_pyspy import DUMPS, STANDS_OUT
from rival_traceml import SUMMARY_S
from rivals import AREAS, BLOCKED, FAULTS, SLOW, wanted_workers

Line = dict[str, Any]
PAGE = ACCURACY_PAGE.with_name("rivals.md")
OURS = "eroica"
TOOLS = (OURS, *FAULTS)
#: Rows of the tables, the healthy job last.
ORDER = (*(name for name in SLOW if name != "none"), *BLOCKED, "none")
TITLES = {
    OURS: "Eroica",
    "traceml": "TraceML",
    "pyspy": "py-spy, read by a rule",
    "hta": "HTA",
    "fr": "Flight Recorder analyzer",
    "nvrx": "NVRx straggler detection",
}
HEAD = """# Other tools on the same jobs

Made by `python benchmarks/rivals_page.py` from the raw runs in `benchmarks/results/faults/`; `benchmarks/rivals.py`
makes those of the other tools, `make bench-faults` those of Eroica. Every run is a real PyTorch job of four processes
under DDP and gloo on CPUs, with one fault in it that begins in the middle, or none. None of these tools was built for
all of these faults, and most were built for GPUs: read the table together with
[what each was built for](#what-each-was-built-for). Eroica's authors chose the faults and the rules by which answers
are read, and Eroica's own figures come from the jobs that it is developed on.
"""
LEGEND = """*worker*: the one worker that has the fault is named, and no other; left out where a fault is of all workers
and nobody was singled out. *part*: the right part of the iteration is named (input, compute, communication, outside the
step); for Eroica, which names a cause, the cause. *function*: the right Python function is named (on a blocked job: its
file); left out where there is none, and for tools that do not aim at functions. Counts are runs that are right of runs
made. On the healthy job: whether the tool says that something is wrong.
"""
#: What each tool says at all, beyond whether something is wrong.
AIMS = {
    OURS: ("names_worker", "names_area", "names_function"),
    "traceml": ("names_worker", "names_area"),
    "pyspy": ("names_worker", "names_area", "names_function"),
    "hta": ("names_worker",),
    "fr": ("names_worker",),
    "nvrx": ("names_worker", "names_area"),
}
BUILT_FOR = {
    OURS: "Built to say which function on which workers makes an iteration slow, by itself, from short profiles of all "
    "workers. It has to be started around the job, and explains only what it has a cause for.",
    "traceml": "Built as a light and always-on diagnosis of the phases of a step (input, copies, forward, backward, "
    "optimizer), with GPU timing, memory and utilization, and a comparison of runs in CI. It does these better than "
    "Eroica: a verdict for every run whether slow or not, step memory, regression limits, integrations with Hugging "
    "Face, Lightning and others. It does not look below a phase, so no function is expected of it; a worker that is "
    "slow inside backward is equalized by the all-reduce there, which its maintainers describe as a known limit. "
    f"Run with `traceml run train.py --nproc-per-node 4 --history-retention {SUMMARY_S:.0f}s`, the loop as in its "
    "quickstart: the fetch in front of `traceml.trace_step(model)`, everything else of the iteration in it, "
    '`traceml.init(mode="auto")`. The retention makes its summary cover the faulty phase only. Its primary diagnosis '
    "is what counts; one of severity `info`, which it gives as context, is neither an alarm nor an answer.",
    "pyspy": "Built to show what one Python process does right now, without any preparation of it: it needs no change "
    "to the job, no restart and no import, works where nothing else was set up, sees native frames, and makes flame "
    "graphs. Eroica needs to be there from the start. It does not compare workers; that is the reader's work. Run as "
    f"`py-spy dump --nonblocking --pid` on each worker {DUMPS} times in {PHASE_S:.0f} s. The reader's rule: for each "
    "worker, the share of dumps in which each function of the training's own code is the innermost own one on the main "
    "thread; who exceeds the median of the others most is named together with the function, if by "
    f"{100 * STANDS_OUT:.0f} points; if nobody does, the function in which all are most often. On a blocked job: who "
    "is in another function than the majority. A practised reader may see more.",
    "hta": "Built for GPU traces: breakdown of GPU time, idle time, overlap of communication and computation, kernel "
    "and memory analysis, differences between traces, which Eroica does not offer in that depth. Its straggler "
    "analysis ranks workers by how late they enter long NCCL kernels, and returns as many as it is asked for, "
    "so it cannot say that nobody is slow. Run as "
    "`TraceAnalysis(trace_dir).get_potential_stragglers(num_candidates=1)` on traces of `torch.profiler`, five "
    "iterations of each worker. The traces of these jobs have no GPU kernels, so what it says "
    "here says nothing about its use on GPUs.",
    "fr": "Built to find out, after a collective has timed out under NCCL, which worker did not join it or joined with "
    "something else. It does so from a buffer that costs next to nothing, is part of torch, and knows each "
    "collective's sizes, types and stacks; it is not meant for slow jobs. Run as `torchfrtrace DIRECTORY` on dumps of "
    "`torch._C._distributed_c10d._dump_fr_trace()`, written by a thread of each worker that waits for a file. Dumps of "
    "gloo do not name their process groups, which the analyzer asks for; where it stopped at that, the names were "
    "filled in from the entries and it was run once more, and that answer is what counts. It names who did not join a "
    "collective, not what that worker does instead, so no part is expected of it.",
    "nvrx": "Built to give each GPU, and each section of code that is marked, a score against the others and against "
    "its own past, cheaply and all the time, next to fault tolerance and checkpointing that Eroica has nothing of. Its "
    "detector loads CUPTI when it is initialized, so it was started here and no more.",
}


def main() -> int:
    lines = [line for path in sorted(RESULTS.glob("*.jsonl")) for line in read_lines(path)]
    rivals = latest_rivals(lines)
    if not rivals:
        print(f"no runs of other tools in {RESULTS}")
        return 1
    PAGE.write_text("\n".join(page(rivals, our_runs(lines))), encoding="utf-8")
    print(f"{PAGE}: {len(rivals)} runs of other tools")
    return 0


def latest_rivals(lines: Sequence[Line]) -> list[Line]:
    """Runs of other tools by key, the last of each."""
    found = sorted((line for line in lines if line["kind"] == "rival"), key=lambda line: str(line["when"]))
    return list({line["key"]: line for line in found}.values())


def our_runs(lines: Sequence[Line]) -> list[Line]:
    """Eroica's runs of the same faults in the same layout, in the form of the others."""
    same = [
        run
        for run in accuracy.latest(lines)
        if run["layout"] == LAYOUT and run["fault"] in AREAS and (run["onset"] == "middle" or run["fault"] == "none")
    ]
    return list(map(as_rival, same))


def as_rival(run: Line) -> Line:
    """A run of `faults.py` as a line of `rivals.py`."""
    expected, parts, said = EXPECTED[run["fault"]], run["parts"], run["said"]
    one = bool(wanted_workers(run["fault"], run["worker"]))
    place = expected.function or expected.file
    who = said.get("workers", ())
    word = "worker" if len(who) == 1 else "workers"
    where = f" on {word} {', '.join(map(str, who))}" if said.get("scope") == "some" else ""
    found = f"{said['cause']}{where}, {said['function']}" if "cause" in said else said["verdict"]
    healthy = not expected.cause
    named = parts["function"] if expected.function else parts["file"]
    return {
        "tool": OURS,
        "version": run.get("revision") or run.get("eroica", ""),
        "fault": run["fault"],
        "seed": run["seed"],
        "said": found,
        "error": "",
        "ran": True,
        "names_worker": parts["workers"] if one else (False if said.get("scope") == "some" and len(who) == 1 else None),
        "names_area": None if healthy else parts["cause"],
        "names_function": named if place and not healthy else None,
        "alarms_on_healthy": not run["right"] if healthy else None,
        "when": run["when"],
        "machine": run["machine"],
        "revision": run.get("revision", ""),
    }


def page(rivals: Sequence[Line], ours: Sequence[Line]) -> Iterator[str]:
    """The page, line by line."""
    lines = [*ours, *rivals]
    yield HEAD
    yield "## What was named\n"
    yield LEGEND
    yield from figures(lines)
    yield "## Together\n"
    yield (
        "Tools have been tried on different faults: compare them within a row of the table above, not by the totals of "
        "this one.\n"
    )
    yield from totals(lines)
    yield "## What each was built for\n"
    for tool in TOOLS:
        yield f"**{TITLES[tool]}** ({versions(lines, tool)}). {BUILT_FOR[tool]}\n"
    yield "## What they said\n"
    yield from answers(rivals, ours)
    yield from machines(lines)


def figures(lines: Sequence[Line]) -> Iterator[str]:
    """Fault by fault, a column for each tool that has said anything."""
    tools = [tool for tool in TOOLS if any(line["tool"] == tool and line["fault"] in AREAS for line in lines)]
    rows = [
        (
            f"`{fault}`",
            *(cell([line for line in of(lines, tool) if line["fault"] == fault], tool, fault) for tool in tools),
        )
        for fault in ORDER
    ]
    yield from table(("fault", *(TITLES[tool] for tool in tools)), rows)


def cell(lines: Sequence[Line], tool: str, fault: str) -> str:
    """What one tool has right on one fault."""
    if not lines:
        return "not meant for it" if tool != OURS and fault not in FAULTS[tool] else "not run"
    could = [line for line in lines if counts(line)]
    if not could:
        return "could not read it"
    if not EXPECTED[fault].cause:
        alarms = sum(bool(line["alarms_on_healthy"]) for line in could)
        return f"alarm in {alarms} of {len(could)}" if alarms else f"quiet in {len(could)} of {len(could)}"
    parts = [
        f"{word} {share_of(could, name)}"
        for word, name in (("worker", "names_worker"), ("part", "names_area"), ("function", "names_function"))
        if name in AIMS[tool] and any(line[name] is not None for line in could)
    ]
    return "<br>".join(parts)


def counts(line: Line) -> bool:
    """Whether the tool has given an answer, right or wrong."""
    return bool(line["ran"]) and (not line["error"] or bool(line.get("workers_named")) or bool(line.get("area_named")))


def share_of(lines: Sequence[Line], name: str) -> str:
    asked = [line[name] for line in lines if line[name] is not None]
    return f"{sum(map(bool, asked))}/{len(asked)}" if asked else "-"


def totals(lines: Sequence[Line]) -> Iterator[str]:
    """One row for each tool."""
    rows = []
    for tool in TOOLS:
        mine = of(lines, tool)
        could = [line for line in mine if counts(line)]
        healthy = [line for line in could if line["alarms_on_healthy"] is not None]
        alarms = f"{sum(line['alarms_on_healthy'] for line in healthy)}/{len(healthy)}" if healthy else "-"
        shares = [share_of(could, name) if name in AIMS[tool] else "not its aim" for name in AIMS[OURS]]
        made = [line for line in mine if line["ran"]]
        rows.append((TITLES[tool], str(len(made)), str(len(made) - len(could)), *shares, alarms))
    yield from table(
        (
            "",
            "runs",
            "of them unreadable for it",
            "right worker",
            "right part",
            "right function",
            "alarms, healthy job",
        ),
        rows,
    )


def versions(lines: Sequence[Line], tool: str) -> str:
    found = sorted({line["version"] for line in of(lines, tool)})
    return ", ".join(found) or "not run"


def answers(rivals: Sequence[Line], ours: Sequence[Line]) -> Iterator[str]:
    """The first run of each fault, in the tool's own words."""
    first = [*{(line["tool"], line["fault"]): line for line in reversed(list(ours))}.values()]
    rows = [
        (f"`{line['fault']}`" if line["fault"] in EXPECTED else "any", TITLES[line["tool"]], shown(line["said"]))
        for line in sorted([*first, *rivals], key=lambda line: (place_of(line["fault"]), TOOLS.index(line["tool"])))
    ]
    yield from table(("fault", "tool", "said"), rows)


def place_of(fault: str) -> int:
    return ORDER.index(fault) if fault in ORDER else len(ORDER)


def shown(text: str, limit: int = 240) -> str:
    """Fit for a cell of a table."""
    flat = " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def of(lines: Sequence[Line], tool: str) -> list[Line]:
    return [line for line in lines if line["tool"] == tool]


if __name__ == "__main__":
    sys.exit(main())
