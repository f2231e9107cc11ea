"""Two sections of `docs/accuracy.md`: jobs that nobody wrote the rules for, and the windows of the corpus.

Read from `benchmarks/results/exam.jsonl` and `corpus.jsonl`, as `exam.py` and `corpus_judge.py` write them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accuracy import Share
from corpus_judge import figures, groups

RESULTS = Path(__file__).parent / "results"
Line = dict[str, Any]
#: Slowdowns from here on are those that the project's aim is stated for.
_CLEAR = 1.3


def sections(exam: Sequence[Line], corpus: Sequence[Line]) -> Iterator[str]:
    """Both, line by line; nothing of what was not run."""
    if exam:
        yield from _exam(first_tries(exam))
    if corpus:
        yield from _corpus(corpus)


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


def _exam(lines: Sequence[Line]) -> Iterator[str]:
    clear = [line for line in lines if (line.get("after_ms") or 0) >= _CLEAR * (line.get("before_ms") or float("inf"))]
    wrong = [line for line in lines if not line["right"]]
    codes = sorted({line["revision"] for line in lines})
    yield "## Jobs of others, at default settings, the first time\n"
    yield (
        "Training loops written from public bug reports and examples, most of them by people who had not read the "
        f"rules (`benchmarks/exam.py`); each was run once with each seed, at revisions {', '.join(codes)}. Rules were "
        "mended after some of them, so nothing here is a rerun.\n"
    )
    yield from _table(
        ("", "right"),
        [
            ("all", _words(lines)),
            (f"those that became at least {_CLEAR - 1:.0%} slower", _words(clear)),
        ],
    )
    named = ", ".join(f"`{line['job']}` ({line['verdict']})" for line in wrong)
    yield f"Not right, with what was said: {named or 'none'}.\n"


def _corpus(lines: Sequence[Line]) -> Iterator[str]:
    revisions = ", ".join(sorted({line["revision"] for line in lines}))
    yield "## Windows of the corpus\n"
    yield (
        f"All windows that were kept ([corpus](../benchmarks/corpus)), judged again by the rules of {revisions} "
        "(`python benchmarks/corpus_judge.py`). *Exam*: nothing had been tuned to an entry when it was judged first; "
        "later some rules were mended with some of them, so this row is no exam any more. *Considered*: no cause was "
        "named, and the true one is among the two likeliest hypotheses.\n"
    )
    parts = [*groups(lines, "use").items(), ("all", list(lines))]
    yield from _table(
        (
            "entries",
            "right",
            "undetermined",
            "considered",
            "wrong",
            "alarms",
            "Brier",
            "gain off, median",
            "gain off by more than 40 %",
        ),
        [_row(name, figures(mine)) for name, mine in parts],
    )


def _row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    off = "-" if found["gain_off"] is None else f"{100 * found['gain_off']:.3g} %"
    return (
        name, f"{found['right']} of {found['faulty']}", str(found["undetermined"]), str(found["considered"]),
        str(found["wrong"]), f"{found['alarms']} of {found['healthy']}", str(found["brier"]), off,
        f"{found['gain_far']} of {found['gains']}",
    )  # fmt: skip


def _words(lines: Sequence[Line]) -> str:
    share = Share(sum(line["right"] for line in lines), len(lines))
    low, high = share.interval
    return f"{share.good} of {share.total}: {100 * share.value:.3g} % ({100 * low:.0f}-{100 * high:.0f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
