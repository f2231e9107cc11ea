"""List the kept windows that need each function of diagnosis: the corpus is judged without it.

    python benchmarks/corpus_needs.py --out needs.jsonl [--only diagnosis.helpers,diagnosis.search] [--page PAGE.md]

A part is a function of `eroica.diagnosis` or `eroica.localize` that can find nothing: its annotation allows None, an
empty sequence, an empty text, False or zero, which is what it returns while it is switched off. A window needs it that
is judged rightly with it and not without. A part that changes no verdict is deleted, or stays for recordings, of which
the corpus holds none. Only windows in which a part runs are judged without it.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import inspect
import json
import multiprocessing
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import corpus_judge
from corpus_entry import ENTRIES, entry_files

ROOMS = ("eroica.diagnosis", "eroica.localize")
#: Beginning of a return annotation, and what stands for "found nothing"; the first that matches counts.
NOTHING: tuple[tuple[str, Callable[[], Any]], ...] = (
    (r".*\| None$", lambda: None),
    (r"(list|Sequence|Collection)\[", list),
    (r"tuple\[.*\.\.\.\]$", tuple),
    (r"(Iterator|Iterable|Generator)\[", lambda: iter(())),
    (r"dict\[|Mapping\[", dict),
    (r"(frozen)?set\[", frozenset),
    (r"str$", str),
    (r"bool$", bool),
    (r"float$", float),
)
Line = dict[str, Any]


def modules() -> Iterator[ModuleType]:
    """Every module of the rooms."""
    for room in ROOMS:
        package = importlib.import_module(room)
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            yield importlib.import_module(found.name)


def parts() -> dict[str, Callable[[], Any]]:
    """Name of each part, as "diagnosis.helpers.find_lock_holders", and what it returns while it is off."""
    found = {}
    for module in modules():
        for name, function in vars(module).items():
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            said = str(function.__annotations__.get("return", ""))
            nothing = next((make for pattern, make in NOTHING if re.match(pattern, said)), None)
            if nothing is not None:
                found[f"{module.__name__.removeprefix('eroica.')}.{name}"] = nothing
    return found


def replace(part: str, other: Callable[..., Any]) -> None:
    """Replace a part in every module that knows it, for good: in a process of its own."""
    path, name = f"eroica.{part}".rsplit(".", 1)
    original = getattr(importlib.import_module(path), name)
    for module in [one for key, one in sys.modules.items() if key.startswith("eroica.")]:
        for known, value in list(vars(module).items()):
            if value is original:
                setattr(module, known, other)


ran: set[str] = set()


def note_runs(part: str) -> None:
    """Have a part write down that it runs."""
    path, name = f"eroica.{part}".rsplit(".", 1)
    original = getattr(importlib.import_module(path), name)

    def noted(*arguments: Any, **named: Any) -> Any:
        ran.add(part)
        return original(*arguments, **named)

    replace(part, noted)


def prepare(part: str) -> None:
    """Switch a part off in this process; "" = have all parts say when they run."""
    if not part:
        for one in parts():
            note_runs(one)
        return
    nothing = parts()[part]
    replace(part, lambda *_, **__: nothing())


def judged(path: str) -> tuple[str, list[Line], set[str]]:
    """The windows of one entry, and the parts that ran; no lines where it cannot be judged."""
    ran.clear()
    try:
        lines = corpus_judge.judged(Path(path))
    except Exception:  # noqa: BLE001 - whatever the callers of a part make of nothing, the window needs the part
        lines = []
    return path, lines, set(ran)


def judge(part: str, paths: list[str], processes: int) -> list[tuple[str, list[Line], set[str]]]:
    """All windows of entries without a part; "" = with all."""
    with multiprocessing.get_context("fork").Pool(processes, prepare, (part,)) as pool:
        return list(pool.imap_unordered(judged, paths))


def needs(whole: list[Line], without: list[Line]) -> Line:
    """Return the windows that are right only with a part, those right only without it, and how many verdicts change."""
    before, after = ({line["key"]: line for line in lines} for lines in (whole, without))
    lost = [key for key, line in before.items() if line["marks"]["right"] and not _right(after.get(key))]
    won = [key for key, line in before.items() if not line["marks"]["right"] and _right(after.get(key))]
    changed = [key for key, line in before.items() if key in after and _told(line) != _told(after[key])]
    return {"lost": lost, "won": won, "told_otherwise": len(changed)}


def _right(line: Line | None) -> bool:
    return line is not None and bool(line["marks"]["right"])


def _told(line: Line) -> tuple[Any, ...]:
    return tuple(str(line.get(name)) for name in ("verdict", "cause", "workers", "function", "gain"))


def as_page(found: list[Line]) -> str:
    """The table, those that are needed most first."""
    rows = sorted(found, key=lambda one: (-len(one["lost"]), one["part"]))
    lines = [
        f"| `{one['part']}` | {len(one['lost'])} | {len(one['won'])} | {one['told_otherwise']} | "
        f"{', '.join(one['lost'][:3])} |"
        for one in rows
    ]
    head = "| part | windows that need it | windows right without | told otherwise | such as |\n|---|---|---|---|---|\n"
    return f"# What each part of diagnosis is needed for\n\n`make corpus-needs`.\n\n{head}" + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a part; parts that it holds are left")
    parser.add_argument("--only", default="", help="parts whose names begin so, with commas between them")
    parser.add_argument("--private", action="store_true", help="functions that only their own module calls, too")
    parser.add_argument("--page", type=Path, help="write the table here")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {one["part"] for one in known}
    beginnings = tuple(filter(None, options.only.split(","))) or ("",)
    todo = [part for part in parts() if part not in done and part.startswith(beginnings)]
    todo = [part for part in todo if options.private or "._" not in part]
    whole = judge("", [str(path) for path in entry_files(ENTRIES)], options.processes)
    for count, part in enumerate(todo, 1):
        paths = {path for path, _, parts_run in whole if part in parts_run}
        without = [line for _, lines, _ in judge(part, sorted(paths), options.processes) for line in lines]
        found = {"part": part, **needs([line for path, lines, _ in whole if path in paths for line in lines], without)}
        found["entries"] = len(paths)
        known.append(found)
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{count} of {len(todo)}: {part}: {len(found['lost'])} need it, {len(found['won'])} right without")
    if options.page:
        options.page.write_text(as_page(known))
    nobody = collections.Counter(bool(one["told_otherwise"]) for one in known)[False]
    print(f"{nobody} of {len(known)} parts change no verdict")
    return 0


if __name__ == "__main__":
    sys.exit(main())
