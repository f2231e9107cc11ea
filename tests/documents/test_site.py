"""The site: built without a network, complete, and read without one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_S = 60.0

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="no mkdocs: pip install -e '.[dev]'"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    if os.geteuid() == 0 and shutil.which("unshare"):
        command = ["unshare", "--net", *command]
    began = time.monotonic()
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr  # strict: a broken link or anchor is an error
    assert time.monotonic() - began < MOST_S
    return directory


def test_every_document_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    scripts = r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)"
    styles = r"<link[^>]+rel=\"(?:stylesheet|preconnect)\"[^>]+href=\"(https?:[^\"]+)"
    loads = re.compile(f"{scripts}|{styles}")
    for page in site.rglob("*.html"):
        assert not loads.findall(page.read_text()), page
