"""The folder for what is made once and used again: image trees, schemas, the control plane, models' answers."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: CLOUDEVAL_CACHE, else ~/.cache/cloudeval."""
    folder = os.environ.get("CLOUDEVAL_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "cloudeval"
