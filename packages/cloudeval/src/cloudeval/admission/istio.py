"""Admission of Istio's kinds: the structure by the models of `cloudcoil-models-istio`, then rules of Istio's webhook."""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Iterator
from typing import Any

from cloudeval.cache import cache_folder
from cloudeval.schema import Fault, _similar
from cloudeval.values import Faults

Object = dict[str, Any]

_MODULES = {"networking.istio.io": "networking", "security.istio.io": "security", "telemetry.istio.io": "telemetry"}
_DURATION = re.compile(r"([0-9]+(\.[0-9]*)?(h|m|s|ms|us|ns))+")


def check_object(value: Object) -> list[Fault]:
    """Return why Istio would refuse the object."""
    group, _, version = str(value.get("apiVersion")).partition("/")
    kind, metadata = value.get("kind"), value.get("metadata")
    schema = _schema(group, version, str(kind))
    if schema is None:
        return [Fault("apiVersion", f'no kind "{kind}" in "{value.get("apiVersion")}"')]
    found = Faults(_walk(value, schema, schema.get("$defs", {}), ""))
    if found:
        return list(found)
    if not isinstance(metadata, dict) or not metadata.get("name"):
        found.add("metadata.name", "is required")
    else:
        found.subdomain(metadata["name"], "metadata.name")
        found.labels(metadata.get("labels"), "metadata.labels")
    spec = value.get("spec") or {}
    if check := {
        "VirtualService": _virtual_service,
        "DestinationRule": _destination_rule,
        "Gateway": _gateway,
        "AuthorizationPolicy": _authorization_policy,
        "ServiceEntry": _service_entry,
    }.get(str(kind)):
        check(spec, found)
    return list(found)


@functools.cache
def _schema(group: str, version: str, kind: str) -> Object | None:
    """Return the JSON schema of a kind; it is kept on disk since importing the models takes more than a second."""
    if group not in _MODULES or not re.fullmatch(r"v1(alpha\d|beta\d)?", version) or not kind.isidentifier():
        return None
    kept = cache_folder() / "istio" / f"{_MODULES[group]}.{version}.{kind}.json"
    if kept.exists():
        loaded: Object = json.loads(kept.read_text())
        return loaded
    try:
        model = getattr(importlib.import_module(f"cloudcoil.models.istio.{_MODULES[group]}.{version}"), kind, None)
    except ModuleNotFoundError:
        return None
    if model is None or "metadata" not in getattr(model, "model_fields", {}):
        return None
    schema: Object = model.model_json_schema(by_alias=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(schema))
    return schema


