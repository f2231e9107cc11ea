"""Profiles: what is known of each workflow type of each tenant, learned from finished runs, kept in one file."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from pythia import pathregex
from pythia.errors import BadFile
from pythia.estimates import START, Automaton, Drift, Lengths, Trust
from pythia.records import Identifiers, Prediction, Step, read_rows
from pythia.templates import Template

#: Finished runs below which a workflow type is served reactively. Ours; the paper does not say how much is little.
ENOUGH_RUNS = 20
#: Workflow types that are kept per tenant, tenants, roles of one type, and runs that are open at once. A client that
#: invents names fills these and no more; types with enough runs are never dropped for new ones.
MOST_TYPES, MOST_TENANTS, MOST_ROLES, MOST_OPEN = 256, 256, 64, 20_000
#: Steps of one run that are followed; later ones are served reactively.
MOST_STEPS = 512
#: Distinct paths and latest runs that are kept per type.
MOST_PATHS, RECENT = 512, 64
#: Runs that seed the new profile after a change was noticed.
AFTER_CHANGE = 8
#: A step between roles is rare below this share, and rare steps are left out while this share of runs is lost at most.
CUT, MOST_LOST = 0.05, 0.02
#: Weight, in steps, of the profile's lengths when a run's own pace is estimated.
PACE_STEPS = 3.0
#: Tenant of what an operator learned from a log (`pythia profile build`); it serves tenants with little history.
SHARED = "*"


class Run:
    """A run that is going on."""

    def __init__(self, key: str, type_key: tuple[str, str], now: float) -> None:
        self.key, self.type_key = key, type_key
        self.started_s = self.last_s = now
        self.roles: list[str] = []
        self.tokens: list[int] = []
        self.hoped: list[tuple[str, float, float]] = []
        self.expected: list[float] = []
        self.trails: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.open = 0
        self.final = self.aborted = False

    @property
    def attained(self) -> int:
        """Output tokens of the finished steps."""
        return sum(t for t in self.tokens if t >= 0)


class Profile(msgspec.Struct, dict=True):
    """What is known of one workflow type; the file keeps it as it is.

    Attributes:
        models: Model that each role asked for lately.
        paths: How often each path was taken.
        recent, totals: Latest runs as (role, output tokens), and output tokens of the latest runs.
        runs: Learned runs since the last change.
        changes, change: Number of noticed changes, and the reason of the latest.
        matched, looked: Runs that the expression accepted, and all that were compared with it.
    """

    automaton: Automaton = msgspec.field(default_factory=Automaton)
    lengths: dict[str, Lengths] = {}
    models: dict[str, str] = {}
    templates: dict[str, Template] = {}
    paths: dict[tuple[str, ...], int] = {}
    recent: list[list[tuple[str, int]]] = []
    totals: list[int] = []
    drift: Drift = msgspec.field(default_factory=Drift)
    trust: Trust = msgspec.field(default_factory=Trust)
    runs: int = 0
    changes: int = 0
    change: str = ""
    matched: int = 0
    looked: int = 0

    def __post_init__(self) -> None:
        self._expression: pathregex.Node | None = None
        self._limits: tuple[float, float, float] | None = None

    @property
    def thin(self) -> bool:
        """Whether too few runs are known to predict anything."""
        return self.runs < ENOUGH_RUNS

    @property
    def expression(self) -> pathregex.Node | None:
        """The bounded regular expression; None while history is thin."""
        if self._expression is None and not self.thin:
            self._expression = pathregex.learn(pathregex.above_cut(self.paths, CUT, MOST_LOST))
        return self._expression

    @property
    def text(self) -> str:
        """The expression in the usual notation; empty while history is thin."""
        return str(self.expression or "")

    def expected(self, role: str) -> float:
        """Expected output length of a role."""
        lengths = self.lengths.get(role)
        return lengths.mean if lengths else 0.0

    def pace(self, run: Run) -> float:
        """How much longer this run's answers are than usual; runs are long or short as a whole."""
        done = [(t, e) for t, e in zip(run.tokens, run.expected, strict=True) if t >= 0 and e > 0]
        if not done:
            return 1.0
        usual = sum(e for _, e in done)
        prior = PACE_STEPS * usual / len(done)
        return (sum(t for t, _ in done) + prior) / (usual + prior)

    def predict(self, run: Run, role: str, alpha: float) -> Prediction:
        """Predict the step that a run takes now."""
        state = self.automaton.known((role, run.trails.get(role, 0) + 1))
        ordinary = self.automaton.remaining(START)[0]
        own = self.expected(role)
        bound = self.lengths[role].bound(alpha) if role in self.lengths and not self.thin else None
        if self.thin or state is None or len(run.roles) >= MOST_STEPS:
            return Prediction(own, bound, ordinary, remaining=ordinary)
        tokens, steps = self.automaton.remaining(state)
        following, probability = self.automaton.successors(state)[0]
        pace, trusted = self.pace(run), self.trust.earned or self.trust.steps < 10
        return Prediction(
            own * pace, bound, ordinary, (own + tokens) * pace, 1 + steps, following[0], probability, True, trusted
        )  # fmt: skip

    def renewed(self, reason: str) -> Profile:
        """Return what is kept after a change: the latest runs, models and templates."""
        new = Profile(models=self.models, templates=self.templates)
        new.changes, new.change = self.changes + 1, reason
        for path in self.recent[-AFTER_CHANGE:]:
            new._add(path)
        return new

    def learn(self, path: list[tuple[str, int]], hoped: list[tuple[str, float, float]]) -> str:
        """Add a finished run; return why the workflow counts as changed, or an empty text."""
        roles = tuple(role for role, _ in path)
        if len(set(roles) | set(self.lengths)) > MOST_ROLES:
            return ""
        reason = self._judge(roles, path, hoped) if not self.thin else ""
        self._add(path)
        return reason

    def _judge(self, roles: tuple[str, ...], path: list[tuple[str, int]], hoped: list[tuple[str, float, float]]) -> str:
        total = sum(tokens for _, tokens in path)
        left = total
        for i, (_, tokens) in enumerate(path):
            if i < len(hoped) and hoped[i][2] > 0:
                following = roles[i + 1] if i + 1 < len(roles) else ""
                self.trust.add(hoped[i][0] == following, hoped[i][1], hoped[i][2], left)
            left -= tokens
        expression = self.expression
        matches = expression is not None and pathregex.accepts(expression, roles)
        self.looked += 1
        self.matched += matches
        if self._limits is None:
            low, high = np.quantile(self.totals, (0.1, 0.9))
            likely = [self.automaton.likelihood([role for role, _ in one]) for one in self.recent]
            self._limits = (float(low), float(high), float(np.quantile(likely, 0.05)) - 1e-9)
        low, high, unlikely = self._limits
        rare = self.automaton.likelihood(roles) < unlikely
        return self.drift.add(
            {
                "paths left the expression": (not matches, 0.05),
                "paths became unlikely": (rare, 0.08),
                "runs became longer": (total > high, 0.1),
                "runs became shorter": (total < low, 0.1),
            },
            len(self.totals),
        )

    def _add(self, path: list[tuple[str, int]]) -> None:
        roles = tuple(role for role, _ in path)
        self.automaton.learn(path)
        for role, tokens in path:
            self.lengths.setdefault(role, Lengths()).add(tokens)
        if roles in self.paths or len(self.paths) < MOST_PATHS:
            self.paths[roles] = self.paths.get(roles, 0) + 1
            if self.paths[roles] == 1:
                self._expression = None
        self.recent = [*self.recent, path][-RECENT:]
        self.totals = [*self.totals, sum(tokens for _, tokens in path)][-512:]
        self.runs += 1
        if self.runs % 16 == 0:
            self._limits = None


