"""Join the facts of a worker's setup, told by itself and by its agent: short texts, bounded on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from eroica.errors import InputError

SETUP_FILE = "setup.json"
"""What the agent found out, beside the worker's capture."""
MOST_FACTS = 64
MOST_BYTES = 3000
_LONGEST_NAME = 60
_LONGEST_VALUE = 80
_LARGEST_FILE = 64_000
_VARIABLE = "env:"


def read_setup(path: Path) -> dict[str, str]:
    """Read the facts that the agent wrote down.

    Raises:
        InputError: It cannot be read, or is no list of facts.
    """
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_FILE), type=dict[str, str])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} holds no facts: {error}") from error


def joined_setup(own: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Join the worker's own facts with those its agent saw; variables as the worker has them, not as it began."""
    has_looked = "python" in own
    seen = {name: value for name, value in outside.items() if not (has_looked and name.startswith(_VARIABLE))}
    return {**own, **seen}


def bounded_setup(facts: Mapping[str, str]) -> dict[str, str]:
    """Keep as many facts as fit into `MOST_BYTES`, each cut to its length, in order of name, variables last."""
    kept: dict[str, str] = {}
    left = MOST_BYTES
    for name in sorted(facts, key=lambda name: (name.startswith(_VARIABLE), name))[:MOST_FACTS]:
        value = "".join(letter for letter in facts[name] if letter.isprintable())[:_LONGEST_VALUE]
        left -= len(name.encode()) + len(value.encode()) + 4
        if len(name) > _LONGEST_NAME or left < 0:
            continue
        kept[name] = value
    return kept
