"""Strict admission: what the API server refuses is refused here, with the path, before anything starts."""

from __future__ import annotations

from typing import Any

from cloudeval.admission import istio, objects, training, updates
from cloudeval.admission.defaults import set_defaults
from cloudeval.errors import ReadError
from cloudeval.reading import Document, read
from cloudeval.schema import Fault, check_object
from cloudeval.store import Store, key_of

__all__ = ["admit", "admit_text", "check_document"]

Object = dict[str, Any]


def check_document(document: Document) -> list[Fault]:
    """Return why one document would be refused on its own. Adds lines to the paths where they are known."""
    value = document.value
    if not isinstance(value, dict):
        return [Fault("", "a manifest must be a mapping with apiVersion and kind")]
    if str(value.get("apiVersion", "")).split("/")[0].endswith("istio.io"):
        return istio.check_object(value)
    faults = check_object(value)
    if faults:
        return faults
    drop_nulls(value)
    return list(objects.check_object(value)) + list(training.check_object(value))


def drop_nulls(value: Any) -> None:
    """Remove null fields in place: for the server they are absent."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
        for item in value.values():
            drop_nulls(item)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item)


def admit(documents: list[Document], store: Store) -> list[Fault]:
    """Admit documents in order into the store, as `kubectl apply` does. Return the faults; the store keeps what was admitted.

    Lists (`kind: List`) are taken apart. Defaults are set as the server sets them.
    """
    faults: list[Fault] = []
    for number, document in enumerate(documents, 1):
        if isinstance(document.value, dict) and document.value.get("kind") == "List":
            parts = [Document(item) for item in document.value.get("items") or []]
        else:
            parts = [document]
        for part in parts:
            found = check_document(part)
            if not found:
                set_defaults(part.value)
                found = _place(part.value, store)
            faults += [_located(fault, part, number if len(documents) > 1 else None) for fault in found]
    return faults


def admit_text(text: str, store: Store) -> list[Fault]:
    """Read a text and admit its documents. A text that cannot be read is one fault."""
    try:
        documents = read(text)
    except ReadError as error:
        return [Fault("", str(error), "yaml")]
    if not documents:
        return [Fault("", "the text holds no object", "yaml")]
    return admit(documents, store)


def _place(value: Object, store: Store) -> list[Fault]:
    namespace = value["metadata"].get("namespace")
    if value["kind"] not in objects.CLUSTER_SCOPED and not store.get("Namespace", namespace or "default"):
        return [Fault("metadata.namespace", f'the namespace "{namespace}" does not exist', "admission")]
    old = store.find(key_of(value))
    if old is not None:
        faults = list(updates.check_update(old, value))
        if not faults:
            store.replace(value)
        return faults
    refusal = store.create(value)
    return [Fault("", refusal, "admission")] if refusal else []


def _located(fault: Fault, document: Document, number: int | None) -> Fault:
    value = document.value if isinstance(document.value, dict) else {}
    name = (value.get("metadata") or {}).get("name") if isinstance(value.get("metadata"), dict) else None
    where = f"{value.get('kind')} {name}" if name and number else f"document {number}" if number else ""
    path = f"{where}: {fault.path}".strip(": ") if where else fault.path
    return Fault(path, fault.reason, fault.check)
