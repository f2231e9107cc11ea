"""Graph network for molecules in one process; the molecules stay in memory as Python objects."""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Device  # noqa: E402
from stepclock import StepClock  # noqa: E402

ELEMENTS, WIDTH, BATCH = 12, 64, 12


@dataclass
class Atom:
    element: int
    bonds: list[Atom] = field(default_factory=list)
    notes: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Molecule:
    atoms: list[Atom]
    energy: float


def make_molecule(rng: random.Random) -> Molecule:
    atoms = [Atom(rng.randrange(ELEMENTS)) for _ in range(rng.randint(12, 20))]
    for i, atom in enumerate(atoms):
        atom.notes["origin"] = [i, rng.randrange(9)]
        for other in rng.sample(atoms, 2):
            atom.bonds.append(other)
            other.bonds.append(atom)
    return Molecule(atoms, sum(atom.element for atom in atoms) / 50)


def collate(molecules: list[Molecule]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    elements, edges, owner = [], [], []
    for number, molecule in enumerate(molecules):
        place = {id(atom): len(elements) + i for i, atom in enumerate(molecule.atoms)}
        for atom in molecule.atoms:
            edges += [(place[id(other)], place[id(atom)]) for other in atom.bonds]
        elements += [atom.element for atom in molecule.atoms]
        owner += [number] * len(molecule.atoms)
    energies = torch.tensor([molecule.energy for molecule in molecules])
    return torch.tensor(elements), torch.tensor(edges).T, torch.tensor(owner), energies


class MessagePassing(nn.Module):
    def __init__(self, rounds: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, WIDTH)
        self.messages = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(rounds))
        self.updates = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(rounds))
        self.device = Device(25)
        self.read = nn.Linear(WIDTH, 1)

    def forward(self, elements: Tensor, edges: Tensor, owner: Tensor, count: int) -> Tensor:
        x = self.embed(elements)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = torch.relu(message(torch.cat([x[edges[0]], x[edges[1]]], dim=1)))
            x = update(torch.zeros_like(x).index_add(0, edges[1], sent), x)
        pooled = torch.zeros(count, WIDTH).index_add(0, owner, self.device(x))
        return self.read(pooled)[:, 0]


class MemoryGuard:
    """Frees what is left over once the caches are warm, to stay below the limit of the container."""

    def after_step(self) -> None:
        gc.collect()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(14)
    clock = StepClock("graph_memory", iters=300)
    rng = random.Random(2)
    molecules = [make_molecule(rng) for _ in range(250)]
    model, guard = MessagePassing(), MemoryGuard()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    clock.tick()
    for step in range(clock.iters):
        batch = collate(rng.sample(molecules, BATCH))
        loss = nn.functional.l1_loss(model(*batch[:3], BATCH), batch[3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.late(step):
            guard.after_step()
        clock.tick()
    clock.report(0)


if __name__ == "__main__":
    main()
