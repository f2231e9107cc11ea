"""Three hosts train, and the path between two of them gets slow: C4D names it, and shows the delays between hosts.

    python benchmarks/demo.py

Hosts are network namespaces, so it needs root and Linux; workers communicate for real (gloo over TCP). A minute.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.hosts import Hosts, available

from c4d import Job

HEALTHY_S, PATIENCE_S, RATE = 24.0, 60.0, "10mbit"


def main() -> int:
    possible, why = available()
    if not possible:
        print(f"no hosts here: {why}")
        return 2
    os.environ["EROICA_C4D"] = "true"
    options = argparse.Namespace(workers=1, traffic="mesh", kilobytes=256, pace_ms=60.0, set=["baseline_window=false"])
    with tempfile.TemporaryDirectory(prefix="c4d-") as name, Hosts(3) as hosts:
        job = Job(hosts, Path(name), options)
        job.start()
        try:
            print("three hosts train ...", flush=True)
            if not job.wait_healthy(HEALTHY_S):
                print("the job did not come up:", (job.directory / "node0" / "err").read_text()[-2000:])
                return 1
            print(f"the path from node1 to node2 carries {RATE}/s from now on ...", flush=True)
            hosts.limit_path(1, 2, RATE)
            began, verdict = time.monotonic(), None
            while verdict is None and time.monotonic() - began < PATIENCE_S:
                time.sleep(0.2)
                told = (one for one in job.verdicts().values() if one.get("found_by") == "communication")
                verdict = next(told, None)
            took_s = time.monotonic() - began
            print(f"after {took_s:.0f} s: {verdict['summary'] if verdict else 'nothing was told'}\n", flush=True)
            time.sleep(5.0)  # until the next matrix
            subprocess.run([sys.executable, "-m", "eroica", "ways", str(job.reports[0])], check=True)
        finally:
            job.end()
    return 0 if verdict and verdict["findings"][0]["hosts"] == ["node1", "node2"] else 1


if __name__ == "__main__":
    sys.exit(main())
