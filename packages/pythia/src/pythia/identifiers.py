"""Find the three identifiers in a request, and take them out of its body without touching anything else."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pythia.errors import BadRequest
from pythia.records import Identifiers

#: Member of the body that holds the identifiers.
MEMBER = "app_metadata"
HEADERS = ("x-workflow-type-id", "x-workflow-id", "x-agent-id")
FINAL_HEADER = "x-workflow-final"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Metadata(msgspec.Struct):
    workflow_type_id: str | None = None
    workflow_id: str | None = None
    agent_id: str | None = None
    final: bool = False


def members(body: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the members of a JSON object with their values as they stand; None if the body is no JSON object."""
    try:
        return _members.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def find(fields: Mapping[str, msgspec.Raw], headers: Mapping[bytes, bytes]) -> Identifiers | None:
    """Return the identifiers of a request; None if it has none.

    Args:
        fields: Members of its body.
        headers: Its headers, names in lower case.

    Raises:
        BadRequest: Some identifiers are given, but not all of them, or one cannot be used.
    """
    raw = fields.get(MEMBER)
    found: dict[str, object] = {}
    if raw is not None:
        try:
            metadata = msgspec.json.decode(raw, type=_Metadata)
        except msgspec.ValidationError as error:
            if bytes(raw)[:1] != b"{":
                return None  # another application's member of this name
            raise BadRequest(f"{MEMBER}: {error}") from error
        found = {k: v for k, v in msgspec.structs.asdict(metadata).items() if v is not None and k != "final"}
        if not found:
            return None
        found["final"] = metadata.final
    else:
        names = ("workflow_type_id", "workflow_id", "agent_id")
        given = {name: headers.get(header.encode()) for name, header in zip(names, HEADERS, strict=True)}
        found = {name: value.decode("utf-8", "replace") for name, value in given.items() if value is not None}
        if not found:
            return None
        found["final"] = headers.get(FINAL_HEADER.encode(), b"").lower() in (b"1", b"true")
    try:
        return msgspec.convert(found, Identifiers)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"identifiers: {error}; give workflow_type_id, workflow_id and agent_id, 1 to 128 printable characters each"
        ) from error


def rewrite(fields: Mapping[str, msgspec.Raw], remove: tuple[str, ...], add: Mapping[str, object]) -> bytes:
    """Return the body without some members and with others at its end; all others keep their bytes and order."""
    kept = {name: raw for name, raw in fields.items() if name not in remove}
    for name, value in add.items():
        kept[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(kept)
