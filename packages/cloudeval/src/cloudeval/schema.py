"""Checks objects against Kubernetes' published OpenAPI definitions: unknown fields, types and required fields.

The definitions are those of one Kubernetes version as the package `kubernetes-validate` carries them. Kinds of
training operators (PyTorchJob, JobSet, Kueue) come from `training.yaml`, which refers to the same definitions.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

#: Version of the OpenAPI definitions. The newest that kubectl 1.32 knows, too.
VERSION = "1.32.0"

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
#: Fields that the definitions call required and the server fills in or accepts without.
_NOT_REQUIRED = {
    ("RoleBinding", "subjects"),
    ("ClusterRoleBinding", "subjects"),
    ("PodDisruptionBudgetSpec", "selector"),
    ("CustomResourceDefinitionNames", "listKind"),
    ("IngressBackend", "service"),
    ("PodSpec", "containers"),
    ("LabelSelectorRequirement", "values"),
    ("HTTPIngressPath", "pathType"),
    ("NodeSelector", "nodeSelectorTerms"),
}

#: Kinds whose spec the server demands though their definition does not.
_NEED_SPEC = {"Pod", "Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job", "CronJob", "PersistentVolumeClaim"}


@dataclass(frozen=True)
class Fault:
    """One reason why an object is refused: where, why, and the kind of check that found it."""

    path: str
    reason: str
    check: str = "schema"

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


@functools.cache
def definitions() -> dict[str, Any]:
    """Return all definitions by their full name."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}-local"
    loaded: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    own = yaml.load((resources.files("cloudeval") / "training.yaml").read_text(), Loader=yaml.CSafeLoader)
    return {**loaded, **own}


@functools.cache
def kinds() -> dict[tuple[str, str], str]:
    """Return the definition's name for each (apiVersion, kind) that can be created."""
    found = {}
    for name, definition in definitions().items():
        for entry in definition.get("x-kubernetes-group-version-kind", []):
            if "metadata" in definition.get("properties", {}) and not entry["kind"].endswith("List"):
                group = f"{entry['group']}/" if entry["group"] else ""
                found[(f"{group}{entry['version']}", entry["kind"])] = name
    return found


def check_object(value: dict[str, Any]) -> list[Fault]:
    """Return why the object does not follow its kind's definition. Empty if it does."""
    key = (value.get("apiVersion"), value.get("kind"))
    if not isinstance(key[0], str) or not key[0]:
        return [Fault("apiVersion", "is missing" if key[0] in (None, "") else "must be a string")]
    if not isinstance(key[1], str) or not key[1]:
        return [Fault("kind", "is missing" if key[1] in (None, "") else "must be a string")]
    name = kinds().get((key[0], key[1]))
    if name is None:
        versions = sorted(version for version, kind in kinds() if kind == key[1])
        hint = f"; this kind exists in {', '.join(versions)}" if versions else ""
        return [Fault("apiVersion", f'no kind "{key[1]}" in "{key[0]}"{hint}')]
    return list(check(value, name, ""))


def check(value: Any, name: str, path: str) -> Iterator[Fault]:
    """Yield the faults of a value against the definition of that name."""
    definition = definitions()[name]
    short = name.rpartition(".")[2]
    if short == "Quantity":
        yield from _quantity(value, path)
    elif short == "IntOrString":
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield Fault(path, "must be an integer or a string")
    elif "properties" not in definition:
        yield from _plain(value, definition, path)
    elif not isinstance(value, dict):
        yield Fault(path, f"must be an object, not {_kind_of(value)}")
    else:
        yield from _fields(value, definition, short, path)


def _fields(value: dict[str, Any], definition: dict[str, Any], short: str, path: str) -> Iterator[Fault]:
    properties = definition["properties"]
    for key, item in value.items():
        at = f"{path}.{key}" if path else key
        if key not in properties:
            yield Fault(at, f"unknown field{_similar(key, properties)}")
        elif item is not None and not (path == "" and key == "status"):
            yield from _value(item, properties[key], at)
    also = ["spec"] if path == "" and short in _NEED_SPEC else []
    for key in [*definition.get("required", []), *also]:
        if value.get(key) is None and (short, key) not in _NOT_REQUIRED:
            yield Fault(f"{path}.{key}" if path else key, "is required")


