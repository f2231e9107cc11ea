"""Writes docs/settings.md from eroica.settings; run by `make docs`."""

from dataclasses import fields
from pathlib import Path

from eroica.settings import Settings, allowed

HEAD = """# Settings

Made from the code by `make docs`. Set one with `eroica run --set NAME=VALUE`, with the variable `EROICA_<NAME>`, or in
`eroica.toml`; the first of these wins. Anything else than what is allowed is refused with one line that says so.

| name | default | allowed | meaning | source |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """The page."""
    rows = [
        f"| `{item.name}` | {item.default!r} | {allowed(item)} | {item.metadata['doc']} | {item.metadata['source']} |"
        for item in fields(Settings)
    ]
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Write the page."""
    Path(__file__).with_name("settings.md").write_text(settings_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
