"""Projects and their tokens: who may do what, and of which project.

A token is shown once, when it is made; the database holds its hash. A token without a project is that of the service's
operator, who may do everything in every project.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, get_args

import sqlalchemy as sa
from eroica.errors import InputError, UsageError

from eroica_fleet.database import audit, projects, sessions, tokens, writing

Scope = Literal["report", "read", "window", "administer", "operate"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
OF_PROJECTS = SCOPES[:-1]
"""Scopes that a project's token may have."""
SESSION_S = 12 * 3600.0
_PREFIX = "eroica_"
#: How long a token that was looked up is believed without another look, seconds: a revoked one works no longer.
_BELIEVED_S = 5.0
_MOST_BELIEVED = 10_000
#: Tokens and cookies that are not known here are learned from the database at most so often, seconds.
_LEARN_S = 0.25
#: Rows that are read again each time: ids may be committed in another order, and clocks of several services differ.
_OVERLAP, _OVERLAP_S = 1000, 600.0


class Defaults(NamedTuple):
    """What a new project is granted."""

    retention_days: float = 400.0
    pattern_days: float = 90.0
    quota_bytes: int = 50_000_000_000
    requests_per_s: float = 200.0


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        token_id: Their token's row.
        name: Its name, for the audit log.
        project_id: The one project that they see; None sees all.
        scopes: What they may do.
        requests_per_s: What their project is granted.
    """

    token_id: int
    name: str
    project_id: int | None
    scopes: frozenset[str]
    requests_per_s: float

    def may(self, scope: Scope) -> bool:
        """They have the scope, or the operator's."""
        return scope in self.scopes or "operate" in self.scopes

    def sees(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """The condition that every question about a table carries: rows of their project only."""
        return sa.true() if self.project_id is None else table.c.project_id == self.project_id


def digest(secret: str) -> str:
    """How a secret is stored. Ours have 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def add_project(engine: sa.Engine, name: str, granted: Defaults = Defaults()) -> int:  # noqa: B008 - frozen
    """A new project's id.

    Raises:
        UsageError: There is one of this name, or the name is none.
    """
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise UsageError("a project's name has 1 to 200 printable characters")
    try:
        with writing(engine).begin() as connection:
            row = connection.execute(
                sa.insert(projects).values(name=name, created_at=time.time(), **granted._asdict())
            ).inserted_primary_key
    except sa.exc.IntegrityError:
        raise UsageError(f"there is a project {name!r} already") from None
    assert row is not None
    return int(row[0])


def add_token(
    engine: sa.Engine, project_id: int | None, name: str, scopes: Iterable[str], expires_at: float | None = None
) -> str:
    """A new token; it cannot be shown again.

    Raises:
        UsageError: A scope is unknown, or one that only the operator has.
    """
    token = _drawn()
    row = _token_row(token, project_id, name, scopes, expires_at)
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(tokens).values(**row))
    return token


def _drawn() -> str:
    return _PREFIX + secrets.token_urlsafe(32)


def _token_row(
    token: str, project_id: int | None, name: str, scopes: Iterable[str], expires_at: float | None = None
) -> dict[str, Any]:
    wanted = list(dict.fromkeys(scopes))
    allowed = SCOPES if project_id is None else OF_PROJECTS
    wrong = [scope for scope in wanted if scope not in allowed]
    if wrong or not wanted:
        raise UsageError(f"scopes {', '.join(wrong) or 'are missing'}: they are any of {', '.join(allowed)}")
    return {
        "project_id": project_id,
        "name": name[:200],
        "hash": digest(token),
        "scopes": ",".join(wanted),
        "created_at": time.time(),
        "expires_at": expires_at,
    }


def revoke_token(engine: sa.Engine, caller: Caller, token_id: int) -> bool:
    """End a token and the sessions opened with it; False if the caller sees none of this number."""
    with writing(engine).begin() as connection:
        ended = connection.execute(
            sa.update(tokens)
            .where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None), caller.sees(tokens))
            .values(revoked_at=time.time())
        ).rowcount
        if ended:
            connection.execute(sa.delete(sessions).where(sessions.c.token_id == token_id))
    return bool(ended)


def note(engine: sa.Engine, caller: Caller | None, action: str, detail: str, address: str) -> None:
    """Write a line into the audit log."""
    with writing(engine).begin() as connection:
        connection.execute(
            sa.insert(audit).values(
                project_id=caller.project_id if caller else None,
                at=time.time(),
                who=caller.name if caller else "",
                action=action,
                detail=detail[:1000],
                address=address[:100],
            )
        )


class Callers:
    """Looks callers up by token or cookie, and remembers for a few seconds what it found.

    The hashes of all valid tokens and cookies are kept in memory, so a guess costs no question to the database. Others
    than these are learned for all who wait together, so many guesses cost as much as one.

    Args:
        engine: The database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[float, Caller]] = {}
        self._given_out: set[str] = set()
        self._last_token, self._last_expiry = 0, 0.0
        self._learned_at = 0.0
        self._learning: asyncio.Task[None] | None = None
        self._read_new()

    def is_given_out(self, token: str = "", cookie: str = "") -> bool:
        """Whether a token or cookie is known to be valid, or was a moment ago. Never asks the database."""
        given = (digest(token) if token else "", _of_session(cookie) if cookie else "")
        return not self._given_out.isdisjoint(given)

    async def by_token(self, token: str) -> Caller | None:
        """Whose token this is; None for nobody's, one that was revoked or has expired."""
        return await self._find(digest(token), sa.select(tokens).where(tokens.c.hash == digest(token)))

    async def by_session(self, cookie: str) -> Caller | None:
        """Who has this cookie."""
        found = digest(cookie)
        question = (
            sa.select(tokens)
            .join(sessions, sessions.c.token_id == tokens.c.id)
            .where(sessions.c.hash == found, sessions.c.expires_at > time.time())
        )
        return await self._find(_of_session(cookie), question)

    def open_session(self, caller: Caller) -> str:
        """A new cookie for somebody who has shown a token."""
        cookie = secrets.token_urlsafe(32)
        with writing(self._engine).begin() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < time.time()))
            connection.execute(
                sa.insert(sessions).values(
                    hash=digest(cookie), token_id=caller.token_id, expires_at=time.time() + SESSION_S
                )
            )
        self._given_out.add(_of_session(cookie))
        return cookie

    def close_session(self, cookie: str) -> None:
        """Forget a cookie."""
        self._known.pop(_of_session(cookie), None)
        self._given_out.discard(_of_session(cookie))
        with writing(self._engine).begin() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.hash == digest(cookie)))

    def forget(self) -> None:
        """Look everybody up anew."""
        self._known.clear()

    async def _find(self, key: str, question: sa.Select[Any]) -> Caller | None:
        until, caller = self._known.get(key, (0.0, None))
        if until > time.monotonic():
            return caller
        if key not in self._given_out:
            await self._learn()
        return await asyncio.to_thread(self._look_up, key, question) if key in self._given_out else None

    def _look_up(self, key: str, question: sa.Select[Any]) -> Caller | None:
        with self._engine.connect() as connection:
            row = connection.execute(
                question.outerjoin(projects, projects.c.id == tokens.c.project_id).add_columns(
                    projects.c.requests_per_s
                )
            ).first()
        if row is None or row.revoked_at is not None or (row.expires_at or 1e18) < time.time():
            self._known.pop(key, None)
            self._given_out.discard(key)
            return None
        caller = Caller(row.id, row.name, row.project_id, frozenset(row.scopes.split(",")), row.requests_per_s or 1e9)
        if len(self._known) >= _MOST_BELIEVED:
            self._known.clear()
        self._known[key] = (time.monotonic() + _BELIEVED_S, caller)
        return caller

    async def _learn(self) -> None:
        """Wait until the database has been read once more from now on."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._learn_soon())
        await asyncio.shield(self._learning)

    async def _learn_soon(self) -> None:
        await asyncio.sleep(max(0.0, self._learned_at + _LEARN_S - time.monotonic()))
        self._learning = None  # whoever comes from now on waits for the next reading
        self._learned_at = time.monotonic()
        await asyncio.to_thread(self._read_new)

    def _read_new(self) -> None:
        """Read hashes of tokens and cookies that were made since the last time."""
        now = time.time()
        made = sa.select(tokens.c.id, tokens.c.hash).where(
            tokens.c.id > self._last_token - _OVERLAP,
            tokens.c.revoked_at.is_(None),
            sa.func.coalesce(tokens.c.expires_at, 1e18) > now,
        )
        opened = sa.select(sessions.c.hash, sessions.c.expires_at).where(
            sessions.c.expires_at > max(now, self._last_expiry - _OVERLAP_S)
        )
        with self._engine.connect() as connection:
            for row in connection.execute(made):
                self._given_out.add(row.hash)
                self._last_token = max(self._last_token, row.id)
            for row in connection.execute(opened):
                self._given_out.add(f"session {row.hash}")
                self._last_expiry = max(self._last_expiry, row.expires_at)


def _of_session(cookie: str) -> str:
    return f"session {digest(cookie)}"


class Rates:
    """A token bucket for each project: requests above its rate are refused, bursts of ten seconds' worth are not.

    Args:
        clock: Seconds, monotonic.
    """

    BURST_S = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[int | None, tuple[float, float]] = {}

    def admit(self, project_id: int | None, per_s: float) -> float:
        """Take one request; 0 if it may pass, else the seconds after which to come again."""
        now = self._clock()
        left, at = self._left.get(project_id, (per_s * self.BURST_S, now))
        left = min(left + (now - at) * per_s, per_s * self.BURST_S)
        if left < 1:
            self._left[project_id] = (left, now)
            return (1 - left) / per_s
        self._left[project_id] = (left - 1, now)
        return 0.0


class FirstTokens(NamedTuple):
    """Tokens of a service that has just been set up.

    Attributes:
        operator: May do everything.
        jobs: Reports for the project `main`.
    """

    operator: str
    jobs: str


def first_start(engine: sa.Engine, keep: Callable[[FirstTokens], object] = lambda made: None) -> FirstTokens | None:
    """Where no operator has a token that is valid: the project `main` and the first tokens; else None.

    Args:
        engine: The database.
        keep: Writes the tokens down. That comes first, and both begin to count at once after it: whoever is killed
            here, or finds the disk full, begins anew.

    Raises:
        OSError: They could not be written down; none of them counts.
    """
    operators = (
        tokens.c.project_id.is_(None),
        tokens.c.scopes.contains("operate"),
        tokens.c.revoked_at.is_(None),
        sa.func.coalesce(tokens.c.expires_at, 1e18) > time.time(),
    )
    with engine.connect() as connection:
        if connection.execute(sa.select(tokens.c.id).where(*operators).limit(1)).first() is not None:
            return None
    try:
        project_id = add_project(engine, "main")
    except UsageError:  # made a moment ago by another service, or left by one that was killed here
        project_id = project_named(engine, "main")
    made = FirstTokens(operator=_drawn(), jobs=_drawn())
    keep(made)
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(tokens).values(**_token_row(made.jobs, project_id, "jobs", ["report"])))
        connection.execute(sa.insert(tokens).values(**_token_row(made.operator, None, "operator", ["operate"])))
    return made


def project_named(engine: sa.Engine, name: str) -> int:
    """Id of a project.

    Raises:
        InputError: There is none.
    """
    with engine.connect() as connection:
        row = connection.execute(sa.select(projects.c.id).where(projects.c.name == name)).first()
    if row is None:
        raise InputError(f"there is no project {name!r}")
    return int(row.id)


def only_project(engine: sa.Engine) -> int:
    """Id of the project where there is but one.

    Raises:
        InputError: There are several, so that one has to be named.
    """
    with engine.connect() as connection:
        found = connection.execute(sa.select(projects.c.id).limit(2)).scalars().all()
    if len(found) != 1:
        raise InputError("there are several projects: name one")
    return int(found[0])
