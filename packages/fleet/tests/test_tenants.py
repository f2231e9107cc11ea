"""Two projects in one service: a person of one sees nothing of the other, on whatever route there is."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from eroica.fleet.records import Batch, Receipt

from eroica_fleet import asking
from eroica_fleet.database import metadata, migrate, open_database, writing
from eroica_fleet.pieces import PatternStore
from eroica_fleet.queries import EXPORTED
from eroica_fleet.service import Service
from eroica_fleet.tenants import SCOPES, FirstTokens, Rates, add_project, add_token, first_start
from filling import Filling, beat, patterns_piece, standstill_piece

SECRET = "sesame"
"""In each text that belongs to the other project."""
OURS, THEIRS = "http://fleet.test", 2


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    engine = open_database(f"sqlite:///{tmp_path / 'fleet.db'}")
    migrate(engine)
    service = Service(engine, PatternStore(str(tmp_path / "patterns")))
    assert first_start(engine) is not None
    add_project(engine, f"{SECRET}-project")
    add_token(engine, THEIRS, f"{SECRET}-token", ["report"])
    yield service
    service.close()


def ask(service: Service, method: str, path: str, token: str, body: Any = b"", **more: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(service.application(), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:
            content = body if isinstance(body, bytes) else msgspec.json.encode(body)
            headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
            return await client.request(method, path, headers=headers, content=content, **more)

    return asyncio.run(asked())


def fill(service: Service) -> None:
    """Both projects have the same, but theirs has the secret in every text."""
    now = time.time()
    for project_id, word in ((1, "ours"), (THEIRS, SECRET)):
        filling = Filling(service.engine, service.store, project_id)
        for number in range(4):
            hosts = [f"{word}-h{at}" for at in range(20)]
            told = {"message": f"{word} is well", "best_ms": 90.0 + 9 * number}
            facts = filling.run(
                f"{word}-job{number % 3}", now - 9000 + number, now, hosts, hosts[:1], function=f"{word}.step",
                summary=f"{word} is slow.", commit=f"{word}-c", beat=told,
            )  # fmt: skip
            filling.put(patterns_piece(facts, 1, 0.2, host=f"{word}-h0"), standstill_piece(facts, 1, now, word))
        with writing(service.engine).begin() as connection:
            for sql in (
                "insert into repairs (project_id, host, at, note) values (:p, :w || '-h0', 5, :w)",
                "insert into audit (project_id, at, who, action, detail, address) values (:p, 5, :w, :w, :w, :w)",
                "insert into alerts (project_id, key, kind, text, raised_at) values (:p, :w, 'host', :w, 5)",
            ):
                connection.execute(sa.text(sql), {"p": project_id, "w": word})


def ids(service: Service, table: str, project_id: int) -> list[int]:
    with service.engine.connect() as connection:
        asked = sa.text(f"select id from {table} where project_id = :p")
        return list(connection.execute(asked, {"p": project_id}).scalars())


def everything(service: Service) -> dict[str, list[Any]]:
    """All rows of their project."""
    with service.engine.connect() as connection:
        found = {}
        for table in metadata.sorted_tables:
            if "project_id" in table.c:
                rows = connection.execute(sa.select(table).where(table.c.project_id == THEIRS))
                found[table.name] = sorted(map(repr, rows))
        found["projects"] = sorted(map(repr, connection.execute(sa.text("select * from projects where id = 2"))))
        return found


#: What a route wants as its body, where nothing would be refused for being nothing.
BODIES: dict[str, Any] = {
    "/v1/reports": msgspec.msgpack.encode(Batch()),
    "/v1/projects/{project_id:int}": {"webhook_url": "http://mine.test/x"},
    "/v1/projects": {"name": "new"},
    "/v1/tokens": {"name": "x", "scopes": ["read"], "project": f"{SECRET}-project"},
    "/v1/repairs": {"host": f"{SECRET}-h0", "project": f"{SECRET}-project"},
    "/v1/runs/{run_id:int}/window": {"seconds": 1},
    "/login": b"token=x",
}


def paths(service: Service, path: str) -> list[str]:
    """The route with their rows' numbers in it."""
    if "{" not in path:
        return [path]
    filled = []
    found = ids(service, "runs", THEIRS)
    for run_id in (found[0], found[-1]):  # the latter has earlier ones
        numbers = {
            "run_id:int": run_id, "window_id:int": 1, "token_id:int": ids(service, "tokens", THEIRS)[0],
            "project_id:int": THEIRS,
        }  # fmt: skip
        one = path
        for name, value in numbers.items():
            one = one.replace("{" + name + "}", str(value))
        for called in EXPORTED if "tables" in path else ["fleet.js"]:
            each = one.replace("{name}", called)
            assert "{" not in each, f"a new parameter in {path}: say here what stands for it"
            filled.append(each)
    return list(dict.fromkeys(filled))


