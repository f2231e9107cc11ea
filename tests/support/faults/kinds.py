"""The table of all faults, and the one of backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from eroica.demo import kinds
from eroica.demo.fault import Fault, HookedFault, Place
from support.faults.hosts import HOSTS
from support.faults.loading import LOADING
from support.faults.stalls import STALLS
from support.faults.steps import STEPS


@dataclass
class SlowBackward(HookedFault):
    """A Python hook in the middle of the backward pass that visits `values` numbers one at a time."""

    name: ClassVar[str] = "slow-backward"
    resource: ClassVar[str] = "one core, interpreter lock"
    values: float = 700_000

    def start(self, model: Any, place: Place) -> None:
        """Hook it behind the middle one of the model's leaf modules that have weights of two dimensions."""
        if self.handle is None:
            part = place.parts["backward"](int(self.values))
            self.handle = _middle_layer(model).register_full_backward_hook(part.hook)


ADDED: tuple[type[Fault], ...] = (SlowBackward, *LOADING, *STEPS, *HOSTS, *STALLS)
FAULTS: dict[str, type[Fault]] = {**kinds.FAULTS, **{kind.name: kind for kind in ADDED}}


def _middle_layer(model: Any) -> Any:
    """A layer whose input has a gradient: not the first one, which may be an embedding."""
    layers = [part for part in model.modules() if not list(part.children()) and hasattr(part, "in_features")]
    return layers[len(layers) // 2] if layers else model
