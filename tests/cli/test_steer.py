"""`eroica steer` starts a command on hosts, leaves a named one out, and starts it again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import httpx
import pytest

from eroica.cli import steer as steering
from eroica.cli import steered
from eroica.cli.steer import Fleet, Receiver, Steered
from eroica.errors import UsageError
from eroica.model.verdict import Order


def order(*hosts: str, action: str = "isolate-host", restart: bool = True) -> Order:
    return Order(
        job="j", order=1, action=action, workers=(), hosts=hosts, restart=restart, confidence=0.97,  # type: ignore[arg-type]
        cause="unknown", found_by="communication", window=1, summary="It hangs.", at="now",
    )  # fmt: skip


def test_a_spare_takes_the_place_of_the_host_that_is_left_out() -> None:
    fleet = Fleet(["a", "b", "c"], ["d"])
    assert fleet.obey(order("b"), 2) == ""
    assert (fleet.hosts, fleet.spares, fleet.left_out) == (["a", "d", "c"], [], ["b"])
    assert fleet.obey(order("c"), 2) == ""
    assert fleet.hosts == ["a", "d"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (order("x"), "no host that trains"),
        (order("a", "b"), "fewer"),
        (order("a", "b", action="avoid-path"), "c4p"),
        (order("b", restart=False), "only slower"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(given: Order, why: str) -> None:
    fleet = Fleet(["a", "b"], [])
    assert why in fleet.obey(given, 1)
    assert fleet.hosts == ["a", "b"]


def test_orders_come_in_by_a_secret_path_only() -> None:
    receiver = Receiver("127.0.0.1:0")
    try:
        body = json.dumps({name: getattr(order("b"), name) for name in Order.__struct_fields__})
        strange = receiver.url.rpartition("/")[0] + "/v1"
        assert httpx.post(strange, content=body, trust_env=False).status_code == 404
        assert httpx.post(receiver.url, content="{}", trust_env=False).status_code == 400
        assert receiver.orders.empty()
        assert httpx.post(receiver.url, content=body, trust_env=False).status_code == 204
        assert receiver.orders.get(timeout=1).hosts == ("b",)
    finally:
        receiver.close()


@pytest.mark.parametrize(
    "words", [b"", b"POST /", b"POST /guess HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", b"\x00" * 50]
)
def test_a_crowd_that_does_not_know_the_path_costs_no_thread_and_delays_no_order(words: bytes) -> None:
    receiver = Receiver("127.0.0.1:0")
    port, calls, before = int(receiver.url.split(":")[2].partition("/")[0]), [], threading.active_count()
    try:
        for _ in range(300):
            call = socket.socket()
            call.setblocking(False)
            call.connect_ex(("127.0.0.1", port))
            calls.append(call)
        for _ in range(5):
            for call in calls:
                with contextlib.suppress(OSError):
                    call.send(words)
            time.sleep(0.1)
            assert threading.active_count() <= before
        assert httpx.post(receiver.url, content="{}", trust_env=False, timeout=20).status_code == 400
    finally:
        for call in calls:
            call.close()
        receiver.close()


def test_a_place_where_nobody_can_listen_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Receiver("nowhere")


def test_hosts_reach_the_address_that_leads_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"a": "127.0.0.1", "b": "192.0.2.7", "here": "127.0.0.1"}
    monkeypatch.setattr(steering, "_own_address", ways.__getitem__)
    assert steering._doors("", []) == ("127.0.0.1:0", "127.0.0.1")
    assert steering._doors("", ["a", "b"]) == ("192.0.2.7:0", "192.0.2.7")
    assert steering._doors("0.0.0.0:5", ["a", "b"]) == ("0.0.0.0:5", "192.0.2.7")
    assert steering._doors("127.0.0.1:0", ["here"]) == ("127.0.0.1:0", "127.0.0.1")
    assert steering._doors("192.0.2.9:5", ["nowhere"]) == ("192.0.2.9:5", "192.0.2.9")


def test_a_host_to_which_no_way_is_known_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no way is known here to no-such-host"):
        steering._doors("", ["no-such-host.invalid"])


def test_the_address_of_orders_is_the_one_that_is_shown() -> None:
    receiver = Receiver("0.0.0.0:0", "127.0.0.1")
    try:
        assert receiver.url.startswith("http://127.0.0.1:")
        assert httpx.post(receiver.url, content="{}", trust_env=False).status_code == 400
    finally:
        receiver.close()


PROGRAM = """
import json, os, signal, subprocess, sys, time
place, attempt, rank, host, words = sys.argv[1:6]
with open(f"{place}/seen-{attempt}-{rank}", "w") as file:
    parents = [os.getppid(), int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])]
    lines = [open(f"/proc/{pid}/cmdline").read() for pid in (os.getpid(), *parents)]
    json.dump([os.environ["EROICA_ON_VERDICT_URL"], words, lines, os.environ.get("EROICA_STEER")], file)
