"""Slow ways between hosts, seen all the time, and orders from Eroica's verdicts; an extra package of Eroica."""

from eroica_c4d.records import Communication, DelayMatrix, Order, Place

__all__ = ["Communication", "DelayMatrix", "Order", "Place"]
