"""Exams of the corpus that are none any more: rules were changed after an entry was added, with it in sight.

    python benchmarks/corpus_mark.py [--entries FOLDER]

Every change of a rule is judged on the whole corpus, so the first commit to `src/eroica/diagnosis` or `localize` after
the one that added an entry ends its being an exam: `use` becomes "tuned on", and `since` that commit's date. An entry
that no commit holds yet stays as it is. Needs the repository's history.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

from corpus_entry import ENTRIES, entry_files, read_entry, write_entry

ROOT = Path(__file__).resolve().parents[1]
RULES = ("src/eroica/diagnosis", "src/eroica/localize")


def added(path: Path) -> str:
    """The commit that added a file; "" if none did."""
    return _git("log", "--diff-filter=A", "--format=%H", "-1", "--", str(path))


def rules_changed_after(commit: str) -> str:
    """Date of the first later commit that changed rules, as 2026-11-27; "" if there is none."""
    later = _git("log", "--reverse", "--format=%cs", f"{commit}..HEAD", "--", *RULES).splitlines()
    return later[0] if later else ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=Path, default=ENTRIES)
    options = parser.parse_args()
    for path in entry_files(options.entries.resolve()):
        entry = read_entry(path)
        commit = added(path) if entry.use == "exam" else ""
        since = rules_changed_after(commit) if commit else ""
        if since:
            write_entry(msgspec.structs.replace(entry, use="tuned on", since=since), path.parent)
            print(f"{entry.name}: tuned on since {since}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
