"""Records that pass between the parts: identifiers, completed steps, predictions, jobs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from pythia.errors import BadFile

T = TypeVar("T")
V = TypeVar("V")
#: Errors of msgspec for data that cannot be read.
BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

#: Longest identifier that is accepted, in characters. Metrics, the page and the profile file stay bounded by it.
LONGEST_IDENTIFIER = 128
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_IDENTIFIER, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Identifiers(msgspec.Struct, frozen=True):
    """The application's three identifiers of one request.

    Attributes:
        workflow_type_id: Kind of workflow, e.g. "coding_assistant".
        workflow_id: This run of it.
        agent_id: Role of the agent that asks.
        final: Whether this request is the run's last one.
    """

    workflow_type_id: Identifier
    workflow_id: Identifier
    agent_id: Identifier
    final: bool = False


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One completed request: a line of the log that `pythia profile build` reads and `pythia serve --log` writes.

    Attributes:
        time_s: When the request arrived, in seconds since any origin.
        duration_s: Seconds until its last byte.
        tenant: Salted hash of the API key; empty for a log of one tenant.
        pieces: Salted hashes of the prompt's lines with their lengths in characters, if templates are learned.
        answer: The same of the answer.
    """

    workflow_type_id: Identifier
    workflow_id: Identifier
    agent_id: Identifier
    time_s: float
    output_tokens: Count
    prompt_tokens: Count = 0
    duration_s: Seconds = 0.0
    model: str = ""
    tenant: str = ""
    final: bool = False
    pieces: tuple[tuple[int, int], ...] = ()
    answer: tuple[tuple[int, int], ...] = ()


class Prediction(msgspec.Struct, frozen=True):
    """What the profile expects of one request; the defaults are what is said without history.

    Attributes:
        expected: Expected output length in tokens.
        bound: Upper bound of the output length that fails with at most the asked probability; None if history is thin.
        ordinary: Expected output tokens of a whole run; a run of unknown length counts as this.
        remaining: Expected output tokens of the run from this request on, this one included.
        steps: Expected requests of the run from this one on, this one included.
        next_role: The likeliest next role; empty if the run is expected to end.
        next_probability: Its probability.
        on_path: Whether the profile has seen this step at this place.
        trusted: Whether recent predictions of this workflow type have proved right.
    """

    expected: float = 0.0
    bound: int | None = None
    ordinary: float = 0.0
    remaining: float = 0.0
    steps: float = 0.0
    next_role: str = ""
    next_probability: float = 0.0
    on_path: bool = False
    trusted: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the scheduler.

    Attributes:
        number: Unique and increasing.
        session: Key of the run; requests without identifiers are runs of their own.
        prompt: Prompt tokens.
        bound: Upper bound of output tokens that is counted in the KV budget.
        remaining: Expected output tokens of the run from here on.
        unblock: Value of the replicas that later steps of this run would keep busy (`priority.unblock`).
        first: Whether this is the first of several steps.
        attained: Output tokens that the run has already had (least attained service).
        truth: True remaining tokens, for the oracle of the simulator.
        role_group: Key of the prefix that all runs of this role share.
        group: Key of the prefix that later requests of this role in this run share.
        prefix: Tokens of the role's shared prefix.
        chain: Hashes of the prompt's prefixes (prefix-aware routing).
        replica: Name of the replica that serves it; empty while it waits.
        alpha: Miss probability of `bound`.
        place: Its place among those that wait, smallest first.
        dispatched, first_byte: When it was sent, and when its answer began; negative before.
    """

    number: int
    session: str
    arrived: float
    session_arrived: float
    prompt: int = 0
    bound: int = 0
    expected: float = 0.0
    remaining: float = 0.0
    unblock: float = 0.0
    first: bool = False
    attained: float = 0.0
    truth: float = 0.0
    model: str = ""
    role_group: str = ""
    group: str = ""
    prefix: int = 0
    chain: tuple[int, ...] = ()
    replica: str = ""
    alpha: float = 0.0
    dispatched: float = -1.0
    first_byte: float = -1.0
    place: tuple[float, ...] = ()
    admitted_tokens: int = 0


def read_rows(path: Path, kind: type[T], what: str) -> Iterator[T]:
    """Read JSON objects of a kind, one a line.

    Raises:
        BadFile: The file cannot be read, or a line is no such object; `what` says what it should be.
    """
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for row, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield decoder.decode(line)
                    except BROKEN as error:
                        raise BadFile(f"{path}, line {row}", f"is no {what} ({error})") from error
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read a YAML file of a kind.

    Raises:
        BadFile: The file cannot be read or does not fit.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error
    except BROKEN as error:
        raise BadFile(path, " ".join(str(error).split())) from error


def common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return how many items two sequences have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def remember(store: OrderedDict[T, V], key: T, value: V, most: int) -> None:
    """Store a value as the latest one; beyond `most` the oldest ones go."""
    store[key] = value
    store.move_to_end(key)
    while len(store) > most:
        store.popitem(last=False)
