"""What may grow no further: lines, numbers and builders of diagnosis, and docstrings that are riddles.

A rule that is added takes another one's place.

    python scripts/budgets.py

Ceilings are what there is, to go down towards the aims beside them; those of lines and numbers have been raised, too.
Not counted: numbers inside functions, in maps and as arguments, and rules outside of `diagnosis`. Status 1 where a
ceiling is exceeded.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src" / "eroica"
DIAGNOSIS = SOURCE / "diagnosis"
#: Where every docstring says what is done, to what, and when.
PLAIN = ("agent", "collector", "diagnosis", "localize", "summarize", "worker")
LONGEST_SENTENCE = 40


class Budget(NamedTuple):
    """A count, its ceiling today, and where it is to go."""

    what: str
    count: int
    ceiling: int
    aim: int


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Modules of diagnosis but for those on standstills."""
    for path in sorted(DIAGNOSIS.glob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def lines() -> int:
    """Lines of all of them."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path, _ in modules())


def numbers() -> int:
    """Names of modules that stand for a number, or for a row of numbers."""
    found = 0
    for _, tree in modules():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name | ast.Tuple) for one in targets):
                found += _numbers_in(node.value)
    return found


def _numbers_in(value: ast.expr) -> int:
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return sum(_is_number(one) for one in parts)


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def builders() -> int:
    """Places that make a candidate out of nothing."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Candidate"
        for _, tree in modules()
        for node in ast.walk(tree)
    )


def riddles() -> int:
    """Docstrings that begin with Who, What, Whether and the like, and sentences of too many words."""
    found = 0
    for path in (path for folder in PLAIN for path in (SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                found += bool(re.match(r"(Who|Whose|What|Whether|Which|Those|How)\b", text))
                found += sum(len(sentence.split()) > LONGEST_SENTENCE for sentence in re.split(r"(?<=\.)\s+", text))
    return found


def main() -> int:
    """Print the table; the number of budgets that are exceeded decides the status."""
    budgets = (
        Budget("diagnosis: lines", lines(), 15_709, 9_000),
        Budget("diagnosis: numbers", numbers(), 392, 130),
        Budget("diagnosis: builders of candidates", builders(), 21, 1),
        Budget(f"docstrings that are riddles, in {', '.join(PLAIN)}:", riddles(), 0, 0),
    )
    for one in budgets:
        over = "" if one.count <= one.ceiling else "  EXCEEDED: take something out before something new goes in"
        sys.stdout.write(f"{one.what} {one.count:,} of {one.ceiling:,}, aim {one.aim:,}{over}\n")
    return int(any(one.count > one.ceiling for one in budgets))


if __name__ == "__main__":
    sys.exit(main())