class Profiles:
    """All profiles and open runs.

    Attributes:
        salt: Random per installation; hashes of prompts and API keys of two installations cannot be compared.
        idle_s: Seconds without a request after which a run counts as finished.
        finished: Runs that were learned since the start.
    """

    def __init__(self, idle_s: float = 120.0, salt: bytes = b"") -> None:
        self.salt = salt or secrets.token_bytes(16)
        self.idle_s = idle_s
        self.known: dict[tuple[str, str], Profile] = {}
        self.open: OrderedDict[str, Run] = OrderedDict()
        self.changes: list[tuple[str, str]] = []
        self.finished = 0

    def tenant(self, key: bytes) -> str:
        """Return the salted hash of an API key; empty for requests without one."""
        return hashlib.blake2b(key, digest_size=8, key=self.salt).hexdigest() if key else ""

    def begin(self, ids: Identifiers, tenant: str, now: float, alpha: float) -> tuple[Run, int, Prediction]:
        """Register a request that arrives now; return its run, its place in it, and what is expected."""
        key = "\0".join((tenant, ids.workflow_type_id, ids.workflow_id))  # runs of two tenants or types never meet
        run = self.open.get(key)
        if run is None:
            while len(self.open) >= MOST_OPEN:
                self.open.popitem(last=False)
            run = self.open[key] = Run(key, (tenant, ids.workflow_type_id), now)
        self.open.move_to_end(key)
        profile = self.of(run)
        prediction = profile.predict(run, ids.agent_id, alpha) if profile else Prediction()
        place = len(run.roles)
        if place < MOST_STEPS:
            hoped = prediction.remaining if prediction.on_path else 0.0
            run.roles.append(ids.agent_id)
            run.tokens.append(-1)
            run.expected.append(profile.expected(ids.agent_id) if profile else 0.0)
            run.hoped.append((prediction.next_role, prediction.next_probability, hoped))
            run.trails[ids.agent_id] = run.trails.get(ids.agent_id, 0) + 1
        run.open += 1
        run.last_s = max(run.last_s, now)
        run.final = run.final or ids.final
        return run, place, prediction

    def of(self, run: Run) -> Profile | None:
        """Return the profile that predicts a run: the tenant's own, or the shared one while that is thin."""
        own = self.known.get(run.type_key)
        if own is None or own.thin:
            return self.known.get((SHARED, run.type_key[1]), own)
        return own

    def end(self, run: Run, place: int, step: Step | None, now: float) -> None:
        """Register that a request has ended; `step` is None if it failed or was cancelled."""
        run.open = max(0, run.open - 1)
        run.last_s = max(run.last_s, now)
        self.open.move_to_end(run.key) if run.key in self.open else None
        if step is None:
            run.aborted = True
        elif place < len(run.tokens):
            run.tokens[place] = step.output_tokens
            profile = self._profile(run.type_key)
            if profile is not None and (step.agent_id in profile.models or len(profile.models) < MOST_ROLES):
                profile.models[step.agent_id] = step.model
                if step.pieces:
                    template = profile.templates.setdefault(step.agent_id, Template())
                    template.learn(run.key, step.pieces, run.seen)
                    self._remember(run, step)
        if run.final and not run.open:
            self._finish(run)

    @staticmethod
    def _remember(run: Run, step: Step) -> None:
        for kind, found in (("prompt", step.pieces), ("answer", step.answer)):
            for piece, length in found[: 2048 - len(run.seen)]:
                if length > 8:  # shorter lines, as "}" or an empty one, occur everywhere
                    run.seen.setdefault(piece, f"{step.agent_id}.{kind}")

    def expire(self, now: float) -> list[Run]:
        """Finish the runs that have been idle for long enough, and return them."""
        finished = []
        for run in list(self.open.values()):
            if now - run.last_s < self.idle_s:
                break
            if run.open:
                run.last_s = now
                self.open.move_to_end(run.key)
            else:
                finished.append(run)
                self._finish(run)
        return finished

    def _finish(self, run: Run) -> None:
        self.open.pop(run.key, None)
        if run.aborted or not run.roles or min(run.tokens) < 0 or len(run.roles) >= MOST_STEPS:
            return
        profile = self._profile(run.type_key)
        if profile is not None:
            self.finished += 1
            reason = profile.learn(list(zip(run.roles, run.tokens, strict=True)), run.hoped)
            if reason:
                self.known[run.type_key] = profile.renewed(reason)
                self.changes = [*self.changes, (run.type_key[1], reason)][-100:]

    def _profile(self, key: tuple[str, str]) -> Profile | None:
        """Return the profile, a new one if there is room; a type of too few runs makes room, oldest first."""
        if key not in self.known:
            mine = [k for k in self.known if k[0] == key[0]]
            full = len(mine) >= MOST_TYPES or (not mine and len({k[0] for k in self.known}) >= MOST_TENANTS)
            if full:
                weak = next((k for k in (mine or self.known) if self.known[k].thin), None)
                if weak is None:
                    return None
                del self.known[weak]
            self.known[key] = Profile()
        return self.known[key]

    def learn_log(self, steps: Iterable[Step]) -> int:
        """Learn from a log, in order of time; return the number of runs."""
        events: list[tuple[float, int, Step]] = []
        for i, step in enumerate(steps):
            events += [(step.time_s, 2 * i, step), (step.time_s + step.duration_s, 2 * i + 1, step)]
        events.sort(key=lambda event: event[:2])
        places: dict[int, tuple[Run, int]] = {}
        before = self.finished
        for now, number, step in events:
            self.expire(now)
            ids = Identifiers(step.workflow_type_id, step.workflow_id, step.agent_id, step.final)
            if number % 2 == 0:
                run, place, _ = self.begin(ids, step.tenant or SHARED, now, 0.01)
                places[number] = run, place
            else:
                self.end(*places.pop(number - 1), step, now)
        self.expire(math.inf)
        return self.finished - before

    def copy(self) -> Profiles:
        """Return an independent copy of what was learned."""
        return self._decoded(self.encode(), self.idle_s)

    def encode(self) -> bytes:
        """Return everything that was learned; open runs are not part of it."""
        stored = _Stored(self.salt, self.known)
        return msgspec.msgpack.encode(stored, enc_hook=lambda lengths: (lengths.seen, lengths.values.tobytes()))

    @classmethod
    def _decoded(cls, data: bytes, idle_s: float) -> Profiles:
        stored = msgspec.msgpack.decode(data, type=_Stored, dec_hook=lambda _, x: Lengths(array("I", x[1]), x[0]))
        profiles = cls(idle_s, stored.salt)
        profiles.known = stored.profiles
        return profiles

    def save(self, path: Path) -> None:
        """Write everything that was learned to one file."""
        self.write(self.encode(), path)

    @staticmethod
    def write(data: bytes, path: Path) -> None:
        """Write a file that only its owner can read, atomically."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise BadFile(path, f"cannot be written ({error.strerror})") from error

    @classmethod
    def load(cls, path: Path, idle_s: float = 120.0) -> Profiles:
        """Read a file that `save` wrote; a file that does not exist gives empty profiles."""
        try:
            return cls._decoded(path.read_bytes(), idle_s)
        except FileNotFoundError:
            return cls(idle_s)
        except OSError as error:
            raise BadFile(path, f"cannot be read ({error.strerror})") from error
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            raise BadFile(path, f"is no profile file ({error}); move it away to start anew") from error


class _Stored(msgspec.Struct, tag_field="version", tag=3):
    """The profile file; one of another version is refused."""

    salt: bytes
    profiles: dict[tuple[str, str], Profile]


def read_log(path: Path) -> Iterator[Step]:
    """Read a log of completed requests, one JSON object a line.

    Raises:
        BadFile: The file or one of its lines is malformed.
    """
    return read_rows(path, Step, "completed request")
