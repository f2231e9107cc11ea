"""Strict admission: what the API server refuses is refused here, with the path, before anything starts."""

from typing import Any

from cloudeval.admission.defaults import set_defaults
from cloudeval.admission.rules import CLUSTER_SCOPED, check_parts
from cloudeval.admission.updates import check_update
from cloudeval.errors import ReadError
from cloudeval.reading import read
from cloudeval.schema import Fault, inspect
from cloudeval.store import Store, key_of

__all__ = ["admit", "admit_text"]


def admit_text(text: str, store: Store) -> list[Fault]:
    """Read a text and admit its documents. A text that cannot be read is one fault."""
    try:
        documents = [document.value for document in read(text)]
    except ReadError as error:
        return [Fault("", str(error), "yaml")]
    return admit(documents, store) if documents else [Fault("", "the text holds no object", "yaml")]


def admit(values: list[Any], store: Store) -> list[Fault]:
    """Admit objects in order into the store, as `kubectl apply` does. Return the faults; the store keeps what was admitted.

    Lists (`kind: List`) are taken apart. Defaults are set as the server sets them.
    """
    faults: list[Fault] = []
    for number, value in enumerate(values, 1):
        is_list = isinstance(value, dict) and value.get("kind") == "List"
        for item in value.get("items") or [] if is_list else [value]:
            found = _admit_object(item, store)
            faults += [_located(fault, item, number) for fault in found] if len(values) > 1 else found
    return faults


def _admit_object(value: Any, store: Store) -> list[Fault]:
    if not isinstance(value, dict):
        return [Fault("", "a manifest must be a mapping with apiVersion and kind")]
    faults, parts = inspect(value)
    if not faults:
        _drop_nulls(value)
        faults = check_parts(value["kind"], parts)
    if faults:
        return faults
    set_defaults(value, parts)
    namespace = value["metadata"].get("namespace", "default")
    if value["kind"] not in CLUSTER_SCOPED and not store.get("Namespace", namespace):
        return [Fault("metadata.namespace", f'the namespace "{namespace}" does not exist', "admission")]
    if (old := store.objects.get(key_of(value))) is not None:
        if not (faults := check_update(old, value)):
            store.replace(value)
        return faults
    refusal = store.create(value)
    return [Fault("", refusal, "admission")] if refusal else []


def _drop_nulls(value: Any) -> None:
    """Remove null fields in place: for the server they are absent."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _drop_nulls(item)


def _located(fault: Fault, value: Any, number: int) -> Fault:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    where = f"{value.get('kind')} {name}" if name else f"document {number}"
    return Fault(f"{where}: {fault.path}".strip(": "), fault.reason, fault.check)
