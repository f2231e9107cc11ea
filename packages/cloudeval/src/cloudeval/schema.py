"""Checks objects against published schemas: unknown fields, types and required fields.

Kubernetes' OpenAPI definitions come from `kubernetes-validate`, Istio's schemas from `cloudcoil-models-istio`, and those of
training operators (PyTorchJob, JobSet, Kueue) from `training.yaml`, which refers to Kubernetes' definitions.
"""

import base64
import binascii
import functools
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from cloudeval.cache import cache_folder

Object = dict[str, Any]

#: Version of the OpenAPI definitions. The newest that kubectl 1.32 knows, too.
VERSION = "1.32.0"

_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
#: Fields that the definitions call required and the server fills in or accepts without.
_NOT_REQUIRED = (
    "RoleBinding.subjects ClusterRoleBinding.subjects PodDisruptionBudgetSpec.selector IngressBackend.service "
    "CustomResourceDefinitionNames.listKind PodSpec.containers LabelSelectorRequirement.values HTTPIngressPath.pathType "
    "NodeSelector.nodeSelectorTerms"
)
#: Kinds whose spec the server demands though their definition does not.
_NEED_SPEC = {"Pod", "Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job", "CronJob", "PersistentVolumeClaim"}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "object": ((dict,), "a mapping"),
    "array": ((list,), "a list"),
    "string": ((str,), "a string"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "Quantity": ((int, float, str), "a quantity"),
    "IntOrString": ((int, str), "an integer or a string"),
}
_NAMES = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a mapping"}


@dataclass(frozen=True)
class Fault:
    """One reason why an object is refused: where, why, and the kind of check that found it."""

    path: str
    reason: str
    check: str = "schema"

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True)
class Part:
    """A mapping inside an object: its path, the name of its type, and its value."""

    path: str
    type: str
    value: Object


@functools.cache
def definitions() -> Object:
    """Return all definitions by their full name."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}-local"
    loaded: Object = json.loads((folder / "_definitions.json").read_text())["$defs"]
    own: Object = yaml.load((resources.files("cloudeval") / "training.yaml").read_text(), Loader=yaml.CSafeLoader)
    return loaded | own


@functools.cache
def kinds() -> dict[tuple[str, str], str]:
    """Return the definition's name for each (apiVersion, kind) that can be created."""
    return {
        (f"{entry['group']}/{entry['version']}".lstrip("/"), entry["kind"]): name
        for name, definition in definitions().items()
        for entry in definition.get("x-kubernetes-group-version-kind", [])
        if "metadata" in definition.get("properties", {}) and not entry["kind"].endswith("List")
    }


@functools.cache
def _istio(group: str, version: str, kind: str) -> Object | None:
    """Return the schema of one of Istio's kinds; it is kept on disk since importing the models takes more than a second."""
    module = {f"{name}.istio.io": name for name in ("networking", "security", "telemetry")}.get(group)
    if module is None or not re.fullmatch(r"v1(alpha\d|beta\d)?", version) or not kind.isidentifier():
        return None
    kept = cache_folder() / "istio" / f"{module}.{version}.{kind}.json"
    if not kept.exists():
        try:
            model = getattr(importlib.import_module(f"cloudcoil.models.istio.{module}.{version}"), kind, None)
        except ModuleNotFoundError:
            return None
        if model is None or "metadata" not in getattr(model, "model_fields", {}):
            return None
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(model.model_json_schema(by_alias=True)))
    loaded: Object = json.loads(kept.read_text())
    return loaded


def inspect(value: Object) -> tuple[list[Fault], list[Part]]:
    """Return why the object does not follow its kind's schema, and its parts with their types, the object first."""
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            return [Fault(key, "is missing" if value.get(key) in (None, "") else "must be a string")], []
    version, kind = value["apiVersion"], value["kind"]
    group = version.partition("/")[0]
    if group.endswith("istio.io"):
        schema = _istio(group, version.partition("/")[2], kind)
        shared = (schema or {}).get("$defs", {})
    else:
        name = kinds().get((version, kind))
        schema, shared = {"$ref": name} if name else None, definitions()
    if schema is None:
        versions = sorted(known for known, other in kinds() if other == kind)
        hint = f"; this kind exists in {', '.join(versions)}" if versions else ""
        return [Fault("apiVersion", f'no kind "{kind}" in "{version}"{hint}')], []
    found = list(_walk(value, schema, shared, "", kind))
    return [item for item in found if isinstance(item, Fault)], [item for item in found if isinstance(item, Part)]


