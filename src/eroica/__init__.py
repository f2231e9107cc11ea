"""Eroica: why is this training job slow?

The names below come in when they are first asked for: this package is imported in every Python of a watched job.
"""

from __future__ import annotations

from eroica.errors import EroicaError

TYPE_CHECKING = False  # importing `typing` would double what a Python of a watched job costs at its start
if TYPE_CHECKING:
    from typing import Any

    from eroica.model.verdict import Finding, Verdict
    from eroica.offline import diagnose
    from eroica.offline.examine import report_html
    from eroica.worker.attach import step, watch

__version__ = "0.2.0.dev0"
__all__ = ["EroicaError", "Finding", "Verdict", "__version__", "diagnose", "report_html", "step", "watch"]

_ROOMS = {
    "Finding": "eroica.model.verdict",
    "Verdict": "eroica.model.verdict",
    "diagnose": "eroica.offline",
    "report_html": "eroica.offline.examine",
    "step": "eroica.worker.attach",
    "watch": "eroica.worker.attach",
}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
