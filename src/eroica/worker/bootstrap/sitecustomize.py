"""Runs at the start of every Python of a job: the user's own `sitecustomize`, then a look-out for torch.

Standard library only, and as little of it as possible: this runs in every child process, torch or not.
"""

import sys


def _without_us() -> None:
    """Take our directory off the path, as if it had never been there; PYTHONPATH still brings us into children."""
    ours = __file__.rpartition("/")[0]
    sys.path[:] = [place for place in sys.path if place.rstrip("/") != ours]


def _run_the_users_own() -> None:
    """Import the next `sitecustomize` under its own name. What it raises is the user's; `site` shows it as always."""
    ours = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = ours


def _look_out_for_torch() -> None:
    import os

    if os.environ.get("EROICA_DISABLE") == "1":
        return
    try:
        from eroica.worker.lookout import look_out
    except Exception:  # noqa: BLE001 - another Python, without Eroica in it, or too old to read it
        return
    look_out()


try:
    _without_us()
    _run_the_users_own()
finally:
    _look_out_for_torch()
