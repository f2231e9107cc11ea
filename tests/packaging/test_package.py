"""Wheel, source distribution and checkout, installed where there is nothing else, as pip, pipx and uvx do it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from support.verdicts import plain

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("build", "hatchling")),
        reason="no build or hatchling: pip install -e '.[dev]'",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, which is built from the source distribution, and that."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "eroica").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name and not name.endswith(".pyc")}
    assert ours <= set(names)
    others = {name for name in names if not name.startswith("eroica/")}
    assert all(".dist-info/" in name or name.endswith(".data/scripts/eroica") for name in others), others
    assert "eroica/py.typed" in names


def test_the_source_distribution_holds_what_a_checkout_needs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "scripts/eroica", "src/eroica/__init__.py"} <= names


@pytest.fixture(scope="module", params=["pipx", "pip", "wheel", "uvx"])
def installed(
    request: pytest.FixtureRequest, built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """How the command is called after `pipx install .` and with `uvx --from .` in a checkout (docs/start.md), and after
    `pip install SOURCE` and `pip install WHEEL`; nothing but declared dependencies in an environment of its own.
    """
    wheel, source = map(str, built)
    room = tmp_path_factory.mktemp(request.param)
    venv.create(room / "own", with_pip=True)
    binaries = room / "own" / "bin"
    python = str(binaries / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    if request.param in ("pip", "wheel"):
        _make([*pip, source if request.param == "pip" else wheel])
        return [str(binaries / "eroica")]
    _make([*pip, "pipx" if request.param == "pipx" else "uv"])
    if request.param == "uvx":  # uv knows neither pip's index nor the system's certificates
        wheels = ("--no-index", "--find-links", str(room / "wheels"))
        _make([python, "-m", "pip", "download", "--quiet", "--dest", str(room / "wheels"), wheel, "hatchling"])
        (room / "wheels" / Path(wheel).name).unlink()  # it is built from the checkout
        return [str(binaries / "uvx"), "--cache-dir", str(room / "cache"), *wheels, "--from", ".", "eroica"]
    own = {"PIPX_HOME": str(room / "home"), "PIPX_BIN_DIR": str(room / "bin"), "PIPX_MAN_DIR": str(room / "man")}
    _make([python, "-m", "pipx", "install", "."], own)
    return [str(room / "bin" / "eroica")]


def _make(command: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> None:
    environment = {**_plain(), **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout + done.stderr


def _plain() -> dict[str, str]:
    hidden = ("EROICA_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def run(command: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, env=_plain(), cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_installed_command_works_without_torch(installed: list[str], tmp_path: Path) -> None:
    assert run(installed, "--version").stdout.startswith("eroica, version")
    verdict = plain("healthy", "All is well.")
    (tmp_path / "verdict.json").write_bytes(verdict.to_json())
    shown = run(installed, "report", tmp_path / "verdict.json", "--html", tmp_path / "page.html")
    assert shown.returncode == 0 and "All is well" in shown.stdout, shown.stderr
    assert "All is well" in (tmp_path / "page.html").read_text()  # templates and styles came along
    assert run(installed, "run", "--", "sh", "-c", "exit 7").returncode == 7


def test_an_extra_that_is_missing_says_which(installed: list[str]) -> None:
    refused = run(installed, "mcp")
    assert refused.returncode == 1 and "pip install 'eroica[mcp]'" in refused.stderr
