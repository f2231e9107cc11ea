"""Blame and the other attacks, on the virtual clock with the real roles: `results/attacks.json`, `results/random.json`.

`--random N` makes N random adversarial runs from the seed `--first` on; two processes may share them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from prifi import attack, identity, simulate
from prifi.errors import BadProof
from prifi.identity import Identity, Roster
from prifi.simulate import Conditions

RESULTS = Path(__file__).parent / "results"


def attacks(name: str, trials: int, off_trials: int) -> None:
    """Run one attack, protected and not, and keep its outcomes beside the others'."""
    path = RESULTS / "attacks.json"
    for protected, count in ((True, trials), (False, off_trials)):
        if name == "flip-scalar":
            row = attack.run("flip", protected, count, spoil="scalar")
        else:
            row = attack.run(name, protected, count)
        print(row, flush=True)
        rows = json.loads(path.read_text()) if path.exists() else []
        key = (row["attack"], row.get("spoil"), protected)
        rows = [one for one in rows if (one["attack"], one.get("spoil"), one["protected"]) != key]
        path.write_text(json.dumps([*rows, row], indent=1) + "\n")


def names(sizes: list[int], trials: int) -> None:
    """Time from the first spoiled cell to the name, by number of clients, in simulated time with measured CPU."""
    rows = []
    for clients in sizes:
        for trial in range(trials):
            began = time.time()
            row = attack.disruption(
                "client", trial, True, clients, 3, Conditions(cost="measured"), spoil="bit", rate=1.0
            )
            rows.append({"clients": clients, **row, "real_s": time.time() - began})
            print(rows[-1])
    (RESULTS / "blame_time.json").write_text(json.dumps(rows, indent=1) + "\n")


class CheapIdentity(Identity):
    """Signs with a keyed hash, which is cheaper than Ed25519. No adversary of the random runs forges a signature."""

    seeds: ClassVar[dict[bytes, bytes]] = {}

    def __init__(self, name: str, seed: bytes) -> None:
        self.name, self.seed = name, seed
        self.public = hashlib.blake2b(seed, digest_size=32).digest()
        self.seeds[self.public] = seed

    def sign(self, statement: bytes) -> bytes:
        """Return the hash."""
        return hashlib.blake2b(statement, digest_size=64, key=self.seed).digest()


def cheap_check(self: Roster, name: str, statement: bytes, signature: bytes) -> None:
    seed = CheapIdentity.seeds.get(self.keys.get(name, b""), b"")
    if hashlib.blake2b(statement, digest_size=64, key=seed).digest() != signature:
        raise BadProof(f"the signature of {name} does not hold")


def random_runs(first: int, count: int, out: str) -> None:
    """Run networks with a random adversary each, from the seed `first` on, and add them up."""
    from test_attacks import random_run

    Roster.check = cheap_check  # type: ignore[method-assign]
    simulate.Identity = identity.Identity = CheapIdentity  # type: ignore[misc,attr-defined]
    path = RESULTS / out
    total = {"first": first, "runs": 0, "named": 0, "honest_named": 0}
    for seed in range(first, first + count):
        guilty, blamed = random_run(seed)
        total["runs"] += 1
        total["named"] += bool(blamed)
        total["honest_named"] += bool(blamed - guilty)
        if blamed - guilty:
            print("HONEST NAMED", seed, guilty, blamed)
        if total["runs"] % 100 == 0 or seed == first + count - 1:
            path.write_text(json.dumps(total) + "\n")
    print(total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--attacks", default="flip,flip-scalar,equivocate,drop,forge-shuffle,replay")
    parser.add_argument("--off-trials", type=int, default=0)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", default="random.json")
    parser.add_argument("--sizes", default="")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if arguments.random:
        random_runs(arguments.first, arguments.random, arguments.out)
    elif arguments.sizes:
        names(list(map(int, arguments.sizes.split(","))), 10)
    else:
        for name in arguments.attacks.split(","):
            attacks(name, arguments.trials, arguments.off_trials or arguments.trials)
