"""Slow and hanging jobs, by their communication alone.

    records of hosts ──▶ stretch ──own work, matrix──▶ slow ─┐
                           │                                 ├──conclusion──▶ Verdict
                           └─counters, flows, processes─▶ hang

After C4D (C4, arXiv 2406.04594): communication or non-communication, hang or slow, each with a place. The paper
publishes no rules; these are ours. They compare shares, durations and counters, never clocks of two hosts.
"""
