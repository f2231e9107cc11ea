"""The one config file of a network (TOML), the same for all members, and `prifi keys` that writes it with all keys."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from prifi.errors import BadConfig
from prifi.identity import RELAY, Roster, generate, write_key
from prifi.parameters import INSECURE, Parameters

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Key = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Name = Annotated[str, Meta(max_length=64)]


class _Network(Struct, frozen=True, forbid_unknown_fields=True):
    relay: str
    transport: Literal["tcp", "udp"] = "tcp"


class _Exit(Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[str, ...] = ()


class _Members(Struct, frozen=True, forbid_unknown_fields=True):
    relay: _Key
    trustees: Annotated[dict[_Name, _Key], Meta(min_length=1)]
    clients: dict[_Name, _Key]


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    network: _Network
    roster: _Members
    parameters: Parameters = Parameters()
    exit: _Exit = _Exit()


@dataclass(frozen=True, slots=True)
class Config:
    """A network's settings. `allow` has the networks that the exit may use though they are not public."""

    relay: tuple[str, int]
    udp: bool
    parameters: Parameters
    roster: Roster
    allow: tuple[Network, ...] = ()


def parse_networks(texts: Collection[str]) -> tuple[Network, ...]:
    """Return networks of the operator's texts.

    Raises:
        BadConfig: A text is no network.
    """
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise BadConfig(f"allow: {error}; write addresses as in 192.0.2.0/24") from error


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT".

    Raises:
        BadConfig: The text is no address.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise BadConfig(f"{text!r} is no address; write HOST:PORT")
    return host.strip("[]"), int(port)


def read_config(path: Path) -> Config:
    """Read a config file.

    Raises:
        BadConfig: It is missing, no TOML, or has a setting that cannot be used.
    """
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise BadConfig(f"cannot read {path}; make a network with `prifi keys`") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}; docs/commands.md lists the settings") from error
    members = file.roster
    keys = {RELAY: members.relay, **members.trustees, **members.clients}
    if len(set(keys.values())) != 1 + len(members.trustees) + len(members.clients):
        raise BadConfig(f"{path}: [roster] has a key twice, or a name twice")
    return Config(
        relay=parse_address(file.network.relay),
        udp=file.network.transport == "udp",
        parameters=file.parameters.checked(),
        roster=Roster(
            {name: bytes.fromhex(key) for name, key in keys.items()}, tuple(members.trustees), tuple(members.clients)
        ),
        allow=parse_networks(file.exit.allow),
    )


def write_network(
    folder: Path,
    clients: int,
    trustees: int,
    relay: str,
    udp: bool = False,
    allow: tuple[str, ...] = (),
    **parameters: Any,
) -> Path:
    """Make keys for a network, write `prifi.toml` and one key file a member; return the config's path.

    Raises:
        BadConfig: The folder holds a network, or a setting cannot be used.
    """
    Parameters(**parameters).checked()
    parse_address(relay)
    parse_networks(allow)
    path = folder / "prifi.toml"
    if path.exists():
        raise BadConfig(f"{path} exists; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"cannot make the folder {folder}: {error.strerror}") from error
    publics = {}
    for name in [RELAY, *(f"trustee-{j}" for j in range(trustees)), *(f"client-{i}" for i in range(clients))]:
        identity, seed = generate(name)
        write_key(folder / f"{name}.key", name, seed)
        publics[name] = identity.public.hex()
    sections: dict[str, dict[str, Any]] = {
        "network": {"relay": relay, "transport": "udp" if udp else "tcp"},
        "parameters": {INSECURE.get(name, name): value for name, value in parameters.items()},
        "exit": {"allow": list(allow)},
        "roster": {RELAY: publics[RELAY]},
        "roster.trustees": {name: key for name, key in publics.items() if name.startswith("trustee")},
        "roster.clients": {name: key for name, key in publics.items() if name.startswith("client")},
    }
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    path.write_text("\n".join(lines))
    return path
