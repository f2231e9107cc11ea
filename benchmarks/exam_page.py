"""Sections of `docs/accuracy.md` on runs that nobody wrote the rules for, on the corpus, and on what is drawn or mixed.

Read from `benchmarks/results/`: `exam.jsonl` and `device.jsonl` (`exam.py`), `corpus.jsonl` (`corpus_judge.py`),
`hidden_rank.jsonl` (`hidden_rank.py`) and `mixed.jsonl` (`mixed_faults.py`). A line
that is added there appears by itself; what was not run has no section, but a line that says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from accuracy import PAPERS_CLASSES, Share
from corpus_judge import OUTCOMES, figures, groups, outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Line = dict[str, Any]
#: Slowdowns from here on are those that the project's aim is stated for.
_CLEAR = 1.3
#: The commit since which causes are chosen by one account, and its date, for records of commits that are not kept.
ARBITER = "3c3a9af"
ARBITER_WHEN = "2026-11-27T13:01"
#: A job that is in no folder of this repository, and says none.
_ELSEWHERE = "reports"
#: Folders whose jobs are described elsewhere.
_FOLDERS = {
    "reports": "made after public bug reports (kept outside of this repository)",
    "exam_jobs": "troubles of everyday life, [exam_jobs](../benchmarks/exam_jobs)",
    "exam_paced": "paced jobs, some slow from their start, [exam_paced](../benchmarks/exam_paced)",
    "exam_programs": "loops of other programs, [exam_programs](../benchmarks/exam_programs)",
    "device": "on one GPU, [device](../benchmarks/device)",
    "device/more_jobs": "on one GPU, [device/more_jobs](../benchmarks/device/more_jobs)",
}
#: Class of the paper by kind of fault; user code where neither this nor `exam_classes.toml` says another.
_CLASSES = {
    "host": "hardware: CPU",
    "device": "hardware: GPU",
    "neighbor": "hardware: GPU",
    "link": "hardware: network",
    "collective": "configuration: communication",
}
_USER_CODE = "user code"
_WANTED = {"rank_first": ("the rank", 49), "cause_right": ("the cause", 47)}
_HEADS = ("right", "right one of the two best", "undetermined", "healthy although slow", "wrong")


def sections() -> Iterator[str]:
    """All of them, line by line."""
    yield from exam(read("exam.jsonl"), read("device.jsonl"))
    yield from hidden_rank([line for line in read("hidden_rank.jsonl") if line.get("kind", "run") == "run"])
    yield from mixed(read("mixed.jsonl"))
    yield from corpus(read("corpus.jsonl"))


def read(name: str) -> list[Line]:
    """Lines of a raw record; none where there is none."""
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def first_tries(lines: Sequence[Line]) -> list[Line]:
    """The first line of each job and seed."""
    found: dict[tuple[str, int], Line] = {}
    for line in lines:
        found.setdefault((line["job"], line["seed"]), line)
    return list(found.values())


def first_seeds(lines: Sequence[Line]) -> list[Line]:
    """The first line of each job: a second seed is one of a job that somebody had looked at."""
    found: dict[str, Line] = {}
    for line in lines:
        found.setdefault(line["job"], line)
    return list(found.values())


@cache
def _truths() -> Mapping[str, tuple[str, Line]]:
    """Folder and truth of each job that this repository holds."""
    found = {}
    for path in sorted(HERE.rglob("truth.json")):
        for job in json.loads(path.read_text()):
            found.setdefault(job["job"], (str(path.parent.relative_to(HERE)), job))
    return found


def folder_of(line: Line) -> str:
    """The folder of a line's job; lines of before 28 November 2026 do not state it."""
    return str(line.get("folder") or (_truths()[line["job"]][0] if line["job"] in _truths() else _ELSEWHERE))


def is_faulty(line: Line) -> bool:
    """False for a job without a fault."""
    known = _truths().get(line["job"])
    truth = line.get("truth") or (known[1]["verdict"] if known else None)
    return truth != "healthy" if truth else not line["job"].startswith("healthy")


def class_of(line: Line) -> str:
    """The paper's class of a job with a fault."""
    special = tomllib.loads((HERE / "exam_classes.toml").read_text())
    known = _truths().get(line["job"])
    kind = line.get("fault") or (known[1]["fault_kind"] if known else _KINDS.get(line["job"], ""))
    return str(special.get(line["job"], _CLASSES.get(kind, _USER_CODE)))


