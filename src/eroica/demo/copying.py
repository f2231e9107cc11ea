"""Writes a training into a directory of its own, as a user's project would lie there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

TRAINING = Path(__file__).with_name("training")
SCRIPT = '''"""Trains the model of `{package}`."""

from {package}.{module} import main

if __name__ == "__main__":
    main()
'''


def write_training(
    directory: Path,
    package: str = "tinylm",
    rename: Mapping[str, str] | None = None,
    training: Path = TRAINING,
    module: str = "loop",
) -> Path:
    """Copy a training to `directory/package` and write `directory/train.py` that runs it.

    Args:
        directory: Where; created if it is missing.
        package: Name of the copy.
        rename: Words (function, class, variable and file names) to be replaced everywhere, files included.
        training: The package that is copied.
        module: Which of its modules has `main`.

    Returns:
        Path of `train.py`.
    """
    target = directory / package
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted(training.glob("*.py")):
        text = _renamed(source.read_text(encoding="utf-8"), rename or {})
        (target / f"{_renamed(source.stem, rename or {})}.py").write_text(text, encoding="utf-8")
    script = directory / "train.py"
    script.write_text(SCRIPT.format(package=package, module=module), encoding="utf-8")
    return script


def _renamed(text: str, rename: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: rename.get(word[0], word[0]), text)
