"""Where the page of a job stands: the last line of `eroica run` and `eroica demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from eroica.archive.store import PAGE_FILE
from eroica.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

#: The collector has waited for it already; a page that takes longer is finished after we are gone.
_PATIENCE_S = 3.0
_POLL_S = 0.05


def say_page(console: Console, run: Path, settings: Settings) -> None:
    """Name the page as a link that terminals open; where there is none, the run directory."""
    page = find_page(run) if settings.pages else None
    where = page.absolute().as_uri() if page is not None else str(run)
    console.print(f"Report: {where}", style="dim", markup=False, highlight=False, soft_wrap=True)


def find_page(run: Path, patience_s: float = _PATIENCE_S) -> Path | None:
    """The page of a run's final verdict, as soon as it is drawn; None if it does not come in so many seconds."""
    page = run / PAGE_FILE
    return page if _is_drawn(page, run / "verdict.json", patience_s) else None


def _is_drawn(page: Path, verdict: Path, patience_s: float) -> bool:
    """Whether the page of this verdict is there, now or in a moment."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            if page.stat().st_mtime_ns >= verdict.stat().st_mtime_ns:
                return True
        except FileNotFoundError:
            if not verdict.exists():
                return False
        except OSError:
            return False
        time.sleep(_POLL_S)
    return False