#: Kinds of jobs that are kept elsewhere, where their records do not state them.
_KINDS = {"metric_gathers": "collective"}


def exam_outcome(line: Line) -> str:
    """One of `OUTCOMES`; earlier lines do not hold all marks, nor whether the true cause was considered."""
    if line["right"]:
        return "right"
    marks = line.get("marks")
    if isinstance(marks, dict):
        return outcome(line)
    if line["verdict"] == "undetermined" and not line.get("cause"):
        return "considered" if line.get("is_among_best") else "undetermined"
    return "wrong" if line.get("cause") else "missed"


def exam(on_cpus: Sequence[Line], on_gpu: Sequence[Line]) -> Iterator[str]:
    lines = [*on_cpus, *({**line, "folder": line.get("folder", "device")} for line in on_gpu)]
    if not lines:
        return
    flawed, lines = [line for line in lines if "flaw" in line], [line for line in lines if "flaw" not in line]
    tries = first_tries(lines)
    once = first_seeds(tries)
    faulty = [line for line in once if is_faulty(line)]
    yield "## Jobs of others, at default settings, the first time\n"
    yield (
        "Training loops written from public bug reports, public frameworks' examples and everyday troubles, those on "
        "CPUs by people who had not read the rules (README of each folder), those on a GPU by the project itself "
        "(`python benchmarks/exam.py FOLDER --out exam.jsonl`; raw records: `benchmarks/results/exam.jsonl`, "
        "`device.jsonl`). A row counts the first run of each job. *Right*: verdict, "
        "workers, and the cause or a word of the function. *Right one of the two best*: undetermined, with the true "
        'cause among the two likeliest hypotheses; it is on record only since 27 November 2026, and "?" stands where '
        "it is not. *Healthy although slow*: called healthy, or nothing was said. Rules were mended after each row.\n"
    )
    yield from _exam_table(faulty)
    yield from _clear(faulty)
    yield from _healthy_jobs([line for line in once if not is_faulty(line)])
    yield from _others(lines, tries, once)
    for line in flawed:
        found = ", ".join(filter(None, (line["verdict"], line.get("cause"))))
        yield f"Left out, as the job itself was at fault: `{line['job']}` ({line['flaw']}; it was called {found}).\n"
    wrong = [
        f"`{line['job']}` ({line['verdict']}{', ' + line['cause'] if line.get('cause') else ''}"
        f"{_slower(line)}; {line['revision']})"
        for line in faulty
        if not line["right"]
    ]
    yield f"Not right, with what was said and how much slower the job got: {'; '.join(wrong) or 'none'}.\n"
    yield from _revisions(lines)
    yield from exam_classes(faulty)


def _exam_table(faulty: Sequence[Line]) -> Iterator[str]:
    rows = []
    for of_folder in groups([{**line, "folder": folder_of(line)} for line in faulty], "folder").values():
        for since in (False, True):
            mine = [line for line in of_folder if has_arbiter(line) == since]
            if mine:
                name = mine[0]["folder"]
                rows.append((_FOLDERS.get(name, f"`{name}`"), _dates(mine), "yes" if since else "no", *_counts(mine)))
    for on_gpu in (False, True):
        for since in (False, True):
            mine = [line for line in faulty if has_arbiter(line) == since and _is_on_gpu(line) == on_gpu]
            row = _counts(mine) if mine else ("none made yet", *[""] * (len(_HEADS) - 1))
            name = f"**all on {'a GPU' if on_gpu else 'CPUs'}**"
            rows.append((name, _dates(mine), "yes" if since else "no", *row))
    yield from _table(("faulty jobs", "run on", f"with the one account ({ARBITER})", *_HEADS), rows)


def _is_on_gpu(line: Line) -> bool:
    return folder_of(line).startswith("device")


def _counts(lines: Sequence[Line]) -> tuple[str, ...]:
    outcomes = [exam_outcome(line) for line in lines]
    right, *rest = (outcomes.count(name) for name in OUTCOMES)
    texts = [str(one) for one in rest]
    unknown = [line for line in lines if exam_outcome(line) == "undetermined" and "is_among_best" not in line]
    if unknown:
        texts[0] = "?" if not rest[0] else f"{rest[0]} or more"
    return (_words_of(right, len(lines)), *texts)


