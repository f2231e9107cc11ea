"""Projects, tokens, repairs, windows that are asked for, and the audit log: what is changed by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from eroica.errors import InputError
from eroica.model.words import clean
from starlette.responses import Response

from eroica_fleet.asking import Ask, Door, Missing, answer, problem
from eroica_fleet.database import audit, orders, projects, repairs, tokens, writing
from eroica_fleet.intake import ORDER_S
from eroica_fleet.queries import run_row
from eroica_fleet.tenants import Callers, add_project, add_token, note, only_project, project_named, revoke_token

#: In a project's place: every project.
ALL = "*"
_MOST = 1000
_DAY_S = 86_400.0
_MOST_DAYS = 36_500.0


class TokenWish(msgspec.Struct, frozen=True, kw_only=True):
    """A token to be made. The operator names the project if there are several; others get tokens of their own.

    `ALL`, or the scope `operate` without a project, makes one that sees all projects.
    """

    name: str
    scopes: list[str]
    project: str = ""
    days: float = 0.0


class ProjectWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a project is granted; None leaves it as it is."""

    retention_days: float | None = None
    pattern_days: float | None = None
    quota_bytes: int | None = None
    requests_per_s: float | None = None
    webhook_url: str | None = None


class NewProject(msgspec.Struct, frozen=True, kw_only=True):
    """A project to be made."""

    name: str


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A host was repaired or replaced. `project` is the operator's to name, if there are several."""

    host: str
    note: str = ""
    at: float = 0.0
    project: str = ""


class WindowWish(msgspec.Struct, frozen=True, kw_only=True):
    """A window to be opened on a running job."""

    reason: str = "asked for by the fleet"
    seconds: float = 0.0


#: What a number of a project may be: least, most.
_LIMITS = {
    "retention_days": (1.0, 36_500.0),
    "pattern_days": (0.0, 36_500.0),
    "quota_bytes": (0, 2**60),
    "requests_per_s": (0.1, 1e6),
}


