"""The documents: what is generated is fresh, what is quoted can be read by what it is for, and links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from eroica.cli import group
from eroica.settings import Settings

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_BLOCK = re.compile(r"^(?P<fence>```+)(?P<kind>[a-z]*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
#: What a block may be called; "text" is what a program prints, a picture of characters, or a signature.
KINDS = {"json", "markdown", "python", "sh", "sql", "text", "toml", "yaml"}
#: A line that would be shown as code although no fence says which.
_INDENTED = re.compile(r"^\n(?:    |\t)(?! *[-*] )", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_in_documents_says_what_it_is_and_can_be_read(page: Path) -> None:
    text = page.read_text()
    assert {block["kind"] for block in _BLOCK.finditer(text)} <= KINDS
    for block in _BLOCK.finditer(text):
        kind, code = block["kind"], block["text"]
        if kind == "python" and not re.search(r"^ *\d+ \| ", code):
            ast.parse(code)
        elif kind == "json":
            json.loads(code)
        elif kind == "toml":
            tomllib.loads(code)
        elif kind == "yaml":
            pytest.importorskip("yaml").safe_load(code)
        elif kind in ("sh", "bash"):
            done = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
    outside = _BLOCK.sub("", text)
    assert not re.search(r"^ *(```|~~~)", outside, re.MULTILINE), "a fence that is no block, or whose kind is no word"
    assert not _INDENTED.search(outside), "a block without a fence"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_blocks_are_understood_and_those_within_sentences_exist(page: Path) -> None:
    for block in _BLOCK.finditer(page.read_text()):
        for words in calls(block["text"]) if block["kind"] == "sh" else ():
            understand(words)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", _BLOCK.sub("", page.read_text())):
        if "eroica[" in code:  # an extra of the package
            continue
        for words in calls(re.sub(r"[\[\]<>|…]|\\\|", " ", " ".join(code.split()))):
            command, context, rest = command_of(words)
            known = {flag for param in command.get_params(context) for flag in (*param.opts, *param.secondary_opts)}
            for word in rest[: rest.index("--")] if "--" in rest else rest:
                assert not word.startswith("-") or word.partition("=")[0] in known, f"{word} in {code}"


@pytest.mark.parametrize(
    "line",
    [
        "eroica rum -- python train.py",
        "eroica run --set no_such_setting=3 -- python train.py",
        "eroica run --json",
    ],
)
def test_a_command_that_is_wrong_is_seen(line: str) -> None:
    (words,) = calls(line)
    with pytest.raises((click.UsageError, AssertionError)):
        understand(words)


def calls(text: str) -> Iterator[list[str]]:
    """What follows `eroica` in each command of a shell's text, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # half a sentence
        if words[:1] in (["cd"], ["kubectl"], ["pip"], ["pipx"]):
            continue
        for at in (at for at, word in enumerate(words) if word == "eroica" and words[at + 1 : at + 2] != ["COMMAND"]):
            end = next((end for end in range(at, len(words)) if re.fullmatch(r"[;&|<>]+", words[end])), len(words))
            yield words[at + 1 : end]


def command_of(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that is called, and the words that it gets."""
    command: click.Command = group
    context = click.Context(group, info_name="eroica")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no {context.command_path} {words[0]}"
        command, context = found, click.Context(found, info_name=words[0], parent=context)
        words = words[1:]
    return command, context, words


def understand(words: list[str]) -> None:
    """Read a command's words as the command itself would, without looking whether files exist.

    Raises:
        click.UsageError: It would refuse them.
    """
    command, context, rest = command_of(words)
    given, _, _ = command.make_parser(context).parse_args(list(rest))
    for param in command.get_params(context):
        value = given.get(param.name or "")
        assert value or not param.required, f"{param.name} is missing: {words}"
        if value is not None and not isinstance(param.type, click.Path | click.File):
            param.type_cast_value(context, value)
    known = {one.name for one in fields(Settings)}
    for at, word in enumerate(rest):
        if word == "--set" and (setting := rest[at + 1].partition("=")[0]) != "NAME":
            assert setting in known, f"no setting {setting}: {words}"


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


def test_the_versions_of_the_table_of_tools_are_those_that_are_installed_for_it() -> None:
    files = "".join((ROOT / f"constraints{part}.txt").read_text() for part in ("", "-tools"))
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", files, re.MULTILINE))
    table = (DOCS / "tools.md").read_text().partition("<!-- table:")[2]
    rows = [line.split("|")[-2] for line in table.splitlines() if line.startswith("| ")][1:]
    told = {tuple(one.split()) for row in rows for one in row.split(",")}
    assert len(rows) >= 8 and all(pins[name.replace("_", "-")] == version.partition("+")[0] for name, version in told)


def test_each_picture_is_in_a_page() -> None:
    named = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", page.read_text())
    }
    assert set((DOCS / "pictures").iterdir()) <= named


# ---------------------------------------------------------------------- thorough tests


def test_every_test_that_is_called_thorough_is_there() -> None:
    names = (ROOT / "tests" / "thorough.txt").read_text(encoding="utf-8").splitlines()
    places = [(file, test.partition("[")[0]) for file, _, test in (name.partition("::") for name in names)]
    gone = [
        f"{file}::{test}"
        for file, test in places
        if not (ROOT / file).exists()
        or not re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 40 and not gone