def _clear(faulty: Sequence[Line]) -> Iterator[str]:
    """Jobs that got clearly slower, as they themselves measured."""
    known = [line for line in faulty if line.get("before_ms") and line.get("after_ms")]
    clear = [line for line in known if line["after_ms"] >= _CLEAR * line["before_ms"]]
    for since in (False, True):
        mine = [line for line in clear if has_arbiter(line) == since]
        if mine:
            wrong = sum(exam_outcome(line) in ("missed", "wrong") for line in mine)
            yield (
                f"Of faulty jobs that measured a slowdown of {100 * (_CLEAR - 1):.0f} % or more, "
                f"{'with' if since else 'before'} the one account, right: {_words(mine)}; healthy although slow, or "
                f"wrong: {_words_of(wrong, len(mine))}.\n"
            )
    yield "Aims for these: 95 % of 100 right or with the right one of the two best, at most 2 % wrong.\n"
    without = [line for line in faulty if line not in known]
    if without:
        right = sum(line["right"] for line in without)
        yield (
            f"{len(without)} faulty jobs state no pace of before or after (slow from their start, standing still, or "
            f"ended early), and are counted in the table only: {right} of them right.\n"
        )


def _healthy_jobs(healthy: Sequence[Line]) -> Iterator[str]:
    alarms = [f"`{line['job']}`" for line in healthy if not line["right"]]
    yield f"Healthy jobs without a cause: {_words(healthy)}{'; not ' + ', '.join(alarms) if alarms else ''}.\n"


def _others(lines: Sequence[Line], tries: Sequence[Line], once: Sequence[Line]) -> Iterator[str]:
    second = [line for line in tries if line not in once and is_faulty(line)]
    again = [line for line in lines if line not in tries and is_faulty(line)]
    yield (
        f"Not in the table: {len(second)} second seeds of faulty jobs that had been looked at before "
        f"({_words(second)} right), and {len(again)} runs made again with a seed that had been run before "
        f"({_words(again)} right); rules had been changed between the runs.\n"
    )


def _revisions(lines: Sequence[Line]) -> Iterator[str]:
    named = []
    for name in sorted({line["revision"] for line in lines}):
        many = sum(line["revision"] == name for line in lines)
        lost = "" if is_kept(name.rstrip("+")) else ", not in this repository"
        named.append(f"{name} ({many}{lost})")
    dirty = sum(line["revision"].endswith("+") for line in lines)
    yield (
        f"Revisions, with runs at each: {', '.join(named)}. {dirty} of {len(lines)} were made with files that differed "
        'from the commit ("+"), so they cannot be made again exactly, nor can those of commits that are not kept.\n'
    )


def exam_classes(faulty: Sequence[Line]) -> Iterator[str]:
    """The faulty, slow jobs by the paper's classes, with its fleet's weights."""
    yield "### By the paper's classes\n"
    yield (
        "The same first runs of slow jobs (no standstills), as the benchmark's above. The class follows from the kind "
        "of the fault (a collective: configuration of communication; another process on the cores: CPU) or stands in "
        "`benchmarks/exam_classes.toml`. None of these jobs had a faulty device: *hardware: GPU* is another process on "
        "the same GPU, or a process whose waits for a device were made longer.\n"
    )
    slow = [line for line in faulty if not _stands_still(line)]
    found: dict[str, list[Line]] = {name: [] for name in PAPERS_CLASSES}
    for line in slow:
        found[class_of(line)].append(line)
    rows = []
    for name, kind in PAPERS_CLASSES.items():
        mine = found[name]
        parts = [[line for line in mine if has_arbiter(line) == since] for since in (False, True)]
        rows.append((name, str(kind.cases), *(_words(part) if part else "no run" for part in parts)))
    weights = [
        _weighted({name: [line for line in mine if has_arbiter(line) == since] for name, mine in found.items()})
        for since in (False, True)
    ]
    cases = str(sum(kind.cases for kind in PAPERS_CLASSES.values()))
    yield from _table(
        ("class", "cases of the paper's fleet", "right before the one account", "right with it"),
        [*rows, ("weighted over the classes that have runs", cases, *weights)],
    )


def _weighted(found: Mapping[str, Sequence[Line]]) -> str:
    known = {name: mine for name, mine in found.items() if mine}
    cases = sum(PAPERS_CLASSES[name].cases for name in known)
    if not cases:
        return "no run"
    value = sum(PAPERS_CLASSES[name].cases * _share(mine).value for name, mine in known.items()) / cases
    return f"{100 * value:.3g} % ({cases} of the cases)"