def shown(answer: httpx.Response) -> str:
    """What somebody who gets the answer can read in it."""
    if answer.content[:4] == b"PAR1":
        return repr(pq.read_table(io.BytesIO(answer.content)).to_pylist())
    return answer.text


def test_no_route_shows_or_changes_anything_of_another_project(service: Service) -> None:
    fill(service)
    token = add_token(service.engine, 1, "ours", ["report", "read", "window", "administer"])
    before, asked = everything(service), 0
    for route in service.application().routes:
        door = route.endpoint.door  # type: ignore[attr-defined]  # each route is made of a door
        if door.path == "/v1/events":  # below
            continue
        for path in paths(service, door.path):
            searches = [{}, {"q": SECRET}, {"job": f"{SECRET}-job0"}, {"host": f"{SECRET}-h0"}]
            for query in searches if door.method == "GET" else searches[:1]:
                answer = ask(service, door.method, path, token, BODIES.get(door.path, b""), params=query)
                asked += 1
                text = shown(answer)
                assert SECRET not in text.replace(f"{SECRET}-project", ""), (door, path, text[:500])
                assert answer.status_code < 500, (door, answer.text)
                if "_id" in door.path:
                    assert answer.status_code in (404, 403), (door, answer.status_code)
    assert asked > 50
    assert everything(service) == before


def test_the_same_routes_show_their_own_project(service: Service) -> None:
    """What the test above looks for is really there."""
    fill(service)
    token = add_token(service.engine, THEIRS, "theirs", ["read", "administer"])
    showing = [
        path
        for route in service.application().routes
        for path in paths(service, route.path)  # type: ignore[attr-defined]
        if "GET" in route.methods and path != "/v1/events"  # type: ignore[attr-defined]
        and SECRET in shown(ask(service, "GET", path, token))
    ]  # fmt: skip
    for wanted in (
        "/v1/runs",
        "/v1/hosts",
        "/v1/functions",
        "/v1/trends",
        "/v1/audit",
        "/v1/alerts",
        "/v1/repairs",
        "/metrics",
        *(f"/v1/tables/{name}" for name in ("runs", "verdicts", "findings", "culprits", "run_hosts")),
    ):
        assert wanted in showing, wanted
    for ending in ("/patterns", "/standstill", "/windows/1", "/report", "/earlier"):
        assert any(path.endswith(ending) for path in showing), ending


def test_rules_for_prometheus_ask_for_what_the_service_tells(service: Service) -> None:
    fill(service)
    shown = ask(service, "GET", "/metrics", add_token(service.engine, 1, "prometheus", ["read"])).text
    rules = (Path(__file__).parents[3] / "docs" / "monitoring" / "fleet-alerts.yml").read_text(encoding="utf-8")
    asked = set(re.findall(r"(eroica_fleet_\w+)(?:{(\w+=\"\w+\")})?", rules))
    assert len(asked) >= 6
    for name, label in asked:
        assert re.search(rf"^{name}{{[^}}]*{label}" if label else rf"^# TYPE {name} gauge$", shown, re.M), (name, label)


