"""Limits that many rules share: one number for one meaning."""

from __future__ import annotations

#: Share of a time that something must hold to account for it: a function of an excess, a cause of a slowdown.
MOST = 0.6
#: Share of the time from which a process that is stopped or throttled is slow for that reason, whatever it does.
HELD = 0.05
#: Of a list of things a sentence names so many.
LISTED = 3
#: Two counts of executions are the same if they differ by less than this share.
SAME_COUNT = 0.05
#: Frames that hold this share of all that a thread does are the loop itself, and name nothing.
LOOP = 0.9
