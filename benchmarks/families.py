"""The corpus without the signs of one family of causes at a time: what are its windows called then?

    python benchmarks/families.py --out benchmarks/results/families.jsonl [--part 1/3]

A family is a cause of the catalog. Rules are written by hand, so there is nothing that could be fitted again without
it; instead nothing that makes a candidate of that cause, or renames one to it, is heard, and the block that the account
of the iteration finds (`diagnosis/rest`) is called unknown where it would have that name. Each window that is right now
is judged again without the family of the cause that it names. So this measures what the rest of the mechanism says of a
fault whose signs it does not know. Standstills are left out (they are told by who waits for whom), and so are windows
whose cause is unknown now. Windows in the output at the present revision are skipped: parts can be run one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corpus_entry import ENTRIES, CorpusWindow, Entry, entry_files, is_among_best, marks, read_entry
from corpus_judge import REVISION, baselines, verdict_of
from eroica.diagnosis import rest, selection
from eroica.diagnosis.candidate import Candidate
from eroica.model.verdict import Verdict
from machine import revision

Line = dict[str, Any]
#: What makes candidates in `selection`, beside the rules in its table.
_BUILDERS = (
    "find_oversubscription",
    "find_narrow_affinity",
    "find_without_core",
    "find_unexplained",
    "find_latecomers",
    "find_sibling_processes",
    "find_misconfiguration",
    "find_saturated_loading",
    "find_uneven_work",
)
#: What gives candidates another name.
_RENAMERS = ("attribute_to_neighbors", "attribute_to_setup", "name_callers", "tell_routed")
#: What a window can be called without its family, best first.
OUTCOMES = (
    "right",
    "place, cause unknown",
    "place, another cause",
    "workers, cause unknown",
    "considered",
    "undetermined",
    "healthy",
    "wrong",
)


@contextlib.contextmanager
def without(family: str) -> Iterator[None]:
    """Judge as if nobody knew the signs of a cause."""
    saved = {name: getattr(selection, name) for name in ("_RULES", *_BUILDERS, *_RENAMERS)}
    block = rest._candidate
    selection._RULES = tuple(_deaf(rule, family) for rule in saved["_RULES"])
    for name in _BUILDERS:
        setattr(selection, name, _deaf(saved[name], family))
    for name in _RENAMERS:
        setattr(selection, name, _plain(saved[name], family))
    rest._candidate = lambda *given: _unnamed(block(*given), family)  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(selection, name, value)
        rest._candidate = block


def _deaf(builder: Callable[..., Any], family: str) -> Callable[..., list[Candidate]]:
    return lambda *given: [one for one in builder(*given) if one.cause != family]


def _plain(renamer: Callable[..., Any], family: str) -> Callable[..., list[Candidate]]:
    """The names from before, where one would become the family's."""

    def named(view: Any, candidates: Sequence[Candidate]) -> list[Candidate]:
        found = list(renamer(view, candidates))
        return list(candidates) if any(one.cause == family for one in found) else found

    return named


def _unnamed(candidate: Candidate | None, family: str) -> Candidate | None:
    if candidate is None or candidate.cause != family:
        return candidate
    return msgspec.structs.replace(candidate, cause="unknown")


def judged(path: Path) -> list[Line]:
    """One line for each window of an entry that is right, and names a cause, with all signs."""
    entry = read_entry(path)
    lines = (_line(entry, one) for one in entry.windows if one.truth is not None and one.truth.verdict == "slow")
    return [line for line in lines if line is not None]


def _line(entry: Entry, one: CorpusWindow) -> Line | None:
    truth = one.truth
    assert truth is not None
    baseline, doubted = baselines(entry, one)
    full = verdict_of(entry, one, baseline, doubted)
    if full is None or full.cause is None or full.cause.cause == "unknown" or not marks(full, truth).right:
        return None
    family = full.cause.cause
    with without(family):
        verdict = verdict_of(entry, one, baseline, doubted)
    assert verdict is not None
    found = verdict.cause
    return {
        "key": f"{entry.name}/{one.window.window_id}",
        "fault": entry.fault,
        "use": entry.use,
        "family": family,
        "function": full.cause.function.name,
        "workers": list(full.cause.workers),
        "verdict": verdict.verdict,
        "said": found.cause if found is not None else "",
        "said_function": found.function.name if found is not None else "",
        "said_workers": list(found.workers) if found is not None else [],
        "outcome": outcome(full, verdict, marks(verdict, truth).right, is_among_best(verdict, truth), one),
        "summary": verdict.summary,
    }


def outcome(full: Verdict, verdict: Verdict, right: bool, among: bool, one: CorpusWindow) -> str:
    """One of `OUTCOMES`.

    Args:
        full: What is said with all signs, which is right.
        verdict: What is said without the family's.
        right: By the truth, which may hold other names or words of the function.
        among: The true one is among the two likeliest hypotheses.
        one: The window.
    """
    known, found = full.cause, verdict.cause
    assert known is not None and one.truth is not None
    if right:
        return "right"
    if found is None:
        named = (known.function.name, known.workers)  # a hypothesis' function has its place behind it
        near = any((it.function.partition(" (")[0], it.workers) == named for it in verdict.considered[:2])
        if verdict.verdict == "healthy":
            return "healthy"
        return "considered" if among or near else "undetermined"
    workers = marks(verdict, one.truth).workers
    if workers and found.function.name == known.function.name:
        return "place, cause unknown" if found.cause == "unknown" else "place, another cause"
    return "workers, cause unknown" if workers and found.cause == "unknown" else "wrong"


def by_family(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines of each family, by name."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["family"], []).append(line)
    return dict(sorted(found.items()))


def counts(lines: Sequence[Line]) -> Mapping[str, int]:
    """How many of each outcome."""
    return {name: sum(line["outcome"] == name for line in lines) for name in OUTCOMES}


def show(lines: Sequence[Line]) -> None:
    for family, mine in (*by_family(lines).items(), ("all", lines)):
        told = ", ".join(f"{many} {name}" for name, many in counts(mine).items() if many)
        print(f"{family:28}{len(mine)} windows: {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a window; appended to")
    parser.add_argument("--entries", type=Path, default=ENTRIES)
    parser.add_argument("--part", default="1/1", help="which part of the entries, of how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    at, of = map(int, options.part.split("/"))
    code = os.environ.get(REVISION) or revision()
    known = [json.loads(text) for text in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {line["key"] for line in known if line["revision"] == code}
    files = list(entry_files(options.entries))[at - 1 :: of]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap(judged, files):
            new = [line | {"revision": code} for line in found if line["key"] not in done]
            with options.out.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in new)
            known += new
    show([line for line in known if line["revision"] == code])
    return 0


if __name__ == "__main__":
    sys.exit(main())
