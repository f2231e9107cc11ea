"""Eroica inside the tools a team has: callbacks of training frameworks, and verdicts for experiment trackers.

Nothing here is needed to be watched: `eroica run --` in front of the command does that for every framework. Each module
imports its framework only when it is imported itself. Standard library otherwise: this is the user's process.
"""

from __future__ import annotations

from eroica.integrations.news import metrics

__all__ = ["metrics"]