def _stands_still(line: Line) -> bool:
    known = _truths().get(line["job"])
    return bool((line.get("truth") or (known[1]["verdict"] if known else "slow")) == "blocked")


def _slower(line: Line) -> str:
    before, after = line.get("before_ms"), line.get("after_ms")
    return f", {before:.0f} to {after:.0f} ms" if before and after else ""


def has_arbiter(line: Line) -> bool:
    """True if the code of a run chose causes by one account; by date where its commit is not kept."""
    name = line["revision"].rstrip("+")
    if is_kept(name):
        return name == ARBITER or _git("merge-base", "--is-ancestor", ARBITER, name)
    return str(line["when"]) >= ARBITER_WHEN


@cache
def is_kept(name: str) -> bool:
    """True if the repository has a commit of this name."""
    return bool(name) and _git("cat-file", "-e", f"{name}^{{commit}}")


@cache
def _git(*words: str) -> bool:
    return subprocess.run(["git", *words], cwd=HERE, capture_output=True, check=False).returncode == 0


def hidden_rank(lines: Sequence[Line]) -> Iterator[str]:
    yield "## A rank that is hidden\n"
    if not lines:
        yield "Not run yet (`python benchmarks/hidden_rank.py --runs 50 --out benchmarks/results/hidden_rank.jsonl`).\n"
        return
    yield (
        "In each run one rank gets slow on the way; kind, rank and size are drawn and kept from the tool, which runs "
        "at its defaults (`python benchmarks/hidden_rank.py --runs 50 --out benchmarks/results/hidden_rank.jsonl`; DDP "
        "and FSDP2, 4 to 8 ranks that mostly wait). *Rank*: the first cause names that rank and no other.\n"
    )
    rows = [
        (f"`{name}`", *_hidden_row(mine))
        for field in ("fault", "layout", "ranks")
        for name, mine in groups(lines, field).items()
    ]
    yield from _table(
        ("runs with", "rank first", "cause right", "both", "undetermined", "healthy although slow"),
        [*rows, ("all", *_hidden_row(lines))],
    )
    for field, (what, wanted) in _WANTED.items():
        right = sum(bool(line[field]) for line in lines)
        yield f"{what.capitalize()}: {_words_of(right, len(lines))}; aim: {wanted} of 50.\n"
    wrong = [
        f"{line['seed']}: `{line['fault']}` on {line['rank']}, said {line.get('cause', line['verdict'])} "
        f"on {line.get('workers', [])}"
        for line in lines
        if not (line["rank_first"] and line["cause_right"])
    ]
    yield f"Not right: {'; '.join(wrong) or 'none'}.\n"
    yield from _made(lines)


def _hidden_row(lines: Sequence[Line]) -> tuple[str, ...]:
    both = sum(line["rank_first"] and line["cause_right"] for line in lines)
    counts = [sum(bool(line[field]) for line in lines) for field in _WANTED]
    words = [sum(line["verdict"] == word for line in lines) for word in ("undetermined", "healthy")]
    return (f"{counts[0]} of {len(lines)}", str(counts[1]), str(both), *map(str, words))


def mixed(lines: Sequence[Line]) -> Iterator[str]:
    yield "## Two faults at once\n"
    if not lines:
        yield "Not run yet (`python benchmarks/mixed_faults.py --out benchmarks/results/mixed.jsonl --seeds 0,1`).\n"
        return
    yield (
        "Real jobs of four workers at default settings (`python benchmarks/mixed_faults.py --out "
        "benchmarks/results/mixed.jsonl --seeds 0,1`). *Right*: both "
        "are told as causes, each with its workers and a gain within a factor of two of what the job loses without the "
        "other, and no third cause is named. `link-and-collections` has six workers on three hosts, "
        "`stage-and-compute` one pipeline of two workers; the way in which its model is cut costs 0 to 7 % beside the "
        "other fault.\n"
    )
    rows = [
        (f"`{name}`", _words(mine), ", ".join(sorted({why for line in mine for why in line.get("wrong", [])})))
        for name, mine in groups([{**line, "name": line["key"].partition("/")[0]} for line in lines], "name").items()
    ]
    yield from _table(("faults", "right", "what was wrong"), [*rows, ("all", _words(lines), "")])
    yield from _made(lines)


