"""What a member makes of the controller's words when they come late, twice, or not at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from trainmover import cli, supervisor, wire
from trainmover.agent import Agent
from trainmover.context import Context
from trainmover.controller import Controller
from trainmover.errors import LinkTimeoutError, MoveError
from trainmover.group import Work
from trainmover.job import Job
from trainmover.state import Snapshot
from trainmover.state_machine import Persist, Timeouts

NOWHERE = "127.0.0.1:1"


class Group:
    """One whose connections to joiners take until they are let."""

    label, idle, members = "0", True, (0, 1)

    def __init__(self) -> None:
        self.let = threading.Event()
        self.abandoned: list[int] = []

    def prepare(self, _joiners_for: object, _generation: int, _deadline: float) -> None:
        assert self.let.wait(10)

    def abandon(self, generation: int) -> None:
        self.abandoned.append(generation)


def member(step: int = 0) -> tuple[Agent, Job, Group]:
    """Rank 0, trained so far; its control connection never comes about."""
    owner, group = Context("secret", "127.0.0.1"), Group()
    owner.rank, owner.groups = 0, {"0": group}  # type: ignore[dict-item]
    agent = Agent(NOWHERE, {"key": "m0"}, owner)
    job = Job(None, owner, agent, 10, shadow=False)  # type: ignore[arg-type]
    job.step, agent.passed = step, step - 1
    return agent, job, group


def hold(generation: int, at: int, **more: Any) -> dict[str, Any]:
    return {"command": "hold", "generation": generation, "at": at, "ranks": [1], "within_s": 30.0, "copies": False,
            "stable": -1, **more}  # fmt: skip


def decision(generation: int, do: str = "abort") -> dict[str, Any]:
    return {"command": do, "generation": generation, "at": 110, "stable": -1, "joiners": {}}


def test_a_move_called_off_on_the_way_to_its_boundary_is_no_answer_to_the_next_one() -> None:
    """Else this member, which has promised to stop, goes on while all others stand still."""
    agent, job, group = member(100)
    agent.prepared = 1
    agent._heard(hold(1, 105), b"")
    agent._heard(decision(1), b"")
    assert group.abandoned == [1]
    agent.prepared = 2
    agent._heard(hold(2, 110), b"")
    job.step = 110
    stands = threading.Thread(target=job._hold, args=(agent,), daemon=True)
    stands.start()
    stands.join(0.5)
    assert stands.is_alive() and agent.hold is not None
    agent._heard(decision(2), b"")
    stands.join(10)
    assert not stands.is_alive() and agent.hold is None


def test_a_joiner_answers_a_move_of_an_earlier_iteration_than_one_that_was_called_off() -> None:
    """All have gone back in between. Else everybody would stand still for `hold_s`, move after move."""
    agent, job, _ = member()
    agent.hold = hold(2, 95)
    assert job._called(agent, (1, 100))
    assert not job._called(agent, (2, 95))


def test_a_joiner_with_another_boundarys_state_does_not_join() -> None:
    agent, job, _ = member()
    agent.hold = hold(2, 110)
    with pytest.raises(MoveError, match="the state of iteration 110 has not come"):
        job._taken_over(agent, decision(2, "switch"), Snapshot(107, b""))


def test_the_word_that_a_move_is_called_off_leaves_a_joiner_its_next_one() -> None:
    agent, job, _ = member()
    agent.hold, agent.prepared = hold(3, 110), 3
    assert not job._taken_over(agent, decision(2), None)
    assert agent.hold == hold(3, 110) and agent.prepared == 3


def test_connections_that_are_opened_after_the_move_was_called_off_are_closed() -> None:
    """Else the member would take the next move's end for that of this one, and stand still."""
    agent, _, group = member()
    order = {"command": "prepare", "generation": 1, "joiners": {"1": ["127.0.0.1", 1]}}
    thread = threading.Thread(target=agent._prepare, args=(order,))
    thread.start()
    agent._heard(decision(1), b"")
    agent.prepared = 2  # the next move was faster
    group.let.set()
    thread.join(10)
    assert agent.prepared == 2 and group.abandoned == [1, 1]


def test_an_order_to_go_back_is_void_when_the_recovery_begins_anew() -> None:
    agent, _, _ = member()
    agent._heard({"command": "recover", "generation": 3}, b"")
    agent._heard({"command": "interrupt", "generation": 4, "within_s": 360.0}, b"")
    assert agent.recover is None and agent.gather_s == 360.0


def test_who_comes_to_the_end_before_a_boundary_waits_and_does_not_ask_again_and_again() -> None:
    agent, job, _ = member(100)
    said: list[str] = []
    agent.report = lambda what, *_, **__: said.append(what)  # type: ignore[method-assign]
    agent._heard(hold(1, 103), b"")
    ends = threading.Thread(target=lambda: list(job.steps(100)), daemon=True)
    ends.start()
    ends.join(0.3)
    assert ends.is_alive() and said == ["promised", "done"]
    agent._heard({"command": "finished", "status": 0, "reason": "the job is complete"}, b"")
    ends.join(10)
    assert not ends.is_alive()