if attempt == "1":
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    open(f"{place}/{attempt}-{rank}-{host}-{worker.pid}", "w").close()
open(f"{place}/{attempt}-{rank}-{host}-{os.getpid()}", "w").close()
if attempt == "1":
    if host == "b":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
"""
#: As ssh: one line is made of all words, for a shell that is no descendant of ours and is told no signal.
LIKE_SSH = r"""
host="$1" ended="$(mktemp -u)"; shift
test "$host" = deaf && exec </dev/null
mkfifo "$ended"
setsid -f sh -c "$*
echo \$? >$ended"
read status <"$ended"
rm "$ended"
exit "$status"
"""
ODD = "two words, 'quotes' and $HOME"


@pytest.mark.parametrize("reach", ["", "sh {ssh} {{host}}"], ids=["here", "like ssh"])
def test_the_job_is_ended_and_started_again_even_if_a_process_is_stopped(tmp_path: Path, reach: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "ssh.sh").write_text(LIKE_SSH)
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "{attempt}", "{node_rank}", "{host}", ODD]
    log, orders = tmp_path / "log.jsonl", Queue[Order]()
    reach = reach.format(ssh=tmp_path / "ssh.sh")
    run = Steered(Fleet(["a", "b"], ["c"]), words, reach, "{host}", 29600, "http://x/y", log)

    def started() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("[12]-*"))

    def give() -> None:
        end = time.monotonic() + 20
        while len(started()) < 4 and time.monotonic() < end:
            time.sleep(0.05)
        orders.put(order("a", restart=False))
        orders.put(order("b"))

    giving = threading.Thread(target=give)
    giving.start()
    assert run.follow(orders, 3, 1, 0.5) == 0
    giving.join()
    names = [name.rsplit("-", 1) for name in started()]
    assert [name for name, _ in names] == ["1-0-a", "1-0-a", "1-1-b", "1-1-b", "2-0-a", "2-1-c"]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["event"] for one in events] == ["start", "order", "order", "stopped", "start", "ended"]
    assert "only slower" in events[1]["refused"] and events[3]["given_up"] == []
    assert events[4]["hosts"] == ["a", "c"] and events[4]["left_out"] == ["b"]
    for name, pid in names:
        assert name.startswith("2") or not _is_running(int(pid))
    url, told, lines, told_by = json.loads((tmp_path / "seen-1-0").read_text())
    assert (url, told, told_by) == ("http://x/y", ODD, None)
    assert not any(url in line for line in lines)


def test_a_command_ends_with_its_steering(tmp_path: Path) -> None:
    (tmp_path / "ssh.sh").write_text(LIKE_SSH)
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(60)"
    options = ["--hosts", "a", "--reach", f"sh {tmp_path / 'ssh.sh'} {{host}}", "--address", "127.0.0.1"]
    words = [sys.executable, "-m", "eroica", "steer", *options, "--log", str(tmp_path / "log"), "--"]
    process = subprocess.Popen([*words, sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        assert _soon(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("."))
    finally:
        process.kill()
        process.wait()
    assert _soon(lambda: not _is_running(int((tmp_path / "pid").read_text()[:-1])))


def _soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_status_is_the_first_one_that_is_not_0(tmp_path: Path, command: str, status: int) -> None:
    run = Steered(Fleet(["a", "b"]), ["sh", "-c", command], "", "{host}", 29600, "u", tmp_path / "log")
    assert run.follow(Queue[Order](), 1, 1, 0.5) == status


def test_a_command_that_is_not_there_is_told_as_a_shell_does(tmp_path: Path) -> None:
    run = Steered(Fleet(["a"]), ["/no/such/thing"], "", "{host}", 29600, "u", tmp_path / "log")
    assert run.follow(Queue[Order](), 1, 1, 0.5) == 127


def test_a_way_to_a_host_that_passes_no_input_on_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "ssh.sh").write_text(LIKE_SSH)
    run = Steered(Fleet(["deaf"]), ["true"], f"sh {tmp_path / 'ssh.sh'} {{host}}", "x", 29600, "u", tmp_path / "log")
    with pytest.raises(UsageError, match="no standard input"):
        run.follow(Queue[Order](), 1, 1, 0.5)


def test_a_host_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_REACH_S", 0.3)
    (tmp_path / "deaf.sh").write_text("exec sleep 60")
    run = Steered(Fleet(["a"]), ["true"], f"sh {tmp_path / 'deaf.sh'}", "{host}", 29600, "u", tmp_path / "log")
    run._start()
    run._stop()
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["given_up"] == ["a"]
    assert not _is_running(run._processes[0].pid)


#: Ends a command, below which one process lives on for good: with a number above the highest that Linux gives.
IMMORTAL = """
import sys
from eroica.cli import steered
steered._KILL_S, steered._below = 0.2, lambda: [4194305] * (sys.argv[1] == "left")
sys.exit(steered.main())
"""


@pytest.mark.parametrize(("case", "status"), [("none", 143), ("left", steered.LEFT)])
def test_a_process_that_cannot_be_killed_is_told_by_the_status(case: str, status: int) -> None:
    told = json.dumps({"words": ["sleep", "60"], "variables": {}, "stop_s": 5.0})
    done = subprocess.run(
        [sys.executable, "-c", IMMORTAL, case], env={**os.environ, "EROICA_STEER": told},
        input=b"", capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert (b"4194305" in done.stderr) == (case == "left")


@pytest.mark.parametrize("status", [steered.DONE, steered.LEFT])
def test_a_command_that_ends_with_a_status_of_ours_has_failed(tmp_path: Path, status: int) -> None:
    run = Steered(Fleet(["a"]), ["sh", "-c", f"exit {status}"], "", "{host}", 29600, "u", tmp_path / "log")
    assert run.follow(Queue[Order](), 1, 1, 0.5) == 1


#: A host whose shell ends with a status of its own once it is hung up.
LEAVES = """
cat >/dev/null
test "$1" = {} && exit 80
exit 143
"""


@pytest.mark.parametrize(("leaves", "starts"), [("a", 1), ("b", 2)], ids=["trains again", "is left out"])
def test_no_job_is_started_on_top_of_processes_that_do_not_end(tmp_path: Path, leaves: str, starts: int) -> None:
    (tmp_path / "leaves.sh").write_text(LEAVES.format(leaves))
    log, orders = tmp_path / "log", Queue[Order]()
    reach = f"sh {tmp_path / 'leaves.sh'} {{host}}"
    run = Steered(Fleet(["a", "b"], ["c"]), ["true"], reach, "{host}", 29600, "u", log)
    orders.put(order("b"))
    if starts == 2:
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert run.follow(orders, 3, 1, 5.0) == (1 if starts == 1 else 143)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["event"] for one in events].count("start") == starts
    assert next(one for one in events if one["event"] == "stopped")["left"] == [leaves]
    if starts == 1:
        assert (events[-1]["event"], events[-1]["hosts"]) == ("not started again", ["a"])


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hosts", ","), "--hosts names no host"),
        (("--hosts", "a", "--reach", "no-such-command {host}"), "no command 'no-such-command'"),
        (("--hosts", "a", "--reach", "env", "--address", "{host}.invalid"), "no way is known here to a.invalid"),
        (("--hosts", "a", "--listen", "nowhere"), "HOST:PORT"),
    ],
)
def test_the_command_line_says_what_it_wants(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eroica", "steer", *options, "--", "true"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr


def test_what_the_command_line_names_is_filled_in(tmp_path: Path) -> None:
    facts = ["{nnodes}", "{node_rank}", "{host}", "{master_addr}", "{master_port}", "{attempt}", "{other}"]
    options = ["--hosts", "a,b", "--address", "{host}.net", "--port", "31000", "--log", str(tmp_path / "log")]
    words = [sys.executable, "-m", "eroica", "steer", *options, "--", "sh", "-c", 'echo "$EROICA_HOST $*"', "sh"]
    done = subprocess.run([*words, *facts], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        f"{host} 2 {number} {host} a.net 31000 1 {{other}}" for number, host in enumerate("ab")
    ]


def test_options_of_run_reach_the_collector_as_settings(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        code = "import os; print(os.environ.get('EROICA_ACT_FROM'), os.environ.get('EROICA_ON_VERDICT'))"
        words = [sys.executable, "-m", "eroica", "run", "--out", str(tmp_path / "out"), *options]
        return subprocess.run([*words, "--", sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run("--quiet", "--act-from", "0.9", "--on-verdict", "./take it").stdout == "0.9 ./take it\n"
    wrong = run("--act-from", "1.5")
    assert wrong.returncode == 0 and "act_from" in wrong.stderr and "unwatched" in wrong.stderr
