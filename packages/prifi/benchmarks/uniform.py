"""The eavesdropper over many rounds, with honest clients and with a broken one: `results/listen.json`. Needs root."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from prifi import attack

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--broken", type=int, default=100)
    arguments = parser.parse_args()
    rows = [attack.run("listen", True, arguments.rounds), attack.run("listen", False, arguments.broken)]
    for row in rows:
        print(row)
    (RESULTS / "listen.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
