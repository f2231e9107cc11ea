"""Runs in the middle namespace: a flow monitor whose keys move up and down 100 times while packets come in."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from cora.controller import Replan
from cora.engine import Engine, Options
from cora.functions import load
from cora.namespaces import check_device
from cora.placement import Placement

REPLANS = 100

engine = Engine(
    load("monitor", {"flows": 4096}),
    Placement({"flows": "split", "sources": "both", "stats": "both"}, {"flows": 64}),
    (check_device("in", False), check_device("out", False)),
    Options(state=Path(sys.argv[1]), adapt=False),
)
table, chooser = engine.splits[0], random.Random(1)
with engine:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not engine.counters()["fast"]["packets"]:
        engine.slow.cora_poll(5, 0)
        engine.hops.follow(engine.slow)
    while engine.replans < REPLANS:
        end = time.monotonic() + 0.03
        while time.monotonic() < end:
            engine.slow.cora_poll(5, 0)
        slow = [key for _, key, _ in sorted(engine.tables.slow_items(table), reverse=True)[:40]]
        fast = [key for _, key, _ in engine.tables.fast_items(table)]
        engine.carry_out(Replan({"flows": chooser.sample(slow, min(30, len(slow)))}, {"flows": fast[::2]}, 1.0))
        time.sleep(0.02)
        while engine.pending:
            engine._promote()
    before = -1
    while before != (before := engine.counters()["fast"]["packets"]):  # until the sender is done
        engine.slow.cora_poll(400, 0)
sys.stdout.write(json.dumps(engine.counters()) + "\n")
