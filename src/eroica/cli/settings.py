"""`eroica settings`: every tunable with its present value, default and source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

import click

from eroica.cli.output import say
from eroica.errors import UsageError
from eroica.settings import Settings, allowed, load_settings


@click.command()
def settings() -> None:
    """List every setting: name, value now, default, meaning, what it may be, source.

    Set one with `--set NAME=VALUE`, the variable EROICA_<NAME>, or in eroica.toml.
    """
    now = load_settings()
    for item in fields(Settings):
        value = getattr(now, item.name)
        changed = "" if value == item.default else f"  (default {item.default})"
        if item.metadata["secret"] and value:
            value, changed = "(set, not shown)", ""
        say(f"{item.name} = {value}{changed}")
        say(f"    {item.metadata['doc']} [{allowed(item)}; {item.metadata['source']}]")


def settings_from(pairs: Iterable[str]) -> tuple[Settings, Mapping[str, str]]:
    """Settings with `--set name=value` on top.

    Returns:
        The settings, and the given pairs as environment variables for child processes.

    Raises:
        UsageError: A pair has no "=", an unknown name or a value of the wrong type.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--set {pair!r}: expected name=value; `eroica settings` lists the names")
        given[name.strip().replace("-", "_")] = value.strip()
    settings = load_settings(given)
    return settings, {f"EROICA_{name.upper()}": value for name, value in given.items()}
