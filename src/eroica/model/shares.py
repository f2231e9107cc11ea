"""Shares of a whole as they are written for people, the same in all sentences."""

from __future__ import annotations


def percent(fraction: float) -> str:
    """Write a fraction as a share: 0.384 -> "38 %"; below one in a hundred "0.4 %", below one in a thousand "0 %"."""
    value = 100 * fraction
    return f"{value:.1f} %" if 0.05 <= abs(value) < 0.95 else f"{value:.0f} %"