def test_followers_hear_of_their_own_project_only(service: Service) -> None:
    fill(service)
    token = add_token(service.engine, 1, "ours", ["read"])

    async def first_news() -> str:
        heard = ""
        app = service.application()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http", "method": "GET", "path": "/v1/events", "query_string": b"since=0", "http_version": "1.1",
            "headers": [(b"authorization", f"Bearer {token}".encode())], "client": ("127.0.0.1", 1), "scheme": "http",
            "server": ("fleet.test", 80), "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.4"},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(30)
            return {"type": "http.disconnect"}

        task = asyncio.create_task(app(scope, receive, messages.put))  # type: ignore[arg-type]
        while "event: runs" not in heard:
            heard += (await asyncio.wait_for(messages.get(), 10)).get("body", b"").decode()
        task.cancel()
        return heard

    heard = asyncio.run(first_news())
    assert "ours-job0" in heard
    assert SECRET not in heard


def test_every_route_wants_a_scope_and_only_pages_for_strangers_do_not(service: Service) -> None:
    fill(service)
    strangers = set()
    for route in service.application().routes:
        door = route.endpoint.door  # type: ignore[attr-defined]
        path = paths(service, door.path)[0]
        if door.scope is None:
            strangers.add((door.method, door.path))
            continue
        assert ask(service, door.method, path, "nonsense").status_code in (401, 303), door
        others = [scope for scope in SCOPES if scope not in (door.scope, "operate")]
        weak = add_token(service.engine, 1, "weak", others)
        assert ask(service, door.method, path, weak, BODIES.get(door.path, b"")).status_code == 403, door
    assert strangers == {("GET", "/healthz"), ("GET", "/login"), ("POST", "/login"), ("GET", "/assets/{name}")}


def test_tokens_are_stored_as_hashes_and_end_when_they_are_revoked(service: Service) -> None:
    token = add_token(service.engine, 1, "mine", ["read", "administer"])
    with service.engine.connect() as connection:
        rows = connection.execute(sa.text("select * from tokens")).all()
    assert not any(token in repr(row) for row in rows)
    assert ask(service, "GET", "/v1/runs", token).status_code == 200
    mine = next(one for one in ask(service, "GET", "/v1/tokens", token).json() if one["name"] == "mine")
    assert ask(service, "DELETE", f"/v1/tokens/{mine['id']}", token).status_code == 200
    assert ask(service, "GET", "/v1/runs", token).status_code == 401
    late = add_token(service.engine, 1, "late", ["read"], expires_at=time.time() - 1)
    assert ask(service, "GET", "/v1/runs", late).status_code == 401


def test_who_administers_a_project_neither_operates_nor_raises_limits(service: Service) -> None:
    token = add_token(service.engine, 1, "admin", ["administer"])
    assert ask(service, "POST", "/v1/tokens", token, {"name": "x", "scopes": ["operate"]}).status_code == 400
    assert ask(service, "PUT", "/v1/projects/1", token, {"quota_bytes": 2**50}).status_code == 403
    assert ask(service, "PUT", "/v1/projects/1", token, {"webhook_url": "https://chat.test/secret"}).status_code == 200
    shown = ask(service, "GET", "/v1/projects", token).text
    assert '"webhook":' in shown and "chat.test" not in shown
    log = ask(service, "GET", "/v1/audit", token).text
    assert "project changed" in log and "chat.test" not in log


def test_what_is_asked_for_by_hand_is_checked(service: Service) -> None:
    token = add_token(service.engine, 1, "admin", ["administer"])
    half = add_token(service.engine, None, "half an operator", ["administer"])
    assert ask(service, "POST", "/v1/tokens", half, {"name": "x", "scopes": ["operate"]}).status_code == 403
    for days in (-1, 1e9):
        wish = {"name": "x", "scopes": ["read"], "days": days}
        assert ask(service, "POST", "/v1/tokens", token, wish).status_code == 400
    for at in (-1.0, time.time() + 9e5):
        assert ask(service, "POST", "/v1/repairs", token, {"host": "node1", "at": at}).status_code == 400


