"""`eroica settings`: every tunable with its present value, default and source."""

from __future__ import annotations

from dataclasses import fields

import click

from eroica.cli.output import say
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
