"""Problems: folders with a question, a labelled reference, a check, mutants that must fail and alternatives that must pass.

    my-problem/
        problem.yaml    id, title, group, runner, vars, questions (full, terse, chinese), reference, optional given, nodes
        check.py        def check(t, v): … with the check API `t` and the variables `v`
        mutants.yaml    mutants: at least five edits that make the reference wrong; alternatives: at least two right ones

`docs/problems.md` describes every field.
"""

import hashlib
import random
import re
import types
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cloudeval.errors import ProblemError, UsageError
from cloudeval.reading import strip_labels

STYLES = ("full", "terse", "chinese")
RUNNERS = ("cluster", "envoy", "semantics")
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One problem as its folder has it; texts still have their {{variables}}."""

    id: str
    title: str
    group: str
    questions: dict[str, str]
    reference: str
    runner: str = "cluster"
    vars: dict[str, Any] = {}
    given: str = ""
    context: str = ""
    nodes: list[dict[str, Any]] = []
    tags: list[str] = []
    difficulty: str = "medium"
    timeout_s: float = 40.0
    check: str = ""
    mutants: dict[str, Any] = {}
    alternatives: dict[str, Any] = {}
    folder: str = ""


class Variant(Problem, frozen=True):
    """A problem with its variables drawn: its texts, mutants and alternatives are filled in."""

    seed: int = 0
    variables: dict[str, Any] = {}

    @property
    def answer(self) -> str:
        """The reference without labels, as an answer would be written."""
        return strip_labels(self.reference)


def built_in() -> Path:
    """Return the folder of the package's own problems."""
    here = Path(str(resources.files("cloudeval")))
    packed = here / "problems"
    return packed if packed.is_dir() else here.parents[1] / "problems"


def load(folder: Path | None = None, only: str = "") -> list[Problem]:
    """Load the problems of a folder, sorted by id.

    Args:
        folder: A folder of problem folders, or one problem's folder. The package's own problems by default.
        only: Comma-separated parts of ids or groups to keep.
    """
    folder = folder or built_in()
    files = [folder / "problem.yaml"] if (folder / "problem.yaml").exists() else sorted(folder.glob("**/problem.yaml"))
    if not files:
        raise ProblemError(f"no problem.yaml in or below {folder}; `cloudeval new` makes one")
    problems = sorted((load_one(file.parent) for file in files), key=lambda problem: problem.id)
    ids = [problem.id for problem in problems]
    if len(set(ids)) < len(ids):
        raise ProblemError(f"the id {next(name for name in ids if ids.count(name) > 1)} stands twice below {folder}")
    parts = [part for part in only.split(",") if part] or [""]
    kept = [problem for problem in problems if any(part == problem.group or part in problem.id for part in parts)]
    if not kept:
        raise ProblemError(f'no problem matches "{only}" in {folder}')
    return kept


def find(name: str) -> Problem:
    """Return the problem of a folder, or one of the package's own by its id."""
    folder = Path(name) if Path(name).is_dir() else built_in() / name
    if not (folder / "problem.yaml").exists():
        raise UsageError(f'"{name}" is neither a folder nor the id of a problem; `cloudeval list` prints the ids')
    return load_one(folder)


def load_one(folder: Path) -> Problem:
    """Load the problem of one folder."""
    parts: list[Any] = []
    try:
        for name in ("problem.yaml", "mutants.yaml"):
            text = (folder / name).read_text() if name == "problem.yaml" or (folder / name).exists() else ""
            parts.append(yaml.load(text, Loader=yaml.CSafeLoader) or {})
        fields = {**parts[0], **parts[1], "check": (folder / "check.py").read_text(), "folder": str(folder)}
        problem = msgspec.convert(fields, Problem)
    except (OSError, yaml.YAMLError, msgspec.ValidationError, TypeError) as error:
        raise ProblemError(f"{folder}: {str(error).splitlines()[0]}; docs/problems.md describes the layout") from error
    if missing := [style for style in STYLES if style not in problem.questions]:
        raise ProblemError(f"{folder}/problem.yaml: questions lack {', '.join(missing)}")
    if problem.runner not in RUNNERS:
        raise ProblemError(f"{folder}/problem.yaml: runner must be one of {', '.join(RUNNERS)}")
    return problem


def draw(problem: Problem, seed: int = 0) -> Variant:
    """Draw a problem's variables by seed and fill them into its texts."""
    digest = hashlib.sha256(f"{problem.id}:{seed}".encode()).digest()
    generator = random.Random(int.from_bytes(digest[:8], "big"))
    variables = {name: _draw(spec, generator, name, problem.id) for name, spec in problem.vars.items()}

    def fill(text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in variables:
                raise ProblemError(f"{problem.id}: {{{{{found[1]}}}}} is not in vars")
            return str(variables[found[1]])

        return _VARIABLE.sub(value, text)

    plain = strip_labels(problem.reference)

    def edited(changes: dict[str, Any]) -> dict[str, str]:
        return {name: fill(edit(plain, change, f"{problem.id}, {name}")) for name, change in changes.items()}

    filled = {
        "reference": fill(problem.reference),
        "questions": {style: fill(text).strip() for style, text in problem.questions.items()},
        "given": fill(problem.given),
        "context": fill(problem.context),
        "mutants": edited(problem.mutants),
        "alternatives": edited(problem.alternatives),
    }
    return Variant(**msgspec.structs.asdict(problem) | filled, seed=seed, variables=variables)


def _draw(spec: Any, generator: random.Random, name: str, problem: str) -> Any:
    if isinstance(spec, list):
        return generator.choice(spec)
    if isinstance(spec, str) and (found := re.fullmatch(r"(\d+)-(\d+)", spec)):
        return generator.randint(int(found[1]), int(found[2]))
    raise ProblemError(f"{problem}: the variable {name} must be a list of values or a range such as 8000-8999")


def edit(reference: str, change: Any, where: str) -> str:
    r"""Return the reference with one or several edits applied.

    An edit is `old => new`: the first occurrence of old is replaced; `\\n` stands for a line break; an empty new deletes;
    `old =>> new` replaces every occurrence. A list holds several edits, a mapping `{text: …}` the whole text.
    """
    if isinstance(change, dict):
        return str(change["text"])
    text = reference
    for item in change if isinstance(change, list) else [change]:
        found = re.fullmatch(r"(.*?) (=>>|=>)(?: |$)(.*)", item, re.DOTALL)
        old, new = (found[group].replace("\\n", "\n") for group in (1, 3)) if found else (item, "")
        if not found or old not in text:
            raise ProblemError(f"{where}: the reference does not contain {old!r}")
        text = text.replace(old, new, -1 if found[2] == "=>>" else 1)
    return text


def check_function(variant: Variant) -> Callable[[Any, Any], None]:
    """Return the problem's check function."""
    module = types.ModuleType(f"check_{re.sub(r'[^a-z0-9]', '_', variant.id)}")
    try:
        exec(compile(variant.check, f"{variant.id}/check.py", "exec"), module.__dict__)
    except Exception as error:
        raise ProblemError(f"{variant.id}/check.py: {error}") from error
    check = getattr(module, "check", None)
    if not callable(check):
        raise ProblemError(f"{variant.id}/check.py must define check(t, v)")
    return check  # type: ignore[no-any-return]


def answers_of(variant: Variant) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, text) of the reference, the mutants and the alternatives."""
    yield "reference", "reference", variant.answer
    for name, text in variant.mutants.items():
        yield "mutant", name, text
    for name, text in variant.alternatives.items():
        yield "alternative", name, text