def _resolve(schema: Object, shared: Object, name: str) -> tuple[Object | None, str]:
    """Return a schema without references and alternatives of null, and its type's name; None where it allows anything."""
    while "$ref" in schema or "anyOf" in schema or "allOf" in schema:
        if "$ref" in schema:
            full = schema["$ref"].rpartition("/")[2]
            schema, name = shared[full], full.rpartition(".")[2]
            continue
        options = [item for item in schema.get("anyOf") or schema["allOf"] if item.get("type") != "null"]
        if len(options) > 1:
            return None, name
        schema = options[0]
    return schema, name


def _walk(value: Any, schema: Object, shared: Object, path: str, name: str = "") -> Iterator[Fault | Part]:
    resolved, name = _resolve(schema, shared, name)
    if resolved is None or value is None or path == "status":
        return
    types = resolved.get("type", [])
    kind = next((item for item in ([types] if isinstance(types, str) else types) if item != "null"), None)
    if name == "Quantity" or "oneOf" in resolved:
        kind = "Quantity" if name == "Quantity" else "IntOrString"
    if kind is None and "properties" in resolved:
        kind = "object"
    if kind is None:
        return
    allowed, described = _TYPES[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind != "boolean"):
        given = f" ({value})" if isinstance(value, (bool, int, float)) else ""
        hint = "; quote it" if kind == "string" else ""
        yield Fault(path, f"must be {described}, not {_NAMES.get(type(value), 'null')}{given}{hint}")
    elif isinstance(value, dict):
        yield from _mapping(value, resolved, shared, path, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None and "$ref" not in resolved["items"]:
                yield Fault(f"{path}[{index}]", "must not be null")
            yield from _walk(item, resolved.get("items", {}), shared, f"{path}[{index}]")
    elif reason := _scalar(value, kind, resolved):
        yield Fault(path, reason)


def _mapping(value: Object, schema: Object, shared: Object, path: str, name: str) -> Iterator[Fault | Part]:
    yield Part(path, name, value)
    properties: Object | None = schema.get("properties")
    other = schema.get("additionalProperties")
    for key, item in value.items():
        at = f"{path}.{key}" if path else key
        if properties is None:
            yield from _walk(item, other if isinstance(other, dict) else {}, shared, at)
        elif key in properties:
            yield from _walk(item, properties[key], shared, at)
        else:
            yield Fault(at, f"unknown field{_similar(key, properties)}")
    also = ["spec"] if path == "" and name in _NEED_SPEC else []
    for key in [*schema.get("required", []), *also]:
        if value.get(key) is None and f"{name}.{key}" not in _NOT_REQUIRED.split():
            yield Fault(f"{path}.{key}" if path else key, "is required")


def _scalar(value: Any, kind: str, schema: Object) -> str | None:
    form = schema.get("format")
    if kind == "Quantity" and isinstance(value, str) and not _QUANTITY.fullmatch(value):
        return f'"{value}" is no quantity; write 500m, 2, 64Mi or 1Gi'
    if kind == "integer" and form == "int32" and not -(2**31) <= value < 2**31:
        return "must fit in 32 bits"
    if "enum" in schema and value not in schema["enum"]:
        return f'"{value}" must be one of {", ".join(map(str, schema["enum"]))}'
    if kind == "string" and form == "byte" and not is_base64(value):
        return "must be base64"
    if kind == "string" and form == "date-time" and not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value):
        return "must be a time such as 2030-01-31T12:00:00Z"
    return None


def is_base64(value: str) -> bool:
    """Return True if the text is base64 as Go's standard decoder reads it."""
    try:
        base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_SUFFIXES |= {unit: 1000.0 ** (n + 1) for n, unit in enumerate("kMGTPE")}
_SUFFIXES |= {f"{unit}i": 1024.0 ** (n + 1) for n, unit in enumerate("KMGTPE")}


def quantity(value: str | int | float) -> float:
    """Return the number of a quantity that the schema check has accepted."""
    if isinstance(value, str) and (found := re.fullmatch(r"([+-]?[0-9.]+)([KMGTPE]i|[numkMGTPE]|)", value)):
        return float(found[1]) * _SUFFIXES[found[2]]
    return float(value)


def _similar(key: str, properties: Object) -> str:
    from rapidfuzz import process

    best = process.extractOne(key, properties.keys(), score_cutoff=75)
    return f'; did you mean "{best[0]}"?' if best else ""
