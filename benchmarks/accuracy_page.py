"""Draws `docs/accuracy.md` from the raw runs in `benchmarks/results/faults/`; nothing on it is written by hand.

    python benchmarks/accuracy_page.py

Why a run was wrong stands in `benchmarks/results/faults/wrong.toml`: key of the run -> one sentence.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import accuracy
import exam_page
from accuracy import Run, Share
from calibration import diagram
from injected.expected import EXPECTED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "faults"
PAGE = HERE.parent / "docs" / "accuracy.md"
#: First tries in a row of the table that shows them in their order.
AT_A_TIME = 25
#: What a class of the paper is here, where that is something else.
_STANDS_FOR = {"hardware: GPU": "hardware: GPU (CPUs that compute more slowly)"}
#: A gain whose median error is larger is no measure of what a fault costs.
_FAR_OFF = 0.4
DIAGRAM = PAGE.parent / "pictures" / "calibration.svg"
HEAD = """# How often the verdict is right

Made by `python benchmarks/accuracy_page.py` from the raw runs in `benchmarks/results/`: those in `faults/`, which `make
bench-faults` adds to, in the first part; jobs of others, hidden ranks, mixed faults and the corpus at the end. In the
first part every run is a real PyTorch job under `eroica run`, on CPUs: 2 to 4 processes of one small training with one
fault of `benchmarks/injected` in it, or none; or (`hosts`) six on three network namespaces that mostly sleep instead of
computing, with those of `benchmarks/host_faults.py`. *Right* means that the verdict, its cause, its workers and its
scope are all those stated there and in `benchmarks/injected/expected.py`: where a mechanism has two sides, one of the
causes in the table; where all of a host suffer, whichever workers ("–"). Naming the right function is counted apart
("–" where there is none to name). Windows last 5 or 6 s instead of 20 s here, baseline windows 2 s, pauses between
windows 10 s; on several hosts the trigger is more sensitive, too. The default windows are 15 s longer. Targets are the
project's own. Jobs with an odd seed run the same training under other names. A job that is slow from its start is told
what an iteration should take (`expected_iteration_s`) where all workers are hit alike, and with an even seed; the
others are told nothing. Intervals are Wilson's, 95 %.
"""


def main() -> int:
    lines = [line for path in sorted(RESULTS.glob("*.jsonl")) for line in read_lines(path)]
    runs, windows = accuracy.latest(lines), accuracy.windows(lines)
    if not runs:
        print(f"no runs in {RESULTS}")
        return 1
    text = [
        *page(runs, reasons(), windows, accuracy.mended(lines), accuracy.first_tries(lines)),
        *exam_page.sections(),
    ]
    PAGE.write_text("\n".join(text), encoding="utf-8")
    DIAGRAM.write_text(diagram(accuracy.reliability(accuracy.judged(runs))), encoding="utf-8")
    print(f"{PAGE}: {len(runs)} runs, {len(windows)} windows")
    return 0


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def reasons() -> dict[str, str]:
    path = RESULTS / "wrong.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def changed_faults() -> dict[str, dict[str, str]]:
    """Since when a fault is what it is, and what it was before."""
    path = RESULTS / "changed.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def page(
    runs: Sequence[Run],
    why: dict[str, str],
    windows: Sequence[Run] = (),
    mended: Sequence[tuple[Run, Run]] = (),
    first: Sequence[Run] = (),
) -> Iterator[str]:
    """The page, line by line."""
    faulty = [run for run in runs if accuracy.is_faulty(run)]
    healthy = [run for run in runs if not accuracy.is_faulty(run)]
    yield HEAD
    yield from age([*runs, *windows])
    yield from summary(faulty, healthy, windows, first)
    yield from by_age([run for run in first if accuracy.is_faulty(run)])
    yield from per_fault(faulty)
    yield from per_class(faulty, first)
    yield from per_place(faulty)
    yield from alarms(healthy)
    yield from by_hand(windows)
    yield from confidence(runs, first)
    yield from gains(faulty)
    yield from mixed_up(faulty)
    yield from wrong(runs, why)
    yield from was_wrong(mended)
    yield from machines(runs)


def age(lines: Sequence[Run]) -> Iterator[str]:
    """When the runs were made, and whether the present way of choosing causes judged them."""
    made = [line for line in lines if line.get("when") and line.get("revision")]
    if not made:
        return
    days = sorted(str(line["when"])[:10] for line in made)
    with_it = sum(exam_page.has_arbiter(line) for line in made)
    if with_it == len(made):
        return
    yield (
        f"**How old this is.** All figures down to *Machines* are of {len(made)} runs and windows made from {days[0]} "
        f"to {days[-1]}; {with_it or 'none'} of them with code that chooses causes by one account "
        f"({exam_page.ARBITER}, 2026-11-27). So they describe earlier revisions, not the present one. What later ones "
        "say of kept windows stands under *Windows of the corpus*.\n"
    )


def summary(
    faulty: Sequence[Run], healthy: Sequence[Run], windows: Sequence[Run], first: Sequence[Run]
) -> Iterator[str]:
    pairs = accuracy.judged([*faulty, *healthy])
    errors = accuracy.gain_errors(faulty)
    by_fault = accuracy.by(faulty, "fault")
    weak = [fault for fault, mine in by_fault.items() if accuracy.share(mine).value < 0.8]
    delays = [run["trigger_to_verdict_s"] for run in faulty]
    first_right = accuracy.share(list(filter(accuracy.is_faulty, first)))
    yield from table(
        ("", "measured", "target"),
        [
            ("faulty runs right", words(accuracy.share(faulty)), "97.5 % of at least 200"),
            ("... the first time each was made, before anything was changed for it", words(first_right), ""),
            ("faults right in at least 80 % of their runs", f"{len(by_fault) - len(weak)} of {len(by_fault)}", "all"),
            ("healthy runs without a cause", words(accuracy.share(healthy)), "all"),
            ("windows opened by hand on healthy jobs, without a cause", words(accuracy.share(windows)), "all of 300"),
            ("Brier score of the confidence", number(accuracy.brier(pairs)), "at most 0.1"),
            ("... the first time", number(accuracy.brier(accuracy.judged(first))), ""),
            ("median error of the gain", percent(accuracy.median(errors)), "at most 20 % of it"),
            ("median time from trigger to verdict", f"{number(accuracy.median(delays))} s, window included", ""),
        ],
    )
    yield (
        "\nWhoever was wrong was looked into, Eroica was mended, and the run was made again: so the first row says how "
        "much of what it was mended for it gets right now, and the second what to expect of further jobs of this "
        "kind. Other models, GPUs and clusters are not measured here.\n"
    )


def by_age(first: Sequence[Run]) -> Iterator[str]:
    """Whether what was mended for some runs holds for others: first tries in the order in which they were made."""
    yield "## First tries, in the order in which they were made\n"
    ordered = accuracy.in_order(first)
    parts = [ordered[at : at + AT_A_TIME] for at in range(0, len(ordered), AT_A_TIME)]
    rows = [(f"{1 + at * AT_A_TIME}-{at * AT_A_TIME + len(part)}", part) for at, part in enumerate(parts)]
    yield from table(("runs", "right"), [(name, words(accuracy.share(part))) for name, part in rows])


def per_fault(faulty: Sequence[Run]) -> Iterator[str]:
    yield "## Fault by fault\n"
    yield "Times are medians, seconds: from the fault's first iteration to the trigger, from there to the verdict.\n"
    rows = []
    groups = accuracy.by(faulty, "fault")
    for fault in sorted(groups, key=lambda fault: [*EXPECTED, fault].index(fault)):
        mine = groups[fault]
        parts = [told(mine, part) for part in ("verdict", "cause", "workers", "function")]
        times = [
            number(accuracy.median(run[name] for run in mine))
            for name in ("onset_to_trigger_s", "trigger_to_verdict_s")
        ]
        error = percent(accuracy.median(accuracy.gain_errors(mine)))
        rows.append((f"`{fault}`", wanted(mine), words(accuracy.share(mine)), *parts, *times, error))
    yield from table(
        (
            "fault",
            "cause",
            "right",
            "verdict",
            "cause right",
            "workers",
            "function",
            "to trigger",
            "to verdict",
            "gain error",
        ),
        rows,
    )


def wanted(runs: Sequence[Run]) -> str:
    """The cause that comes first, and others that are right, too."""
    expected = EXPECTED.get(runs[0]["fault"])
    causes = runs[0]["expected"]["causes"] if expected is None else [expected.cause, *sorted(expected.also)]
    return " or ".join(dict.fromkeys(causes))


def told(runs: Sequence[Run], part: str) -> str:
    """In how many runs a part of the answer was right; a dash where any would be."""
    expected = runs[0]["expected"]
    is_any = {"workers": expected.get("scope") == "any", "function": not expected.get("function")}.get(part, False)
    return "–" if is_any else str(sum(run["parts"][part] for run in runs))


def per_class(faulty: Sequence[Run], first: Sequence[Run]) -> Iterator[str]:
    """The same runs by the paper's classes, with its fleet's weights."""
    now, once = (accuracy.by_papers_class(filter(accuracy.is_faulty, runs)) for runs in (faulty, first))
    yield "## By the paper's classes\n"
    yield (
        "Slow jobs by the classes in which the paper counts the hard cases of its fleet (table 2: 70 of them, no "
        "standstills). The last row weights each class by its number of cases there. A fault's class is who would "
        "have to mend it (`benchmarks/accuracy.py`); what no class claims is user code. No run had a GPU: the row "
        "*hardware: GPU* is `slow-compute`, a worker's process on a CPU that is stopped for 16 of each 20 ms, which "
        "stands for a device that computes more slowly.\n"
    )
    rows = [
        (
            _STANDS_FOR.get(name, name),
            str(kind.cases),
            words(accuracy.share(now[name])),
            words(accuracy.share(once[name])),
        )
        for name, kind in accuracy.PAPERS_CLASSES.items()
    ]
    weighted = [percent(accuracy.weighted_share(groups)) for groups in (now, once)]
    cases = str(sum(kind.cases for kind in accuracy.PAPERS_CLASSES.values()))
    yield from table(("class", "cases", "right", "the first time"), [*rows, ("weighted", cases, *weighted)])


def per_place(faulty: Sequence[Run]) -> Iterator[str]:
    yield "## Where and when\n"
    rows = [
        (name, value, words(accuracy.share(mine)))
        for name in ("layout", "onset", "renamed")
        for value, mine in sorted(accuracy.by(faulty, name).items(), key=str)
    ]
    for told in (True, False):
        mine = [run for run in faulty if run["onset"] == "start" and bool(run.get("expected_iteration_s")) == told]
        rows.append(("start", "told what to expect" if told else "told nothing", words(accuracy.share(mine))))
    yield from table(("", "", "right"), [(name, str(value), right) for name, value, right in rows])


def alarms(healthy: Sequence[Run]) -> Iterator[str]:
    yield "## Healthy jobs\n"
    rows = [
        (f"`{fault}`", words(accuracy.share(mine)), str(sum(run["asked_by_hand"] for run in mine)))
        for fault, mine in sorted(accuracy.by(healthy, "fault").items())
    ]
    yield from table(("behavior", "without a cause", "windows asked for by hand"), rows)


def by_hand(windows: Sequence[Run]) -> Iterator[str]:
    yield "## Windows opened by hand on healthy jobs\n"
    yield (
        "`benchmarks/healthy_windows.py`; on a busy machine a program beside the job needs a core for a third of every "
        "second.\n"
    )
    groups = accuracy.by([{**one, "place": (one["layout"], one["busy"])} for one in windows], "place")
    rows = [
        (layout, "busy" if busy else "alone", words(accuracy.share(mine)))
        for (layout, busy), mine in sorted(groups.items())
    ]
    alarms = [f"`{one['key']}`: {one['said'].get('cause', 'no verdict')}" for one in windows if not one["right"]]
    yield from table(("layout", "machine", "without a cause"), rows) if rows else iter(["None so far.\n"])
    yield from ([f"Wrong: {'; '.join(alarms)}.\n"] if alarms else [])
    was = [f"`{one['key']}`: {one['was'].get('cause', 'no verdict')}" for one in windows if one.get("was")]
    if was:
        yield (
            f"{len(was)} of them named a cause when they were first made ({'; '.join(was)}); Eroica was mended, and "
            "all windows of these jobs were made again.\n"
        )


def confidence(runs: Sequence[Run], first: Sequence[Run]) -> Iterator[str]:
    yield "## Is the confidence a probability?\n"
    yield (
        "Verdicts that name a cause, by stated confidence. How sure Eroica is was fitted to these runs (one exponent, "
        "`diagnosis/gate`); the second table, of the first time each run was made, is nearer to what to expect.\n"
    )
    for when, mine in (("now", runs), ("the first time", first)):
        pairs = accuracy.judged(mine)
        constant = number(accuracy.brier_of_a_constant(pairs))
        yield (
            f"{when[0].upper()}{when[1:]}: Brier score {number(accuracy.brier(pairs))}; somebody who always states the "
            f"share that comes true would have {constant}.\n"
        )
        rows = [
            (f"{one.low:.1f}-{one.high:.1f}", f"{one.mean:.2f}", words(one.right), bar(one.right.value))
            for one in accuracy.reliability(pairs)
        ]
        yield from table(("stated", "mean", "right", ""), rows)
    yield "![Reliability diagram](pictures/calibration.svg)\n"


def gains(faulty: Sequence[Run]) -> Iterator[str]:
    yield "## Is the gain right?\n"
    yield (
        "Beside the gain stands what the fault really cost: the job's own pace before it, or the same job without it, "
        "as the training printed it. Verdicts that are right about slow jobs; medians.\n"
    )
    rows = []
    for fault, mine in accuracy.by(faulty, "fault").items():
        known = [
            run for run in mine if run["right"] and accuracy.true_gain(run) and run["said"].get("gain") is not None
        ]
        if known and known[0]["expected"]["verdict"] == "slow":
            stated = accuracy.median(run["said"]["gain"] for run in known)
            true = accuracy.median(map(accuracy.true_gain, known))
            rows.append(
                (f"`{fault}`", percent(stated), percent(true), percent(accuracy.median(accuracy.gain_errors(known))))
            )
    yield from table(("fault", "stated", "true", "error as a share of it"), rows)


def mixed_up(faulty: Sequence[Run]) -> Iterator[str]:
    yield "## What was said instead\n"
    rows = []
    for fault, answers in accuracy.confusion(faulty).items():
        causes = {cause for run in faulty if run["fault"] == fault for cause in run["expected"]["causes"]}
        others = {answer: count for answer, count in answers.items() if answer not in causes}
        if others:
            rows.append(
                (f"`{fault}`", " or ".join(sorted(causes)), ", ".join(f"{what} ({n})" for what, n in others.items()))
            )
    yield from table(("fault", "wanted", "said"), rows) if rows else iter(["No cause was taken for another.\n"])


def wrong(runs: Sequence[Run], why: dict[str, str]) -> Iterator[str]:
    yield "## What is still wrong\n"
    rows = [
        (
            f"`{run['key']}`",
            run["said"].get("cause", run["said"]["verdict"]),
            missed(run),
            why.get(run["key"], "not explained yet"),
        )
        for run in runs
        if not run["right"]
    ]
    yield from table(("run", "said", "not right", "why"), rows) if rows else iter(["No verdict.\n"])
    off = [fault for fault, mine in accuracy.by(runs, "fault").items() if is_far_off(mine)]
    if off:
        yield f"Stated gains are off by more than 40 % of the true one for {', '.join(f'`{one}`' for one in off)}.\n"


def is_far_off(runs: Sequence[Run]) -> bool:
    """Whether the median gain stated of a fault is no measure of what it costs."""
    errors = accuracy.gain_errors(runs)
    return bool(errors) and accuracy.median(errors) > _FAR_OFF


def was_wrong(mended: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    changed = changed_faults()
    yield "## What was wrong before\n"
    yield (
        "These runs were wrong once and were made again; only the later one counts. In between Eroica was mended, or "
        "the fault itself was changed: then the table says how, and the two are not the same run.\n"
    )
    rows = [
        (
            f"`{before['key']}`",
            before["said"].get("cause", before["said"]["verdict"]),
            before.get("revision") or "unknown",
            after["said"].get("cause", after["said"]["verdict"]),
            after.get("revision") or "unknown",
            how_changed(before, after, changed) or "Eroica",
        )
        for before, after in mended
    ]
    names = ("run", "said", "revision", "says now", "revision", "what was changed")
    yield from table(names, rows) if rows else iter(["None.\n"])


def how_changed(before: Run, after: Run, changed: dict[str, dict[str, str]]) -> str:
    """What became of the fault between two runs of it, "" if nothing."""
    change = changed.get(before["fault"])
    return change["what"] if change and before["when"] < change["since"] <= after["when"] else ""


def missed(run: Run) -> str:
    return ", ".join(name for name, right in run["parts"].items() if not right and name != "function")


def machines(runs: Sequence[Run]) -> Iterator[str]:
    days = sorted(run["when"][:10] for run in runs)
    codes = sorted({run.get("revision") or "unknown" for run in runs})
    facts = {json.dumps(run["machine"], sort_keys=True) for run in runs}
    yield f"## Machines\n\n{len(runs)} runs from {days[0]} to {days[-1]}, revisions {', '.join(codes)}.\n"
    for text in sorted(facts):
        yield "- " + ", ".join(f"{name} {value}" for name, value in json.loads(text).items())
    yield ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def words(share: Share) -> str:
    low, high = share.interval
    return (
        f"{share.good} of {share.total}: {percent(share.value)} ({100 * low:.0f}-{100 * high:.0f})"
        if share.total
        else "-"
    )


def percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.3g} %"


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def bar(value: float) -> str:
    return "█" * round(20 * value)


if __name__ == "__main__":
    sys.exit(main())