class Administration:
    """Changes by hand, each with a line in the audit log.

    Args:
        callers: Who is who; looked up anew after changes.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/v1/projects", "GET", "administer", self._projects),
            Door("/v1/projects", "POST", "operate", self._add_project),
            Door("/v1/projects/{project_id:int}", "PUT", "administer", self._change_project),
            Door("/v1/tokens", "GET", "administer", self._tokens),
            Door("/v1/tokens", "POST", "administer", self._add_token),
            Door("/v1/tokens/{token_id:int}", "DELETE", "administer", self._revoke_token),
            Door("/v1/audit", "GET", "administer", self._audit),
            Door("/v1/repairs", "GET", "read", self._repairs),
            Door("/v1/repairs", "POST", "administer", self._add_repair),
            Door("/v1/runs/{run_id:int}/window", "POST", "window", self._ask_for_window),
        )

    # ------------------------------------------------------------------ projects and tokens

    def _projects(self, ask: Ask) -> Response:
        seen = sa.true() if ask.caller.project_id is None else projects.c.id == ask.caller.project_id
        columns = [column for column in projects.c if column.name != "webhook_url"]
        is_told = (projects.c.webhook_url != "").label("webhook")  # the address is a secret
        with ask.engine.connect() as connection:
            rows = connection.execute(sa.select(*columns, is_told).where(seen).order_by(projects.c.name)).all()
        return answer([dict(row._mapping) for row in rows])

    def _add_project(self, ask: Ask) -> Response:
        name = ask.record(NewProject).name
        project_id = add_project(ask.engine, name)
        note(ask.engine, ask.caller, "project added", name, ask.address)
        return answer({"id": project_id, "name": name}, 201)

    def _change_project(self, ask: Ask) -> Response:
        project_id = ask.path["project_id"]
        if ask.caller.project_id not in (None, project_id):
            raise Missing("there is no such project")
        wish = ask.record(ProjectWish)
        values = {name: value for name, value in msgspec.structs.asdict(wish).items() if value is not None}
        if set(values) & set(_LIMITS) and not ask.caller.may("operate"):
            return problem(403, "limits are the operator's to change")
        for name, value in values.items():
            least, most = _LIMITS.get(name, (0, 0))
            if name in _LIMITS and not least <= value <= most:
                raise InputError(f"{name} is a number from {least:g} to {most:g}")
        if values.get("webhook_url", "").partition(":")[0] not in ("", "http", "https"):
            raise InputError("webhook_url is no http or https address")
        if values:
            with writing(ask.engine).begin() as connection:
                found = connection.execute(sa.update(projects).where(projects.c.id == project_id).values(**values))
            if not found.rowcount:
                raise Missing("there is no such project")
            self._callers.forget()
        shown = {name: "..." if name == "webhook_url" else value for name, value in values.items()}
        note(ask.engine, ask.caller, "project changed", f"{project_id}: {shown}", ask.address)
        return answer({"id": project_id})

    def _tokens(self, ask: Ask) -> Response:
        columns = [column for column in tokens.c if column.name != "hash"]
        named = sa.select(*columns, projects.c.name.label("project")).outerjoin(projects)
        question = named.where(ask.caller.sees(tokens)).order_by(tokens.c.id.desc()).limit(_MOST)
        with ask.engine.connect() as connection:
            return answer([dict(row._mapping) for row in connection.execute(question)])

    def _add_token(self, ask: Ask) -> Response:
        wish = ask.record(TokenWish)
        if not clean(wish.name):
            raise InputError("a token needs a name, for the audit log")
        if ask.caller.project_id is None and "operate" in wish.scopes and not ask.caller.may("operate"):
            return problem(403, "this token may not give what it does not have: operate")
        if not 0 <= wish.days <= _MOST_DAYS:
            raise InputError(f"days is a number from 0 (for ever) to {_MOST_DAYS:g}")
        sees_all = wish.project == ALL or ("operate" in wish.scopes and not wish.project)
        project_id = None if sees_all and ask.caller.project_id is None else self._project(ask, wish.project)
        expires_at = time.time() + wish.days * _DAY_S if wish.days > 0 else None
        token = add_token(ask.engine, project_id, clean(wish.name), wish.scopes, expires_at)
        note(ask.engine, ask.caller, "token added", f"{clean(wish.name)}: {', '.join(wish.scopes)}", ask.address)
        return answer({"token": token}, 201)

    def _project(self, ask: Ask, named: str) -> int:
        """The caller's own project; the operator's is the one that is named, or the only one there is."""
        if ask.caller.project_id is None:
            return project_named(ask.engine, named) if named else only_project(ask.engine)
        if named and project_named(ask.engine, named) != ask.caller.project_id:
            raise InputError(f"there is no project {named!r}")
        return ask.caller.project_id

    def _revoke_token(self, ask: Ask) -> Response:
        if not revoke_token(ask.engine, ask.caller, min(ask.path["token_id"], 2**62)):
            raise Missing("there is no such token")
        self._callers.forget()
        note(ask.engine, ask.caller, "token revoked", str(ask.path["token_id"]), ask.address)
        return answer({"revoked": ask.path["token_id"]})

    def _audit(self, ask: Ask) -> Response:
        question = sa.select(audit).where(ask.caller.sees(audit)).order_by(audit.c.id.desc())
        with ask.engine.connect() as connection:
            rows = connection.execute(question.limit(int(ask.number("limit", 100, 1, _MOST)))).all()
        return answer([dict(row._mapping) for row in rows])

    # ------------------------------------------------------------------ repairs and windows

    def _repairs(self, ask: Ask) -> Response:
        question = sa.select(repairs).where(ask.caller.sees(repairs)).order_by(repairs.c.at.desc()).limit(_MOST)
        with ask.engine.connect() as connection:
            return answer([dict(row._mapping) for row in connection.execute(question)])

    def _add_repair(self, ask: Ask) -> Response:
        repair = ask.record(Repair)
        host, project_id = clean(repair.host, 300), self._project(ask, repair.project)
        if not host:
            raise InputError("a repair needs the host's name")
        if not 0 <= repair.at <= time.time():
            raise InputError("at is a time in seconds since 1970, not in the future; 0 is now")
        row: dict[str, Any] = {"host": host, "at": repair.at or time.time(), "note": clean(repair.note, 1000)}
        with writing(ask.engine).begin() as connection:
            connection.execute(sa.insert(repairs).values(project_id=project_id, **row))
        note(ask.engine, ask.caller, "host repaired", f"{host}: {row['note']}" if row["note"] else host, ask.address)
        return answer(row, 201)

    def _ask_for_window(self, ask: Ask) -> Response:
        wish = ask.record(WindowWish)
        if not 0 <= wish.seconds <= 3600:
            raise InputError("seconds is a number from 0 to 3,600")
        with writing(ask.engine).begin() as connection:
            row = run_row(ask, connection, ask.path["run_id"])
            if row.phase == "over":
                return problem(409, "this run is over")
            waiting = connection.execute(
                sa.select(orders.c.id).where(
                    orders.c.run_id == row.id, orders.c.told_at.is_(None), orders.c.asked_at > time.time() - ORDER_S
                )
            ).first()
            if waiting is not None:
                return problem(409, "a window was asked for already, and the job has not heard of it yet")
            connection.execute(
                sa.insert(orders).values(
                    project_id=row.project_id,
                    run_id=row.id,
                    asked_at=time.time(),
                    reason=clean(wish.reason, 200),
                    seconds=wish.seconds,
                )
            )
        note(ask.engine, ask.caller, "window asked for", f"{row.job}: {clean(wish.reason, 200)}", ask.address)
        return answer({"asked": True}, 202)
