"""The one config file of a network (TOML), the same for all members, and `prifi keys` that writes it with all keys."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from prifi.errors import BadConfig
from prifi.identity import RELAY, Roster, generate, write_key
from prifi.parameters import Parameters, Protection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Config:
    """A network's settings.

    Attributes:
        relay: Host and port of the relay.
        udp: Whether links are UDP.
        parameters: Settings that all members share and sign.
        roster: Public keys of all members.
        allow: Refused networks that the exit may use.
    """

    relay: tuple[str, int]
    udp: bool
    parameters: Parameters
    roster: Roster
    allow: tuple[str, ...] = field(default=())


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
        tree = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read {path}; make a network with `prifi keys`") from error
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{path}: {error}") from error
    unknown = set(tree) - {"network", "parameters", "roster", "exit"}
    if unknown or "network" not in tree or "roster" not in tree:
        raise BadConfig(f"{path} has the sections [network], [parameters], [exit] and [roster], no others")
    network = tree["network"]
    if network.get("transport", "tcp") not in ("tcp", "udp") or not isinstance(network.get("relay"), str):
        raise BadConfig(f'{path}: [network] needs relay = "HOST:PORT" and transport = "tcp" or "udp"')
    return Config(
        relay=parse_address(network["relay"]),
        udp=network.get("transport", "tcp") == "udp",
        parameters=_parameters(path, tree.get("parameters", {})),
        roster=_roster(path, tree["roster"]),
        allow=tuple(tree.get("exit", {}).get("allow", [])),
    )


def _parameters(path: Path, table: dict[str, Any]) -> Parameters:
    """Return the parameters; what weakens the network has a name of its own."""
    values = dict(table)
    for name in ("protection", "shuffle_rounds"):
        if name in values:
            raise BadConfig(f"{path}: write insecure_{name} if you really want to change it")
        if f"insecure_{name}" in values:
            values[name] = values.pop(f"insecure_{name}")
    try:
        return msgspec.convert(values, Parameters).checked()
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: [parameters]: {error}") from error


def _roster(path: Path, table: dict[str, Any]) -> Roster:
    try:
        trustees, clients = dict(table["trustees"]), dict(table["clients"])
        keys = {name: bytes.fromhex(text) for name, text in {RELAY: table["relay"], **trustees, **clients}.items()}
    except (KeyError, TypeError, ValueError):
        raise BadConfig(f"{path}: [roster] needs relay, trustees and clients with their public keys") from None
    distinct = len(set(keys.values())) == len(keys) == 1 + len(trustees) + len(clients)
    if not distinct or any(len(key) != 32 for key in keys.values()):
        raise BadConfig(f"{path}: [roster] has a key twice, a name twice, or a key that is not 32 bytes")
    if not trustees or any(len(name) > 64 for name in keys):
        raise BadConfig(f"{path}: [roster] needs at least one trustee, and names of at most 64 letters")
    return Roster(keys, tuple(trustees), tuple(clients))


def write_network(
    folder: Path,
    clients: int,
    trustees: int,
    relay: str,
    udp: bool = False,
    allow: tuple[str, ...] = (),
    **parameters: Any,
) -> Path:
    """Make keys for a network and write `prifi.toml` and one key file a member.

    Args:
        folder: Where; it must not hold a network already.
        clients: Number of clients.
        trustees: Number of trustees.
        relay: Address of the relay.
        udp: Whether links are UDP.
        allow: Refused networks that the exit may use.
        parameters: Settings that differ from the defaults.

    Returns:
        Path of the config file.

    Raises:
        BadConfig: The folder holds a network, or a setting cannot be used.
    """
    Parameters(**parameters).checked()
    path = folder / "prifi.toml"
    if path.exists():
        raise BadConfig(f"{path} exists; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    publics = {}
    for name in [RELAY, *(f"trustee-{j}" for j in range(trustees)), *(f"client-{i}" for i in range(clients))]:
        identity, seed = generate(name)
        write_key(folder / f"{name}.key", name, seed)
        publics[name] = identity.public.hex()
    lines = ["[network]", f'relay = "{relay}"', f'transport = "{"udp" if udp else "tcp"}"', "", "[parameters]"]
    for name, value in parameters.items():
        key = f"insecure_{name}" if _weakens(name, value) else name
        if key.startswith("insecure_") or name not in ("protection", "shuffle_rounds"):
            lines.append(f"{key} = {_toml(value)}")
    lines += ["", "[exit]", f"allow = {_toml(list(allow))}", "", "[roster]", f'relay = "{publics.pop(RELAY)}"', ""]
    for section in ("trustees", "clients"):
        lines.append(f"[roster.{section}]")
        lines += [f'{name} = "{key}"' for name, key in publics.items() if name.startswith(section[:-1])]
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def _weakens(name: str, value: object) -> bool:
    if name == "protection":
        strongest: Protection = "both"
        return value != strongest
    return name == "shuffle_rounds"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
