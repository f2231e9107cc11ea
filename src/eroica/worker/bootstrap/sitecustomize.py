"""Runs at the start of every Python of a job: the user's own `sitecustomize`, then a look-out for torch.

Standard library only, and as little of it as possible: this runs in every child process, torch or not. In the syntax
that Python 2 has, too: some tools of a job still run on it, and are to notice nothing.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types  # noqa: F401 - in a comment, as Python 2 must read it

_kept = []  # type: list[types.ModuleType]  # this module: Python 2 clears one that nobody has any more


def _without_us():  # type: () -> None
    """Take our directory off the path, as if it had never been there; PYTHONPATH still brings us into children."""
    ours = __file__.rpartition("/")[0]
    sys.path[:] = [place for place in sys.path if place.rstrip("/") != ours]


def _run_the_users_own():  # type: () -> None
    """Import the next `sitecustomize` under its own name. What it raises is the user's; `site` shows it as always."""
    _kept.append(sys.modules.pop(__name__))
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules[__name__] = _kept[0]


def _look_out_for_torch():  # type: () -> None
    import os

    if os.environ.get("EROICA_DISABLE") == "1":
        return
    try:
        from eroica.worker.import_watch import look_out
    except (ImportError, SyntaxError, AttributeError, NameError):  # another Python, without Eroica, or too old for it
        return
    look_out()


try:
    _without_us()
    _run_the_users_own()
finally:
    _look_out_for_torch()
