"""The learned model: one small JSON file that `check` reads without importing the learner."""

from __future__ import annotations

from pathlib import Path

import msgspec

from verici.errors import BadInput
from verici.history import Files, write_whole
from verici.model import Constraint

FORMAT = 1


def encode(message: str, length: int) -> list[float]:
    """Return the first characters as numbers from 0 to 1, padded with blanks; others than ASCII count as 127."""
    return [min(ord(letter), 127) / 127 for letter in message[:length].ljust(length)]


class Weights(msgspec.Struct, frozen=True):
    """The message filter: a perceptron with two hidden layers, and how many past messages it was trained on."""

    layers: tuple[tuple[tuple[tuple[float, ...], ...], tuple[float, ...]], ...]
    length: int
    hits: int
    misses: int

    def trusts(self, message: str) -> bool:
        """Return True if the filter expects the message to help."""
        values = encode(message, self.length)
        for number, (matrix, offsets) in enumerate(self.layers):
            values = [
                offset + sum(value * weight for value, weight in zip(values, column, strict=True))
                for column, offset in zip(matrix, offsets, strict=True)
            ]
            if number + 1 < len(self.layers):
                values = [max(value, 0.0) for value in values]
        return values[0] > 0


class Model(msgspec.Struct, frozen=True):
    """What was learned from a history.

    Args:
        format: Number of this form; others are refused.
        builds: Labelled builds; `failed` of them failed, `relabelled` of those cannot be explained by constants.
        filter: The message filter, if there were enough past messages.
    """

    format: int
    builds: int
    failed: int
    learner: str
    relabelled: int
    files: Files
    constraints: tuple[Constraint, ...]
    filter: Weights | None = None


def save_model(path: Path, model: Model) -> None:
    """Write the model as JSON with one field a line."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(model), indent=1))


def load_model(path: Path) -> Model | None:
    """Return the model, or None if nothing has been learned yet."""
    try:
        model = msgspec.json.decode(path.read_bytes(), type=Model)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} is no model of verici ({error}); make it anew with `verici learn`") from error
    if model.format != FORMAT:
        raise BadInput(f"{path} has format {model.format}, not {FORMAT}; make it anew with `verici learn`")
    return model