def test_a_member_whose_rank_was_given_away_hears_it_with_the_first_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = Agent(f"127.0.0.1:{server.getsockname()[1]}", {"key": "m0"}, Context("secret", "127.0.0.1"))
        threading.Thread(target=agent.start, daemon=True).start()
        channel = wire.Channel(server.accept()[0])
        channel.receive()
        channel.send({"command": "leave", "reason": "rank 2 is held by another process"})
        agent.wait(lambda: agent.leave is not None, 10, "its end")
        channel.close()


def test_a_connection_of_a_process_with_itself_is_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP can connect a socket to itself; that would keep a restarted controller from its port."""
    own = socket.socket()
    own.bind(("127.0.0.1", 0))
    own.connect(own.getsockname())
    monkeypatch.setattr(socket, "create_connection", lambda *_args, **_more: own)
    with pytest.raises(ConnectionRefusedError, match="no process listens"):
        wire.call(NOWHERE, {"kind": "operator"}, 1.0)


def test_a_controller_continues_from_the_decision_that_was_written_last(tmp_path: Path) -> None:
    for generation in (1, 2):
        Controller(tmp_path, "secret", Timeouts())._do([Persist({"what": "switch", "generation": generation})])
    (tmp_path / "decision.part").write_text('{"what": "swi')  # the next one was cut off
    assert Controller(tmp_path, "secret", Timeouts())._machine.generation == 2


def test_a_controller_that_cannot_write_a_decision_down_ends_before_it_tells_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    controller = Controller(tmp_path, "secret", Timeouts())
    (tmp_path / "decision.json").mkdir()
    with pytest.raises(Ended):
        controller._do([Persist({"what": "switch", "generation": 2})])
    assert "a decision cannot be written down" in (tmp_path / "controller.log").read_text()


def test_a_controller_that_does_not_start_at_once_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port may be taken for a moment; the job goes on meanwhile."""
    controller, tries = cli.ControllerProcess(tmp_path, "127.0.0.1", 0, {}), []
    controller._child = SimpleNamespace(poll=lambda: 1)  # type: ignore[assignment]

    def start() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise click.ClickException("the controller did not start")
        return NOWHERE

    monkeypatch.setattr(controller, "_start", start)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    controller.watch()
    controller.watch()
    assert len(tries) == 2


def test_a_process_whose_seat_ended_while_it_was_starting_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen once: both workers of a job that was killed in its first seconds trained to their end."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setenv("TRAINMOVER_MEMBER", "m0")
    monkeypatch.setenv("TRAINMOVER_SUPERVISOR", str(ended.pid))
    monkeypatch.setattr("trainmover.agent.ctypes.CDLL", lambda _name: SimpleNamespace(prctl=lambda *_: 0))
    agent, _, _ = member()
    with pytest.raises(MoveError, match="the supervisor that started this process has ended"):
        agent.start()


def test_one_folder_is_for_one_job_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would throw the first one's decisions away."""
    monkeypatch.setattr(cli.ControllerProcess, "_start", lambda _self: NOWHERE)
    with cli.ControllerProcess(tmp_path, "127.0.0.1", 0, {}):
        (tmp_path / "decision.json").write_text("{}")
        with pytest.raises(click.ClickException, match="a job is running in"):
            cli.ControllerProcess(tmp_path, "127.0.0.1", 0, {}).__enter__()
        assert (tmp_path / "decision.json").exists()
    with cli.ControllerProcess(tmp_path, "127.0.0.1", 0, {}):
        assert not (tmp_path / "decision.json").exists()


def test_a_stopped_controller_does_not_keep_the_command_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.ControllerProcess, "_start", lambda _self: NOWHERE)
    monkeypatch.setattr(cli, "END_S", 0.2)
    with cli.ControllerProcess(tmp_path, "127.0.0.1", 0, {}) as controller:
        controller._child = subprocess.Popen(["sleep", "60"])
        controller._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, controller._child.pid, os.WSTOPPED | os.WNOWAIT)
    assert controller._child.returncode == -signal.SIGKILL


def test_a_worker_that_has_ended_well_is_no_failure_when_no_controller_is_there_to_say_so() -> None:
    assert [supervisor._status(status) for status in (0, 3, -9)] == [0, 3, 137]


def test_a_control_connection_ends_soon_after_the_other_machine_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def welcome() -> None:
            channel = wire.Channel(server.accept()[0])
            channel.receive()
            channel.send({"command": "welcome"})

        thread = threading.Thread(target=welcome)
        thread.start()
        channel, _ = wire.call(f"127.0.0.1:{server.getsockname()[1]}", {"kind": "supervisor"})
        thread.join(10)
        assert channel._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000  # type: ignore[union-attr]
        assert channel._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1  # type: ignore[union-attr]
        channel.close()


def test_a_wait_for_a_collective_that_has_not_ended_in_time_is_an_error() -> None:
    """Else the outputs would be taken for the collective's."""
    work = Work("all_reduce", [])
    with pytest.raises(LinkTimeoutError, match=r"all_reduce has not ended within 0\.01 s"):
        work.wait(timedelta(seconds=0.01))
    work.finish()
    assert work.wait(timedelta(seconds=0.01))