def test_whoever_is_killed_before_the_first_tokens_are_written_down_locks_nobody_out(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'first.db'}")
    migrate(engine)

    def full(made: FirstTokens) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        first_start(engine, full)
    add_token(engine, 1, "jobs", ["report"])  # what an earlier release left behind
    written: list[FirstTokens] = []
    made = first_start(engine, written.append)
    assert written == [made] and made is not None
    service = Service(engine, PatternStore(str(tmp_path / "patterns")))
    assert ask(service, "GET", "/v1/tokens", made.operator).status_code == 200
    assert first_start(engine, written.append) is None
    service.close()


def test_where_the_only_operators_token_has_expired_the_next_start_makes_another(service: Service) -> None:
    assert first_start(service.engine) is None
    with writing(service.engine).begin() as connection:
        connection.execute(sa.text("update tokens set expires_at = 5 where project_id is null"))
    add_token(service.engine, None, "makes no projects", ["administer"])
    made = first_start(service.engine)
    assert made is not None
    assert ask(service, "POST", "/v1/projects", made.operator, {"name": "new"}).is_success
    assert first_start(service.engine) is None


def test_strangers_who_send_slowly_keep_out_neither_reports_nor_logins(service: Service) -> None:
    token = add_token(service.engine, 1, "jobs", ["report"])
    batch = msgspec.msgpack.encode(Batch())

    async def drip() -> Any:
        yield b"token="
        await asyncio.sleep(60)

    async def crowd() -> list[int]:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:
            slow = [
                asyncio.create_task(client.post("/login", content=drip(), headers={"origin": OURS})) for _ in range(40)
            ]
            await asyncio.sleep(0.2)
            headers = {"authorization": f"Bearer {token}"}
            asked = [
                client.post("/v1/reports", content=batch, headers=headers),
                client.post(
                    "/login", data={"token": add_token(service.engine, 1, "p", ["read"])}, headers={"origin": OURS}
                ),
                client.post("/login", content=b"x" * 5000, headers={"origin": OURS}),
            ]
            answers = [(await asyncio.wait_for(one, 10)).status_code for one in asked]
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            return answers

    assert asyncio.run(crowd()) == [200, 303, 413]


def test_many_guesses_cost_the_database_as_much_as_one_and_keep_nobody_out(service: Service) -> None:
    token = add_token(service.engine, 1, "mine", ["read"])
    asked = 0

    def count(connection: object, cursor: object, statement: str, *_: object) -> None:
        nonlocal asked
        asked += "FROM tokens" in statement

    async def crowd() -> list[int]:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:
            given = [f"eroica_{number}" for number in range(200)] + [token]
            calls = [client.get("/v1/runs", headers={"authorization": f"Bearer {one}"}) for one in given]
            return [answer.status_code for answer in await asyncio.gather(*calls)]

    sa.event.listen(service.engine, "before_cursor_execute", count)
    assert asyncio.run(crowd()) == [401] * 200 + [200]
    assert asked <= 4
    fresh = add_token(service.engine, 1, "made by another service", ["read"])
    assert ask(service, "GET", "/v1/runs", fresh).status_code == 200


def test_after_a_new_start_tokens_and_cookies_are_known(service: Service) -> None:
    token = add_token(service.engine, 1, "mine", ["read"])
    caller = asyncio.run(service.callers.by_token(token))
    assert caller is not None
    cookie = service.callers.open_session(caller)
    anew = Service(service.engine, service.store)
    assert anew.callers.is_given_out(token) and anew.callers.is_given_out(cookie=cookie)
    assert not anew.callers.is_given_out(cookie) and not anew.callers.is_given_out("", "")
    assert asyncio.run(anew.callers.by_session(cookie)) == caller
    anew._writer.close()


