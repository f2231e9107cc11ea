"""A training loop without torch that has one fault, in this process; prints each iteration, then "done".

python blocked.py PLAN ITERATIONS MODULE
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from support.faults import inject, read_plans


class Module:
    """What faults need of a torch module: hooks in front of its forward pass."""

    def __init__(self) -> None:
        self.hooks: dict[int, object] = {}

    def register_forward_pre_hook(self, hook: object) -> Handle:
        self.hooks[id(hook)] = hook
        return Handle(self.hooks, id(hook))

    def __call__(self, inputs: object) -> None:
        for hook in list(self.hooks.values()):
            hook(self, inputs)  # type: ignore[operator]


class Handle:
    def __init__(self, hooks: dict[int, object], number: int) -> None:
        self.hooks, self.number = hooks, number

    def remove(self) -> None:
        del self.hooks[self.number]


def main() -> None:
    model, items = Module(), [[number] * 8 for number in range(4000)]
    code = importlib.import_module(sys.argv[3])
    with inject(*read_plans(sys.argv[1]), worker=0, workers=2, code=code) as faults:
        dataset = faults.dataset(items)
        for iteration in range(int(sys.argv[2])):
            faults.iteration(iteration, model)
            batch = [dataset[8 * iteration + number] for number in range(8)]
            assert batch == items[8 * iteration : 8 * iteration + 8], batch
            model(batch)
            time.sleep(0.005)
            os.write(1, b"%d\n" % iteration)
    os.write(1, b"done\n")


if __name__ == "__main__":
    main()
