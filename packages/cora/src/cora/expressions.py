"""Expressions over packet fields, locals and table entries: unsigned 64-bit arithmetic that wraps.

Division by zero gives 0, the remainder by zero gives 0, shifts use the lower six bits of the count. The interpreter
here and the C that `cora.codegen` writes give the same value for every expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

MASK = (1 << 64) - 1
HASH_MULTIPLIER = 0x9E3779B97F4A7C15
HASH_SEED = 0x243F6A8885A308D3

Value = Union["Expr", int]


def _binary(name: str) -> Callable[[Expr, Value], Expr]:
    return lambda one, other: Op(name, (one, lift(other)))


def _reversed(name: str) -> Callable[[Expr, Value], Expr]:
    return lambda one, other: Op(name, (lift(other), one))


class Expr:
    """An expression; operators build larger ones. `eq` and `ne` stand for == and !=."""

    __add__, __radd__ = _binary("+"), _reversed("+")
    __sub__, __rsub__ = _binary("-"), _reversed("-")
    __mul__, __floordiv__, __mod__ = _binary("*"), _binary("/"), _binary("%")
    __and__, __or__, __xor__ = _binary("&"), _binary("|"), _binary("^")
    __lshift__, __rshift__ = _binary("<<"), _binary(">>")
    __lt__, __le__, __gt__, __ge__ = _binary("<"), _binary("<="), _binary(">"), _binary(">=")
    eq, ne = _binary("=="), _binary("!=")

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value while the program is built; use `when` or `select`")


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A number."""

    value: int


@dataclass(frozen=True, eq=False)
class FieldOf(Expr):
    """A packet field, such as `ip.src`."""

    name: str


@dataclass(frozen=True, eq=False)
class Local(Expr):
    """A local variable of the packet being processed."""

    name: str


@dataclass(frozen=True, eq=False)
class Old(Expr):
    """A field of the table entry before the step changes it; 0 where there was no entry."""

    name: str


@dataclass(frozen=True, eq=False)
class Now(Expr):
    """The packet's arrival time in ns."""


@dataclass(frozen=True, eq=False)
class Op(Expr):
    """An operator or function applied to expressions."""

    name: str
    args: tuple[Expr, ...]


def lift(value: Value) -> Expr:
    """Return an expression for a number or an expression."""
    return value if isinstance(value, Expr) else Const(int(value) & MASK)


field, old, now = FieldOf, Old, Now


def _function(name: str) -> Callable[[Value, Value], Expr]:
    return lambda one, other: Op(name, (lift(one), lift(other)))


def select(condition: Value, then: Value, otherwise: Value) -> Expr:
    """Return one value where the condition is not 0, else the other."""
    return Op("select", (lift(condition), lift(then), lift(otherwise)))


def hash_of(*values: Value) -> Expr:
    """Return a 32-bit hash of the values."""
    return Op("hash", tuple(lift(value) for value in values))


maximum, minimum = _function("max"), _function("min")
both, either = _function("and"), _function("or")


def hash_values(values: tuple[int, ...] | list[int], seed: int = HASH_SEED) -> int:
    """Return the 32-bit hash that the tiers compute for numbers."""
    state = seed
    for value in values:
        state = ((state ^ value) * HASH_MULTIPLIER) & MASK
        state ^= state >> 32
    return state & 0xFFFFFFFF


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: (a + b) & MASK,
    "-": lambda a, b: (a - b) & MASK,
    "*": lambda a, b: (a * b) & MASK,
    "/": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: (a << (b & 63)) & MASK,
    ">>": lambda a, b: a >> (b & 63),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "max": max,
    "min": min,
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
}


def evaluate(expr: Expr, read: Callable[[Expr], int]) -> int:
    """Return an expression's value; `read` gives those of fields, locals, old entry fields and the time."""
    if isinstance(expr, Const):
        return expr.value
    if not isinstance(expr, Op):
        return read(expr)
    if expr.name == "select":
        return evaluate(expr.args[1 if evaluate(expr.args[0], read) else 2], read)
    values = [evaluate(arg, read) for arg in expr.args]
    if expr.name == "hash":
        return hash_values(values)
    return _BINARY[expr.name](values[0], values[1])


def leaves(expr: Expr) -> Iterator[Expr]:
    """Yield the fields, locals, old entry fields and times that an expression reads."""
    if isinstance(expr, Op):
        for arg in expr.args:
            yield from leaves(arg)
    elif not isinstance(expr, Const):
        yield expr


def size(expr: Expr) -> int:
    """Return the number of operators in an expression; each argument of a hash counts three."""
    if not isinstance(expr, Op):
        return 0
    return (3 * len(expr.args) if expr.name == "hash" else 1) + sum(size(arg) for arg in expr.args)


_C = {"and": "&&", "or": "||"}


def to_c(expr: Expr, read: Callable[[Expr], str]) -> str:
    """Return an expression as C over unsigned 64-bit values; `read` names leaves."""
    if isinstance(expr, Const):
        return f"{expr.value}ULL"
    if not isinstance(expr, Op):
        return read(expr)
    args = [to_c(arg, read) for arg in expr.args]
    if expr.name in {"<<", ">>"}:
        return f"({args[0]} {expr.name} ({args[1]} & 63))"
    if expr.name in {"max", "min", "/", "%"}:
        return f"cora_{ {'max': 'max', 'min': 'min', '/': 'div', '%': 'mod'}[expr.name] }({', '.join(args)})"
    if expr.name == "select":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if expr.name == "hash":
        text = f"{HASH_SEED}ULL"
        for arg in args:
            text = f"cora_mix({text}, {arg})"
        return f"({text} & 0xffffffffULL)"
    return f"((u64)({args[0]} {_C.get(expr.name, expr.name)} {args[1]}))"
