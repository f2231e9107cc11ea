"""Functions of one worker under small numbers, so that kernels can work on arrays of them."""

from __future__ import annotations

from eroica.model.pattern import FunctionKey


class Functions:
    """Numbers for function keys, in order of first sight."""

    def __init__(self) -> None:
        self.keys: list[FunctionKey] = []
        self._numbers: dict[FunctionKey, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def number(self, key: FunctionKey) -> int:
        """The key's number, a new one if it is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return found
