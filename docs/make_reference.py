"""Write docs/commands.md from the commands' own options, and docs/api.md from the docstrings of what is public.

python docs/make_reference.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import eroica
from eroica.cli import group

HERE = Path(__file__).parent
COMMANDS_HEAD = """# Commands

Made from the commands themselves by `make docs`. `eroica COMMAND --help` says the same.
"""
API_HEAD = """# From Python

Made from the docstrings by `make docs`. The package is typed (`py.typed`); names come in when they are first used, so
`import eroica` costs next to nothing. Beside these: `import eroica.auto`
([starting it](start.md#how-it-gets-into-the-job)), and [callbacks](tools.md#a-callback-instead) for trainers.
"""


def commands_page() -> str:
    """The page of commands."""
    return COMMANDS_HEAD + "".join(_commands(group, click.Context(group, info_name="eroica"), 2))


def _commands(commands: click.Group, context: click.Context, depth: int) -> Iterator[str]:
    """Each command of a group, and behind it those below it."""
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        inside = click.Context(command, info_name=name, parent=context)
        yield _command(command, inside, depth)
        if isinstance(command, click.Group):
            yield from _commands(command, inside, depth + 1)


def _command(command: click.Command, inside: click.Context, depth: int) -> str:
    usage = " ".join([inside.command_path, *command.collect_usage_pieces(inside)])
    options = [one for one in (param.get_help_record(inside) for param in command.params) if one is not None]
    rows = [f"| `{flags.replace('|', chr(92) + '|')}` | {_cell(about)} |" for flags, about in options]
    table = "\n".join(["| option | |", "|---|---|", *rows]) + "\n" if rows else ""
    return f"\n{'#' * depth} {inside.command_path}\n\n```text\n{usage}\n```\n\n{_text(command.help or '')}\n\n{table}"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _text(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "").replace("<", "&lt;")


def api_page() -> str:
    """The page of what can be called from Python."""
    return API_HEAD + "".join(_entry(name, getattr(eroica, name)) for name in eroica.__all__ if name != "__version__")


def _entry(name: str, value: Any) -> str:
    about = _docstring(inspect.getdoc(value) or "")
    if not inspect.isclass(value):
        return f"\n## eroica.{name}\n\n```text\n{name}{_signature(value)}\n```\n\n{about}\n"
    parts = [f"\n## eroica.{name}\n\n{about}\n", *_fields(value), *_methods(name, value)]
    return "".join(parts)


def _fields(value: Any) -> Iterator[str]:
    annotations = inspect.get_annotations(value)
    if annotations and hasattr(value, "__struct_fields__"):
        rows = [f"| `{name}` | `{str(kind).replace('|', chr(92) + '|')}` |" for name, kind in annotations.items()]
        yield "\n".join(["\n| field | type |", "|---|---|", *rows]) + "\n"


def _methods(owner: str, value: Any) -> Iterator[str]:
    for name, member in vars(value).items():
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(plain):
            continue
        call = "" if isinstance(member, property) else _signature(plain)
        yield f"\n### {owner}.{name}\n\n```text\n{name}{call}\n```\n\n{_docstring(inspect.getdoc(plain) or '')}\n"


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _docstring(text: str) -> str:
    """Google form as Markdown: sections become lists."""
    lines: list[str] = []
    section = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Attributes|Source):", line):
            lines += ["", f"**{line[:-1]}**", ""]
            section = True
        elif section and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and " " not in name else f"- {line.strip()}")
        elif section and line.startswith("        "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines).replace("<", "&lt;")


def main() -> None:
    """Write both pages."""
    (HERE / "commands.md").write_text(commands_page(), encoding="utf-8")
    (HERE / "api.md").write_text(api_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
