"""What MkDocs is told beyond mkdocs.yml: the pages of causes in the navigation, and links that leave the documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)]*)\)")


def on_config(config: Any) -> Any:
    """Put a page for each cause behind "Causes", and what nobody has given a place behind "More"."""
    pages = sorted((DOCS / "causes").glob("*.md"))
    causes: list[Any] = ["causes.md", *(f"causes/{page.name}" for page in pages)]
    config.nav = [{name: causes if where == "CAUSES" else where} for one in config.nav for name, where in one.items()]
    placed = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    others = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
    more = [page for page in others if page not in placed]
    config.nav += [{"More": more}] if more else []
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What lies beside the documents in the repository is named, not linked: the site does not have it."""
    here = (DOCS / page.file.src_uri).parent

    def named(match: re.Match[str]) -> str:
        target = (here / match["target"].partition("#")[0]).resolve()
        inside = target.is_relative_to(DOCS.resolve())
        return match[0] if inside else f"{match['text']} (`{target.relative_to(DOCS.parent.resolve())}`)"

    return _LINK.sub(named, markdown)
