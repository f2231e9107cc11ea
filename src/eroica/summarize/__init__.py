"""Events, stacks and samples of one worker and window -> its pattern."""

from eroica.summarize.pattern import summarize_worker
from eroica.summarize.series import decode_series, encode_series

__all__ = ["decode_series", "encode_series", "summarize_worker"]
