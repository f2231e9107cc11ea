"""Tests of whole networks on a virtual clock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Talk, quick, running
from prifi import pads
from prifi.client import Client
from prifi.errors import BadMessage
from prifi.identity import RELAY
from prifi.messages import Cell, Go, Kind, Message, Start, Transcript
from prifi.outputs import Send
from prifi.simulate import Conditions, Simulation


@pytest.mark.parametrize("protection", ["both", "equivocation", "none"])
def test_bytes_come_back_equal(protection: str) -> None:
    simulation = running(parameters=quick(protection=protection))
    talks = [Talk(simulation, index, bytes([index]) * 3000) for index in range(3)]
    assert simulation.run(60, lambda: all(talk.ended for talk in talks))
    assert [bytes(talk.got) for talk in talks] == [bytes([index]) * 3000 for index in range(3)]
    assert simulation.relay.status.failed == 0
    simulation.run(3)
    assert len(simulation.relay.streams) == 0


def test_a_simulation_repeats_for_its_seed() -> None:
    def notes(seed: int) -> list[Any]:
        simulation = running(seed=seed, conditions=Conditions(loss=0.1))
        Talk(simulation, 0, b"x" * 500)
        simulation.run(2)
        return [simulation.sent_bytes, simulation.notes, simulation.relay.status]

    assert notes(1) == notes(1)
    assert notes(1) != notes(2)


def test_a_sleeping_network_wakes_by_the_relays_clock_only() -> None:
    simulation = running()
    simulation.run(3)
    kinds: list[tuple[float, Kind]] = []

    def watch(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, Go) and to == "client-0":
            kinds.append((simulation.now, message.kind))
        return message

    simulation.tamper = watch
    simulation.run(2)
    quiet = len(kinds)
    assert {kind for _, kind in kinds} == {Kind.MAP}
    assert 15 <= quiet <= 21  # one reservation round in 0.1 s
    Talk(simulation, 1, b"hello")
    simulation.run(0.35)
    assert Kind.DATA in {kind for _, kind in kinds}
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(kinds[: quiet + 1])]
    assert max(gaps) - min(gaps) < 0.02  # the request did not change the relay's clock


def test_every_cell_is_as_long_and_as_late_whether_a_client_has_data_or_not() -> None:
    simulation = running(parameters=quick(window=1))
    asked: dict[tuple[str, int], float] = {}
    seen: dict[str, set[tuple[int, float]]] = {}

    def watch(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, Go):
            asked[to, message.number] = simulation.now
        if isinstance(message, Cell):
            seen.setdefault(sender, set()).add((len(message.body), len(message.signature)))
        return message

    simulation.tamper = watch
    Talk(simulation, 0, b"x" * 2000)
    simulation.run(2)
    assert len({frozenset(sizes) for sizes in seen.values()}) == 1


def record_pads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, str, int, int]]:
    """Collect (key, purpose, round, index) of every pad that is made for sending, by each side apart."""
    used: list[tuple[bytes, str, int, int]] = []
    take = pads.PadBook.take

    def taking(self: Any, number: int, body: bool = True) -> Any:
        result = take(self, number, body)
        used.extend((pair._cell_key, f"{id(self)}", number, 0) for pair in self._pairs.values())
        return result

    monkeypatch.setattr(pads.PadBook, "take", taking)
    return used


@given(st.lists(st.tuples(st.sampled_from(["crash", "restart", "kill relay"]), st.integers(0, 4)), max_size=6))
@settings(max_examples=8, deadline=None)
def test_pads_never_repeat_over_restarts_churn_windows_and_epochs(events: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        used = record_pads(monkeypatch)
        simulation = running()
        for event, index in events:
            name = f"client-{index}"
            if event == "crash":
                simulation.crash(name)
            elif event == "restart":
                simulation.crash(name)
                simulation.run(0.3)
                simulation.restart(name)
            else:  # SIGKILL, then the same key files; every role begins anew
                simulation.crash(RELAY)
                simulation.run(0.1)
                simulation.restart(RELAY)
                for one in (*simulation.roster.trustees, *simulation.roster.clients):
                    simulation.restart(one)
            simulation.run(2)
        assert len(used) == len(set(used))
        keys = {key for key, *_ in used}
        books: dict[bytes, set[str]] = {}
        for key, book, _, _ in used:
            books.setdefault(key, set()).add(book)
        assert all(len(books[key]) <= 2 for key in keys)  # a client's book and a trustee's


def test_a_restored_state_directory_makes_no_pad_again() -> None:
    """A role keeps its long-term key only, so an old copy of its files holds no counter that could go back."""
    seen = set()
    for seed in (1, 1):
        simulation = running(seed=seed)
        if seen:
            simulation.restart("client-0")
            simulation.run(0.5)
            simulation.run(5, simulation.running(5))
        rounds = simulation.relay.rounds
        assert rounds is not None
        seen.add(rounds.session.id)
    assert len(seen) == 2


def test_members_join_leave_and_crash() -> None:
    simulation = running(6)
    talk = Talk(simulation, 0, b"y" * 4000, forever=True)
    for step, index in enumerate((1, 2, 3)):
        simulation.crash(f"client-{index}")
        assert simulation.run(5, simulation.running(5 - step)), simulation.notes[-5:]
    for step, index in enumerate((1, 2, 3)):
        simulation.restart(f"client-{index}")
        assert simulation.run(5, simulation.running(4 + step)), simulation.notes[-5:]
    before = len(talk.got)
    simulation.run(3)
    assert len(talk.got) > before  # the stream has survived six epochs
    assert not talk.ended


def test_a_join_does_not_stop_the_service() -> None:
    simulation = running(5)
    simulation.crash("client-4")
    simulation.run(5, simulation.running(4))
    Talk(simulation, 0, b"x" * 500, forever=True)
    simulation.run(1)
    heard: list[float] = []

    def watch(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, Go) and to == "client-0":
            heard.append(simulation.now)
        return message

    simulation.tamper = watch
    simulation.restart("client-4")
    assert simulation.run(5, simulation.running(5))
    assert max(b - a for a, b in itertools.pairwise(heard)) < 0.1  # the old epoch went on during the set-up


def test_too_few_clients_get_no_epoch_and_refuse_one() -> None:
    simulation = running(3, parameters=quick(minimum_set=3))
    simulation.crash("client-0")
    simulation.run(5)
    assert simulation.relay.rounds is None
    assert simulation.client(1).status.epoch == 0


@pytest.mark.parametrize("name", ["client-1", "trustee-1", RELAY])
def test_a_silent_member_is_noticed_within_the_time_out(name: str) -> None:
    simulation = running(4)
    began = simulation.now
    simulation.silence(name)
    limit = 3 * simulation.parameters.absent_s
    if name == RELAY:
        silent = "the relay is silent"
        assert simulation.run(
            limit, lambda: all(simulation.client(index).status.problem == silent for index in range(4))
        )
        assert simulation.run(
            limit, lambda: any(note.role == "trustee-0" and note.text == silent for note in simulation.notes)
        )
        return
    told = simulation.run(limit, lambda: any(note.party == name and note.kind == "absent" for note in simulation.notes))
    assert told and simulation.now - began <= limit
    if name.startswith("client"):
        assert simulation.run(limit, simulation.running(3))
    else:
        simulation.run(1)
        assert simulation.relay.rounds is None  # one trustee less is no anytrust


def test_a_relay_that_leaves_a_client_out_is_refused() -> None:
    simulation = Simulation(4, 2, quick())
    simulation.tamper = lambda sender, to, message: (
        _without_first(message) if isinstance(message, Start) and to == "client-0" else message
    )
    simulation.run(2)
    assert simulation.client(0).status.epoch == 0
    assert "fresh keys" in simulation.client(0).status.problem or "replaced" in simulation.client(0).status.problem


def _without_first(start: Start) -> Start:
    import msgspec

    return msgspec.structs.replace(start, clients=start.clients[1:])


def test_a_client_with_other_settings_is_told_and_stops_nobody() -> None:
    def other(identity: Any, roster: Any, parameters: Any, entropy: Any) -> Client:
        import msgspec

        return Client(identity, roster, msgspec.structs.replace(parameters, window=4), entropy)

    simulation = Simulation(5, 2, quick(), others={"client-4": other})
    assert simulation.run(2, simulation.running(4))  # the set-up does not wait for it
    assert "other parameters" in simulation.client(4).status.problem
    assert any(note.role == "client-4" and "other parameters" in note.text for note in simulation.notes)
    assert any(note.role == RELAY and note.kind == "refused" and note.party == "client-4" for note in simulation.notes)


def test_a_missing_trustee_signature_is_refused() -> None:
    import msgspec

    simulation = Simulation(4, 2, quick())

    def forge(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, Start):
            words = (message.transcripts[0], message.transcripts[0])
            return msgspec.structs.replace(message, transcripts=words)
        return message

    simulation.tamper = forge
    simulation.run(2)
    assert all("every trustee" in simulation.client(index).status.problem for index in range(4))


def test_duplicated_late_and_foreign_messages_change_nothing() -> None:
    simulation = running(4)
    kept: list[tuple[str, str, Message]] = []
    simulation.tamper = lambda sender, to, message: (kept.append((sender, to, message)), message)[1]
    talk = Talk(simulation, 0, b"z" * 2000)
    simulation.run(0.2)
    for sender, to, message in kept[:400]:
        simulation._do(to, lambda role, s=sender, m=message: role.handle(s, m, simulation.now))  # type: ignore[misc]
    client = simulation.client(0)
    outputs = client.handle("client-3", kept[0][2], simulation.now)
    assert not any(isinstance(one, Send) for one in outputs)
    assert simulation.run(30, lambda: bool(talk.ended))
    assert bytes(talk.got) == b"z" * 2000


def test_a_client_answers_no_round_twice_and_no_gap() -> None:
    simulation = running(4)
    client: Client = simulation.client(0)
    epoch = client._running
    assert epoch is not None
    number = epoch.next
    go = Go(epoch.session.epoch, number + 1, Kind.DATA, 0, bytes(300))
    outputs = client.handle(RELAY, go, simulation.now)
    assert not any(isinstance(one, Send) for one in outputs)
    assert client.status.epoch == 0  # closed: a broadcast is missing


def test_a_transcript_of_another_epoch_is_refused() -> None:
    simulation = Simulation(3, 2, quick())
    words: list[Transcript] = []

    def keep(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, Transcript):
            words.append(message)
            return words[0] if message.epoch != words[0].epoch and message.name == words[0].name else message
        return message

    simulation.tamper = keep
    simulation.run(2, simulation.running(3))
    first = simulation.relay.status.epochs
    simulation.crash("client-0")
    simulation.run(1)
    simulation.restart("client-0")
    simulation.run(3)
    assert first == 1 and simulation.relay.status.epochs == 1


def test_messages_of_another_version_are_refused() -> None:
    from prifi.messages import decode

    for data in (b"", b"\xc1", b"\x93\x63\x01\x02", b"\x81\xa1a\x01", b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(BadMessage):
            decode(data)


def test_no_message_shows_its_content_in_a_log() -> None:
    simulation = running(4)
    shown: list[tuple[str, bytes]] = []

    def watch(sender: str, to: str, message: Message) -> Message:
        from prifi.messages import encode

        shown.append((f"{message!r} {message} {[message]!r}", encode(message)))
        return message

    simulation.tamper = watch
    Talk(simulation, 0, b"very secret")
    simulation.crash("client-3")
    simulation.run(3)
    assert len({text.split("(")[0] for text, _ in shown}) > 8
    for text, data in shown:
        assert len(text) < 400 and "secret" not in text and "x" + data.hex()[:16] not in text and "b'" not in text
    epoch = simulation.client(0)._running
    assert epoch is not None
    for secret in (epoch.pads, simulation.client(0).identity, *epoch.slots.values()):
        assert not isinstance(secret, int) or str(secret) not in repr(epoch.pads)
