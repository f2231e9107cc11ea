"""Functions of one worker under small numbers, so that kernels can work on arrays of them."""

from __future__ import annotations

from eroica.model.pattern import FunctionKey

#: Stands for functions that have a number, but no name yet (and perhaps never: there may be millions of call stacks).
UNNAMED = FunctionKey(kind="python", name="")


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

    def reserve(self) -> int:
        """A number without a name."""
        self.keys.append(UNNAMED)
        return len(self.keys) - 1

    def name(self, number: int, key: FunctionKey) -> int:
        """Name what was reserved; returns the number that has this name, an earlier one if there is one."""
        known = self._numbers.setdefault(key, number)
        if known == number:
            self.keys[number] = key
        return known
