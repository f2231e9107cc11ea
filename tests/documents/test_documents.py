"""The documents: what is generated is fresh, what is quoted can be read by what it is for, and links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_BLOCK = re.compile(r"^(?P<fence>```+)(?P<kind>[a-z]*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_in_documents_can_be_read(page: Path) -> None:
    for block in _BLOCK.finditer(page.read_text()):
        kind, text = block["kind"], block["text"]
        if kind == "python" and not re.search(r"^ *\d+ \| ", text):
            ast.parse(text)
        elif kind == "json":
            json.loads(text)
        elif kind == "toml":
            tomllib.loads(text)
        elif kind == "yaml":
            pytest.importorskip("yaml").safe_load(text)
        elif kind in ("sh", "bash"):
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text())
    for target in (match["target"] for match in _LINK.finditer(text)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        there = (page.parent / place).resolve() if place else page
        assert there.exists(), f"{target} in {name(page)}"
        if anchor and there.suffix == ".md":
            assert anchor in set(anchors(there)), f"{target} in {name(page)}"


def anchors(page: Path) -> Iterator[str]:
    """What headings are called in links."""
    for heading in re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE):
        yield re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def test_the_reference_is_that_of_the_code() -> None:
    made = runpy.run_path(str(DOCS / "make_reference.py"))
    for page in ("commands", "api"):
        fresh = made[f"{page}_page"]()
        assert (DOCS / f"{page}.md").read_text() == fresh, "python docs/make_reference.py writes it anew"
