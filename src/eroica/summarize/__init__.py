"""Turn the events, stacks and samples of one worker and window into its pattern."""

from eroica.summarize.pattern import summarize_worker

__all__ = ["summarize_worker"]
