"""Test vectors of every cryptographic step, made from fixed seeds. `tests/vectors.json` keeps them stable."""

from __future__ import annotations

import hashlib
from typing import Any

from prifi import cells, pads, proofs, shuffle
from prifi.group import Entropy, base_times, digest, hash_scalar, scalar_bytes
from prifi.identity import RELAY, Roster, generate
from prifi.links import Dialer, Listener
from prifi.messages import Go, Kind, Reveal, signed
from prifi.parameters import Parameters


def fixed_entropy(label: str) -> Entropy:
    """Return a reproducible source of bytes."""
    state = {"count": 0}

    def read(length: int) -> bytes:
        state["count"] += 1
        return hashlib.shake_256(f"{label} {state['count']}".encode()).digest(length)

    return read


def vectors() -> dict[str, Any]:
    """Return the vectors, bytes as hexadecimal text."""
    session = digest("vectors")
    return {
        "version": 1,
        "group": _group(),
        "pads": _pads(session),
        "shuffle": _shuffle(session),
        "proofs": _proofs(session),
        "cell": _cell(session),
        "map": _map(),
        "signatures": _signatures(session),
        "link": _link(),
    }


def _group() -> dict[str, Any]:
    scalar = hash_scalar("vector", b"scalar")
    return {"scalar": scalar_bytes(scalar).hex(), "point": base_times(scalar).hex(), "digest": digest("a", b"b").hex()}


def _pads(session: bytes) -> dict[str, Any]:
    secret = pads.pair_secret(base_times(42), session, "client-0", "trustee-0")
    pair = pads.Pair(secret)
    return {
        "shared": base_times(42).hex(),
        "session": session.hex(),
        "secret": secret.hex(),
        "cell_round_7": pair.cell(7, 40).hex(),
        "scalar_round_7": scalar_bytes(pair.scalar(7, 0)).hex(),
    }


def _shuffle(session: bytes) -> dict[str, Any]:
    given = shuffle.Keys(base_times(1), tuple(base_times(k) for k in (2, 3, 4)))
    output, secret = shuffle.hop(given, fixed_entropy("hop"))
    context = shuffle.hop_context(session, 0, "trustee-0")
    proof = shuffle.prove_hop(given, output, secret, context, 16, fixed_entropy("proof"))
    shuffle.check_hop(given, output, proof, context, 16)
    return {
        "given": [key.hex() for key in given.keys],
        "exponent": scalar_bytes(secret.exponent).hex(),
        "order": list(secret.order),
        "base": output.base.hex(),
        "keys": [key.hex() for key in output.keys],
        "proof_rounds": 16,
        "proof": proof.hex(),
    }


def _proofs(session: bytes) -> dict[str, Any]:
    log = proofs.prove_log(5, base_times(3), base_times(15), session, fixed_entropy("log"))
    shared, same = proofs.prove_same_log(5, base_times(3), session, fixed_entropy("same"))
    proofs.check_log(log, base_times(3), base_times(15), session)
    proofs.check_same_log(same, base_times(5), base_times(3), shared, session)
    return {
        "secret": 5,
        "base": base_times(3).hex(),
        "schnorr": log.hex(),
        "shared": shared.hex(),
        "chaum_pedersen": same.hex(),
    }


def _cell(session: bytes) -> dict[str, Any]:
    parameters = Parameters()
    go = Go(1, 0, Kind.DATA, 2, bytes(8))
    history = cells.next_history(cells.first_history(session), go)
    h = cells.history_scalar(history, parameters)
    key = hash_scalar("vector", b"key")
    payload = cells.pack(cells.Use.STREAMS, 0, b"hello", 40)
    place = cells.cell_place(session, 0)
    trap_key, trap_body = cells.trap(9, place, Parameters(cell_bytes=160))
    return {
        "first_history": cells.first_history(session).hex(),
        "history": history.hex(),
        "h": scalar_bytes(h).hex(),
        "key": scalar_bytes(key).hex(),
        "masked": cells.mask(h, [3], [key])[0].hex(),
        "payload": payload.hex(),
        "body": cells.seal(key, payload, place).hex(),
        "echo": cells.echo_check(payload).hex(),
        "trap_key": scalar_bytes(trap_key).hex(),
        "trap_body": trap_body.hex(),
    }


def _map() -> dict[str, Any]:
    totals = cells.map_scalars([0, 5, 119, 120], 130)
    return {"slots": cells.map_slots(totals, 130), "scalars": [scalar_bytes(total).hex() for total in totals]}


def _signatures(session: bytes) -> dict[str, Any]:
    identity, _ = generate("client-0", fixed_entropy("identity"))
    reveal = signed(Reveal(1, 7, "client-0", 12, (b"\0", b"\1")), identity, session)
    return {"public": identity.public.hex(), "reveal": reveal.signature.hex()}


def _link() -> dict[str, Any]:
    relay, _ = generate(RELAY, fixed_entropy("relay"))
    member, _ = generate("client-0", fixed_entropy("identity"))
    roster = Roster({RELAY: relay.public, "client-0": member.public}, (), ("client-0",))
    dialer = Dialer(member, roster, fixed_entropy("dialer"))
    listener = Listener(relay, roster, dialer.hello, fixed_entropy("listener"))
    finish, channel = dialer.finish(listener.reply)
    listener.finish(finish)
    parts = {"hello": dialer.hello, "reply": listener.reply, "finish": finish, "first_record": channel.seal(b"hello")}
    return {name: part.hex() for name, part in parts.items()}
