from __future__ import annotations

from pathlib import Path

import pytest

from eroica.diagnosis import CATALOG

PAGES = Path(__file__).parents[2] / "docs" / "causes"


@pytest.mark.parametrize("slug", sorted(CATALOG))
def test_every_cause_has_a_page_with_meaning_example_evidence_and_next_step(slug: str) -> None:
    text = (PAGES / f"{slug}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {CATALOG[slug].title}")
    places = [text.index(f"\n## {heading}\n") for heading in ("Meaning", "Example", "Evidence", "What to do")]
    assert places == sorted(places)


def test_every_page_belongs_to_a_cause() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(CATALOG)
