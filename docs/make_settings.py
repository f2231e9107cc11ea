"""Writes docs/settings.md from eroica.settings; run by `make docs`."""

from dataclasses import fields
from pathlib import Path

from eroica.settings import Settings

HEAD = """# Settings

Made from `src/eroica/settings.py` by `make docs`. Set one with `eroica run --set NAME=VALUE`, with the variable
`EROICA_<NAME>`, or in `eroica.toml`; the first of these wins.

| name | default | meaning | source |
|---|---|---|---|
"""


def main() -> None:
    """Write the page."""
    rows = [
        f"| `{item.name}` | {item.default!r} | {item.metadata['doc']} | {item.metadata['source']} |"
        for item in fields(Settings)
    ]
    Path(__file__).with_name("settings.md").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
