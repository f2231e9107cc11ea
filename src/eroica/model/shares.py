"""Shares of a whole as they are written for people, the same in all sentences."""

from __future__ import annotations


def percent(fraction: float, digits: int = 0) -> str:
    """0.384 -> "38 %"; below one in a hundred "0.4 %", below one in a thousand "0 %".

    Args:
        fraction: 1 for the whole.
        digits: Decimal places, where a share of some per cent matters to the tenth.
    """
    value = 100 * fraction
    return f"{value:.1f} %" if 0.05 <= abs(value) < 0.95 else f"{value:.{digits}f} %"