def test_slow_bodies_of_one_project_delay_no_other(service: Service) -> None:
    slow_one, other = (add_token(service.engine, project, "jobs", ["report"]) for project in (1, THEIRS))
    batch = msgspec.msgpack.encode(Batch())

    async def drip() -> Any:
        yield batch[:1]
        await asyncio.sleep(60)

    async def crowd() -> list[int]:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:

            def post(token: str, content: Any) -> Any:
                return client.post("/v1/reports", content=content, headers={"authorization": f"Bearer {token}"})

            slow = [asyncio.create_task(post(slow_one, drip())) for _ in range(300)]
            await asyncio.sleep(0.5)
            answers = [(await asyncio.wait_for(post(token, batch), 10)).status_code for token in (other, slow_one)]
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            return answers

    assert asyncio.run(crowd()) == [200, 503]


def test_bodies_that_are_on_their_way_are_bounded_by_their_bytes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_BODY_BYTES_OF_ONE", 1_000_000)
    token = add_token(service.engine, 1, "jobs", ["report"])

    async def large() -> Any:
        yield b"x" * 600_000
        await asyncio.sleep(1)

    async def crowd() -> list[int]:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:
            headers = {"authorization": f"Bearer {token}"}
            sent = [client.post("/v1/reports", content=large(), headers=headers) for _ in range(3)]
            return sorted([one.status_code for one in await asyncio.gather(*sent)])

    assert asyncio.run(crowd()) == [400, 503, 503]
    assert ask(service, "POST", "/v1/reports", token, msgspec.msgpack.encode(Batch())).status_code == 200


def test_however_many_spans_are_asked_for_few_insights_are_worked_out(service: Service) -> None:
    token = add_token(service.engine, 1, "mine", ["read"])
    spans = {
        ask(service, "GET", "/v1/hosts", token, params={"days": days}).json()["days"]
        for days in (0.05, 0.5, 1, 3, 6.5, 7, 20, 29, 31, 100, 200, 1000, 2000, 3650)
    }
    assert spans == {1.0, 7.0, 30.0, 90.0, 365.0, 3650.0}
    assert ask(service, "GET", "/v1/hosts", token, params={"days": 4000}).status_code == 400


def test_an_operators_token_reports_nothing_and_costs_no_report(service: Service) -> None:
    token = add_token(service.engine, None, "operator", ["report", "operate"])
    refused = ask(service, "POST", "/v1/reports", token, msgspec.msgpack.encode(Batch()))
    assert (refused.status_code, refused.headers["x-eroica-fleet"]) == (403, "1")


def test_too_much_and_too_often_are_refused(service: Service) -> None:
    with writing(service.engine).begin() as connection:
        connection.execute(sa.text("update projects set requests_per_s = 0.5 where id = 1"))
    token = add_token(service.engine, 1, "busy", ["report", "administer"])
    assert ask(service, "POST", "/v1/tokens", token, b"x" * 100_000).status_code == 413
    assert ask(service, "POST", "/v1/reports", token, b"x" * 17_000_000).status_code == 413
    rates, now = Rates(lambda: clock[0]), [0.0]
    clock = now
    assert [rates.admit(1, 0.5) == 0 for _ in range(6)] == [True] * 5 + [False]
    assert rates.admit(2, 0.5) == 0
    clock[0] = 2.0
    assert rates.admit(1, 0.5) == 0


def test_guesses_at_the_login_do_not_fill_the_audit_log(service: Service) -> None:
    async def guess() -> list[int]:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as stranger:
            return [
                (await stranger.post("/login", data={"token": "x"}, headers={"origin": OURS})).status_code
                for _ in range(40)
            ]

    answers = asyncio.run(guess())
    assert answers[0] == 401 and answers[-1] == 429
    with service.engine.connect() as connection:
        refused = connection.execute(sa.text("select count(*) from audit where action = 'login refused'")).scalar_one()
    assert refused == answers.count(401) < 40


