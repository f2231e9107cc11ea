"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eroica.errors import UsageError
from eroica.settings import Settings, load_settings


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
