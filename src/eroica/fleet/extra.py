"""The libraries of the service, which the base installation lacks."""

from __future__ import annotations

from importlib.util import find_spec

from eroica.errors import UnavailableError

_LIBRARIES = ("alembic", "fsspec", "pyarrow", "sqlalchemy")


def require_extra() -> None:
    """Check that the service can run here.

    Raises:
        UnavailableError: Libraries of the extra are missing; the text names them and the command that installs them.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"the service needs {', '.join(missing)}: pip install 'eroica[fleet]'")
