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
    count = 0

    def read(length: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{label} {count}".encode()).digest(length)

    return read


def vectors() -> dict[str, Any]:
    """Return the vectors, bytes as hexadecimal text."""
    session, scalar, base = digest("vectors"), hash_scalar("vector", b"scalar"), base_times(3)
    secret = pads.pair_secret(base_times(42), session, "client-0", "trustee-0")
    pair = pads.Pair(secret)
    shared, same = proofs.prove_same_log(5, base, session, fixed_entropy("same"))
    totals = cells.map_scalars([0, 5, 119, 120], 130)
    identity, _ = generate("client-0", fixed_entropy("identity"))
    reveal = signed(Reveal(1, 7, "client-0", 12, (b"\0", b"\1")), identity, session)
    found = {
        "version": 1,
        "group": {"scalar": scalar_bytes(scalar), "point": base_times(scalar), "digest": digest("a", b"b")},
        "pads": {
            "shared": base_times(42),
            "session": session,
            "secret": secret,
            "cell_round_7": pair.cell(7, 40),
            "scalar_round_7": scalar_bytes(pair.scalar(7, 0)),
        },
        "shuffle": _shuffle(session),
        "proofs": {
            "secret": 5,
            "base": base,
            "schnorr": proofs.prove_log(5, base, base_times(15), session, fixed_entropy("log")),
            "shared": shared,
            "chaum_pedersen": same,
        },
        "cell": _cell(session),
        "map": {"slots": cells.map_slots(totals, 130), "scalars": [scalar_bytes(total) for total in totals]},
        "signatures": {"public": identity.public, "reveal": reveal.signature},
        "link": _link(),
    }
    return {name: _as_text(value) for name, value in found.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_text(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_as_text(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def _shuffle(session: bytes) -> dict[str, Any]:
    given = shuffle.Keys(base_times(1), tuple(base_times(k) for k in (2, 3, 4)))
    output, secret = shuffle.hop(given, fixed_entropy("hop"))
    context = shuffle.hop_context(session, 0, "trustee-0")
    return {
        "given": given.keys,
        "exponent": scalar_bytes(secret.exponent),
        "order": secret.order,
        "base": output.base,
        "keys": output.keys,
        "proof_rounds": 16,
        "proof": shuffle.prove_hop(given, output, secret, context, 16, fixed_entropy("proof")),
    }


def _cell(session: bytes) -> dict[str, Any]:
    go = Go(1, 0, Kind.DATA, 2, bytes(8))
    history = cells.next_history(cells.first_history(session), go)
    h, key = cells.history_scalar(history, Parameters()), hash_scalar("vector", b"key")
    payload, place = cells.pack(cells.Use.STREAMS, 0, b"hello", 40), cells.cell_place(session, 0)
    trap_key, trap_body = cells.trap(9, place, Parameters(cell_bytes=160))
    return {
        "first_history": cells.first_history(session),
        "history": history,
        "h": scalar_bytes(h),
        "key": scalar_bytes(key),
        "masked": cells.mask(h, [3], [key])[0],
        "payload": payload,
        "body": cells.seal(key, payload, place),
        "echo": cells.echo_check(payload),
        "trap_key": scalar_bytes(trap_key),
        "trap_body": trap_body,
    }


def _link() -> dict[str, Any]:
    relay, _ = generate(RELAY, fixed_entropy("relay"))
    member, _ = generate("client-0", fixed_entropy("identity"))
    roster = Roster({RELAY: relay.public, "client-0": member.public}, (), ("client-0",))
    dialer = Dialer(member, roster, fixed_entropy("dialer"))
    listener = Listener(relay, roster, dialer.hello, fixed_entropy("listener"))
    finish, channel = dialer.finish(listener.reply)
    return {"hello": dialer.hello, "reply": listener.reply, "finish": finish, "first_record": channel.seal(b"hello")}