def _walk(value: Any, schema: Object, shared: Object, path: str) -> Iterator[Fault]:
    while "anyOf" in schema or "$ref" in schema or "allOf" in schema:
        if "$ref" in schema:
            schema = shared[schema["$ref"].rpartition("/")[2]]
            continue
        options = [item for item in schema.get("anyOf") or schema["allOf"] if item.get("type") != "null"]
        if len(options) > 1:
            return
        schema = options[0]
    if value is None or path in ("metadata.creationTimestamp", "status"):
        return
    kind, properties = schema.get("type"), schema.get("properties")
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if kind in types and (not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean")):  # type: ignore[arg-type]
        yield Fault(path, f"must be of the type {kind}, not {type(value).__name__}")
    elif "enum" in schema and value not in schema["enum"]:
        yield Fault(path, f'"{value}" must be one of {", ".join(map(str, schema["enum"]))}')
    elif isinstance(value, dict) and properties is not None:
        for key, item in value.items():
            at = f"{path}.{key}" if path else key
            if key not in properties:
                yield Fault(at, f"unknown field{_similar(key, properties)}")
            else:
                yield from _walk(item, properties[key], shared, at)
        for key in schema.get("required", []):
            if value.get(key) is None:
                yield Fault(f"{path}.{key}" if path else key, "is required")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, item in value.items():
            yield from _walk(item, schema["additionalProperties"], shared, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _walk(item, schema["items"], shared, f"{path}[{index}]")


def _duration(value: Any, path: str, found: Faults) -> None:
    if value is not None:
        found.require(_DURATION.fullmatch(str(value)), path, f'"{value}" must be a duration such as 2s')


def _percentage(fault: Object, path: str, found: Faults) -> None:
    value = (fault.get("percentage") or {}).get("value")
    if value is not None:
        found.require(0 <= value <= 100, f"{path}.percentage.value", "must be between 0 and 100")


def _virtual_service(spec: Object, found: Faults) -> None:
    found.require(spec.get("hosts"), "spec.hosts", "is required")
    found.require(spec.get("http") or spec.get("tcp") or spec.get("tls"), "spec", "needs http, tcp or tls")
    for index, route in enumerate(spec.get("http") or []):
        at = f"spec.http[{index}]"
        actions = [key for key in ("route", "redirect", "directResponse", "delegate") if route.get(key)]
        found.require(len(actions) == 1, at, "needs exactly one of route, redirect, directResponse or delegate")
        weights = [item.get("weight") for item in route.get("route") or []]
        if len(weights) > 1:
            found.require(
                sum(weight or 0 for weight in weights) > 0, f"{at}.route", "several destinations need weights"
            )
        for number, weight in enumerate(weights):
            found.at_least(weight, 0, f"{at}.route[{number}].weight")
        for number, match in enumerate(route.get("match") or []):
            for key in ("uri", "method", "authority", "scheme"):
                if match.get(key):
                    found.require(
                        len(match[key]) == 1, f"{at}.match[{number}].{key}", "needs one of exact, prefix or regex"
                    )
        _duration(route.get("timeout"), f"{at}.timeout", found)
        retries = route.get("retries") or {}
        found.at_least(retries.get("attempts"), 0, f"{at}.retries.attempts")
        _duration(retries.get("perTryTimeout"), f"{at}.retries.perTryTimeout", found)
        fault = route.get("fault") or {}
        if delay := fault.get("delay"):
            found.require(delay.get("fixedDelay"), f"{at}.fault.delay.fixedDelay", "is required")
            _duration(delay.get("fixedDelay"), f"{at}.fault.delay.fixedDelay", found)
            _percentage(delay, f"{at}.fault.delay", found)
        if abort := fault.get("abort"):
            if abort.get("httpStatus") is not None:
                found.require(
                    200 <= abort["httpStatus"] <= 599, f"{at}.fault.abort.httpStatus", "must be between 200 and 599"
                )
            _percentage(abort, f"{at}.fault.abort", found)


def _destination_rule(spec: Object, found: Faults) -> None:
    found.require(spec.get("host"), "spec.host", "is required")
    names = [subset.get("name") for subset in spec.get("subsets") or []]
    found.unique(names, "spec.subsets", "subset")
    for index, subset in enumerate(spec.get("subsets") or []):
        found.label_name(subset.get("name"), f"spec.subsets[{index}].name")
        found.labels(subset.get("labels"), f"spec.subsets[{index}].labels")
    detection = (spec.get("trafficPolicy") or {}).get("outlierDetection") or {}
    for key in ("interval", "baseEjectionTime"):
        _duration(detection.get(key), f"spec.trafficPolicy.outlierDetection.{key}", found)


def _gateway(spec: Object, found: Faults) -> None:
    found.require(spec.get("servers"), "spec.servers", "is required")
    for index, server in enumerate(spec.get("servers") or []):
        at = f"spec.servers[{index}]"
        found.require(server.get("hosts"), f"{at}.hosts", "is required")
        port = server.get("port") or {}
        found.port(port.get("number"), f"{at}.port.number")
        found.require(port.get("name"), f"{at}.port.name", "is required")
        protocol = str(port.get("protocol", "")).upper()
        found.require(
            protocol in ("HTTP", "HTTPS", "GRPC", "HTTP2", "MONGO", "TCP", "TLS"),
            f"{at}.port.protocol",
            f'"{protocol}" is no protocol of a gateway',
        )
        tls = server.get("tls") or {}
        if protocol in ("HTTPS", "TLS"):
            found.require(tls, f"{at}.tls", f"is required for {protocol}")
        if tls.get("mode") in ("SIMPLE", "MUTUAL"):
            found.require(
                tls.get("credentialName") or tls.get("serverCertificate"),
                f"{at}.tls",
                "needs credentialName or serverCertificate",
            )


def _authorization_policy(spec: Object, found: Faults) -> None:
    action = spec.get("action") or "ALLOW"
    if action == "CUSTOM":
        found.require(spec.get("provider"), "spec.provider", "is required for CUSTOM")
    for index, rule in enumerate(spec.get("rules") or []):
        for number, condition in enumerate(rule.get("when") or []):
            found.require(
                condition.get("values") or condition.get("notValues"),
                f"spec.rules[{index}].when[{number}]",
                "needs values or notValues",
            )


def _service_entry(spec: Object, found: Faults) -> None:
    found.require(spec.get("hosts"), "spec.hosts", "is required")
    for index, port in enumerate(spec.get("ports") or []):
        found.port(port.get("number"), f"spec.ports[{index}].number")
        found.require(port.get("name"), f"spec.ports[{index}].name", "is required")
