"""How far recorded runs of `truth.py` are from their predictions, without the time in which ranks sleep.

    python benchmarks/ranges.py benchmarks/results/truth.json

For each record: (real time - sleep) / (predicted time - sleep). The ends of a prediction's range are such factors, see
`prismllm.rehearsal`. The last lines say how many records lie between them, how many lie in the range that was recorded
with them, and how many of the later records lie between the least and the most of the first 16 (the paced jobs).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prismllm.rehearsal import _LONGER, _SHORTER

#: Records of the paced jobs' first runs.
FIRST = 16
#: Sleep on the critical path of a case of `truth.py`, in units of its pace: 3 a layer and micro-batch, 1 for the step.
PACES = {"dp4 accumulate": 25.0, "pp2 dp2 uneven": 28.0, "dp4 slow": 10.5, "pp2 dp2 slow": 22.0}


def paces(case: str) -> float:
    """Return the sleep of a case in units of its pace."""
    return PACES.get(case, 16.0 if "pp2" in case else 7.0)


def main(path: str) -> None:
    """Print each record's factor, and how many lie in the range."""
    rows = json.loads(Path(path).read_text())
    factors = []
    for row in rows:
        sleep_s = row["pace_s"] * paces(row["case"])
        factor = (row["real_s"] - sleep_s) / (row["predicted_s"] - sleep_s)
        factors.append(factor)
        print(f"{row['case']:16} {row['ranks']:3} ranks  pace {1e3 * row['pace_s']:4.0f} ms  factor {factor:.2f}")
    inside = sum(_SHORTER <= factor <= _LONGER for factor in factors)
    held = sum(row["low_s"] <= row["real_s"] <= row["high_s"] for row in rows)
    print(f"{inside} of {len(rows)} between {_SHORTER} and {_LONGER}; {held} within their recorded range")
    first, later = factors[:FIRST], factors[FIRST:]
    inside = sum(min(first) <= factor <= max(first) for factor in later)
    print(f"{inside} of {len(later)} later ones between {min(first):.2f} and {max(first):.2f}, the first {FIRST}")


if __name__ == "__main__":
    main(sys.argv[1])