def test_a_browser_logs_in_with_a_token_and_has_a_cookie_from_then_on(service: Service) -> None:
    fill(service)
    token = add_token(service.engine, 1, "person", ["read"])

    async def visit() -> None:
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url=OURS) as browser:
            stranger = await browser.get("/")
            assert (stranger.status_code, stranger.headers["location"]) == (303, "/login")
            own = {"origin": OURS}
            assert (await browser.post("/login", data={"token": "wrong"}, headers=own)).status_code == 401
            assert (await browser.post("/login", data={"token": token})).status_code == 403, "a foreign page may not"
            assert (await browser.post("/login", data={"token": token}, headers=own)).status_code == 303
            assert "The fleet" in (await browser.get("/")).text
            assert (await browser.get("/v1/runs")).json()["all"] == 4
            cookie = browser.cookies["eroica-fleet"]
            with service.engine.connect() as connection:
                assert cookie not in repr(connection.execute(sa.text("select * from sessions")).all())
            assert (await browser.post("/v1/runs/1/window", headers=own)).status_code == 403, "it may only read"
            assert (await browser.post("/logout", headers=own)).status_code == 303
            browser.cookies.set("eroica-fleet", cookie)
            assert (await browser.get("/v1/runs")).status_code == 401

    asyncio.run(visit())


def test_a_window_that_is_asked_for_is_told_once(service: Service) -> None:
    fill(service)
    filling = Filling(service.engine, service.store)
    facts = filling.run("asked", time.time() - 50, time.time(), ["h"])
    token = add_token(service.engine, 1, "person", ["read", "window", "report"])
    run_id = ask(service, "GET", "/v1/runs", token, params={"job": "asked"}).json()["runs"][0]["id"]
    assert ask(service, "POST", f"/v1/runs/{run_id}/window", token, {"reason": "why?"}).status_code == 202
    assert ask(service, "POST", f"/v1/runs/{run_id}/window", token, {"reason": "why?"}).status_code == 409
    batch = msgspec.msgpack.encode(Batch(beat=beat(facts, time.time(), ["h"])))
    told = [
        msgspec.msgpack.decode(ask(service, "POST", "/v1/reports", token, batch).content, type=Receipt)
        for _ in range(2)
    ]
    assert [order.reason for order in told[0].orders] == ["why?"]
    assert told[1].orders == ()


def test_a_window_is_told_until_the_job_says_that_it_heard_of_it(service: Service) -> None:
    filling = Filling(service.engine, service.store)
    facts = filling.run("asked", time.time() - 50, time.time(), ["h"])
    token = add_token(service.engine, 1, "person", ["read", "window", "report"])

    def told(*heard: int) -> list[int]:
        batch = msgspec.msgpack.encode(Batch(beat=beat(facts, time.time(), ["h"], orders=heard)))
        answer = ask(service, "POST", "/v1/reports", token, batch).content
        return [order.order for order in msgspec.msgpack.decode(answer, type=Receipt).orders]

    assert ask(service, "POST", "/v1/runs/1/window", token).status_code == 202
    (order,) = told()
    assert told() == [order], "the first answer may have been lost"
    assert told(order) == told() == []
    assert ask(service, "POST", "/v1/runs/1/window", token).status_code == 202
    assert ask(service, "POST", "/v1/runs/1/window", token).status_code == 409
    with writing(service.engine).begin() as connection:
        connection.execute(sa.text("update orders set asked_at = asked_at - 1000"))
    assert told() == [], "nobody waits for it any more"
    assert ask(service, "POST", "/v1/runs/1/window", token).status_code == 202


def test_a_version_that_is_not_understood_says_who_is_to_be_upgraded(service: Service) -> None:
    token = add_token(service.engine, 1, "jobs", ["report"])
    for protocol, word in ((0, "the job's Eroica"), (99, "the service")):
        answer = ask(service, "POST", "/v1/reports", token, msgspec.msgpack.encode({"protocol": protocol}))
        assert answer.status_code == 426
        assert f"upgrade {word}" in answer.json()["error"]