def _value(value: Any, schema: dict[str, Any], path: str) -> Iterator[Fault]:
    if "$ref" in schema:
        yield from check(value, schema["$ref"].rpartition("/")[2], path)
    elif "oneOf" in schema:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield Fault(path, "must be an integer or a string")
    else:
        yield from _plain(value, schema, path)


def _plain(value: Any, schema: dict[str, Any], path: str) -> Iterator[Fault]:
    types = schema.get("type", [])
    kind = next((name for name in ([types] if isinstance(types, str) else types) if name != "null"), None)
    if kind == "object":
        yield from _mapping(value, schema, path)
    elif kind == "array":
        if not isinstance(value, list):
            yield Fault(path, f"must be a list, not {_kind_of(value)}")
            return
        for index, item in enumerate(value):
            if item is None and "$ref" not in schema["items"]:
                yield Fault(f"{path}[{index}]", "must not be null")
            elif item is not None:
                yield from _value(item, schema["items"], f"{path}[{index}]")
    elif kind == "string":
        if not isinstance(value, str):
            yield Fault(path, f"must be a string, not {_kind_of(value)}; quote it")
        elif schema.get("format") == "byte" and not is_base64(value):
            yield Fault(path, "must be base64")
        elif "enum" in schema and value not in [*schema["enum"], ""] and path in ("apiVersion", "kind"):
            yield Fault(path, f"must be one of {schema['enum']}")
        elif schema.get("format") == "date-time" and not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value):
            yield Fault(path, "must be a time such as 2030-01-31T12:00:00Z")
    elif kind == "boolean" and not isinstance(value, bool):
        yield Fault(path, f"must be true or false, not {_kind_of(value)}")
    elif kind == "integer" and (isinstance(value, bool) or not isinstance(value, int)):
        yield Fault(path, f"must be an integer, not {_kind_of(value)}")
    elif kind == "integer" and not -(2**31) <= value < 2**31 and schema.get("format") == "int32":
        yield Fault(path, "must fit in 32 bits")
    elif kind == "number" and (isinstance(value, bool) or not isinstance(value, (int, float))):
        yield Fault(path, f"must be a number, not {_kind_of(value)}")


def _mapping(value: Any, schema: dict[str, Any], path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path, f"must be a mapping, not {_kind_of(value)}")
        return
    items = schema.get("additionalProperties")
    if isinstance(items, dict):
        for key, item in value.items():
            if item is not None:
                yield from _value(item, items, f"{path}.{key}" if path else key)


def _quantity(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        yield Fault(path, f"must be a quantity, not {_kind_of(value)}")
    elif isinstance(value, str) and not _QUANTITY.fullmatch(value):
        yield Fault(path, f'"{value}" is no quantity; write 500m, 2, 64Mi or 1Gi')


def is_base64(value: str) -> bool:
    """Return True if the text is base64 as Go's standard decoder reads it."""
    try:
        base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_SUFFIXES = (
    {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
    | {unit: 1000.0 ** (n + 1) for n, unit in enumerate("kMGTPE")}
    | {f"{unit}i": 1024.0 ** (n + 1) for n, unit in enumerate("KMGTPE")}
)


def quantity(value: str | int | float) -> float:
    """Return the number of a quantity that the schema check has accepted."""
    if isinstance(value, (int, float)):
        return float(value)
    if found := re.fullmatch(r"([+-]?[0-9.]+)([KMGTPE]i|[numkMGTPE]|)", value):
        return float(found[1]) * _SUFFIXES[found[2]]
    return float(value)


def _kind_of(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a mapping"}
    return names.get(type(value), "null") + (f" ({value})" if isinstance(value, (bool, int, float)) else "")


def _similar(key: str, properties: dict[str, Any]) -> str:
    from rapidfuzz import process

    best = process.extractOne(key, properties.keys(), score_cutoff=75)
    return f'; did you mean "{best[0]}"?' if best else ""