def _made(lines: Sequence[Line]) -> Iterator[str]:
    runs = Counter(line["revision"] for line in lines)
    codes = ", ".join(f"{revision} ({count})" for revision, count in sorted(runs.items()))
    later = " What a miss showed may have been mended before later runs." if len(runs) > 1 else ""
    yield f"Run on {_dates(lines)}; revisions, with runs at each: {codes}.{later}\n"


def corpus(lines: Sequence[Line]) -> Iterator[str]:
    if not lines:
        return
    revisions = ", ".join(sorted({line["revision"] for line in lines}))
    by_use = groups(lines, "use")
    names = {line["key"].partition("/")[0] for line in lines}
    yield "## Windows of the corpus\n"
    yield (
        f"All {len(lines)} windows of {len(names)} runs that were kept ([corpus](../benchmarks/corpus)), judged again "
        f"by the rules of {revisions} (`python benchmarks/corpus_judge.py --out benchmarks/results/corpus.jsonl`). "
        "*Tuned on*: rules were looked at with the entry. *Exam*: no change of a rule is known that was made with "
        "it in sight. Windows were judged one by one, without what a job remembers of earlier ones.\n"
    )
    used = ", ".join(f"{name}: {len(mine)}" for name, mine in by_use.items())
    spread = ", ".join(f"{name} {len(mine)}" for name, mine in groups(lines, "layout").items())
    yield (
        f"Windows by use: {used}. By layout: {spread}. The aims were 400 windows, 40 faults and 8 layouts; there are "
        f"{len(lines)}, {len({line['fault'] for line in lines} - {'none'})} kinds of fault and "
        f"{len({line['layout'] for line in lines})}.\n"
    )
    by_job = groups([{**line, "job": _whose(line)} for line in lines], "job")
    parts = [*(by_use.items() if len(by_use) > 1 else ()), *by_job.items(), ("all", list(lines))]
    yield from _table(
        ("entries", *_HEADS, "alarms in healthy ones", "Brier", "gain off, median", "gain off by more than 40 %"),
        [_row(name, figures(mine)) for name, mine in parts],
    )
    bad = [line for line in lines if not line["is_healthy"] and outcome(line) in ("missed", "wrong")]
    said = [f"`{line['key']}` ({line['cause'] or line['verdict']}{_true_gain(line)})" for line in bad]
    early = sum(line["purpose"] == "baseline" for line in bad if not line["cause"])
    yield (
        f"Healthy although slow, or wrong, with the true gain: {'; '.join(said) or 'none'}. {early} of those called "
        "healthy are baseline windows of jobs that were slow already, which have nothing to be compared with.\n"
    )
    yield (
        "Aims: 99 % right of what rules were tuned on, a Brier score of 0.05, a median error of the gain of 15 %, no "
        "gain off by more than 40 %.\n"
    )


def _whose(line: Line) -> str:
    if line["key"].startswith("device-"):
        return "jobs on one GPU"
    return "faults of the benchmark" if line["origin"] == "benchmark" else "jobs of others, on CPUs"


def _true_gain(line: Line) -> str:
    gain = f", {100 * line['true_gain']:.0f} %" if line.get("true_gain") is not None else ""
    return f"{gain}, {line['purpose']} window"


def _row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    off = "-" if found["gain_off"] is None else f"{100 * found['gain_off']:.3g} %"
    right, *rest = (found[one] for one in OUTCOMES)
    return (
        name, _words_of(right, found["faulty"]), *map(str, rest),
        f"{found['alarms']} of {found['healthy']}", str(found["brier"]), off,
        f"{found['gain_far']} of {found['gains']}",
    )  # fmt: skip


def _dates(lines: Sequence[Line]) -> str:
    days = sorted({str(line["when"])[:10] for line in lines})
    return "" if not days else days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _share(lines: Sequence[Line], good: Callable[[Line], bool] = lambda line: bool(line["right"])) -> Share:
    return Share(sum(map(good, lines)), len(lines))


def _words(lines: Sequence[Line]) -> str:
    return _words_of(sum(bool(line["right"]) for line in lines), len(lines))


def _words_of(good: int, total: int) -> str:
    if not total:
        return "0 of 0"
    share = Share(good, total)
    low, high = share.interval
    return f"{good} of {total}: {100 * share.value:.3g} % ({100 * low:.0f}-{100 * high:.0f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
