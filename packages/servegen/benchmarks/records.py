"""Where benchmarks find the published pools and keep their raw records."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from servegen.pool import Pool, read_pool

HERE = Path(__file__).parent
DATA = HERE.resolve().parents[3] / "shared" / "data" / "servegen"


def published(name: str) -> Pool:
    return read_pool(DATA / name)


def keep(name: str, values: dict[str, Any]) -> None:
    """Write a raw record and print it."""
    record = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        **values,
    }
    (HERE / "results" / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({k: v for k, v in record.items() if not isinstance(v, list) or len(v) < 12}, indent=1))
