"""Applies the rules of `rules.yaml` to the parts of an object, and those that need more than an expression."""

import base64
import functools
import ipaddress
import re
import zoneinfo
from collections.abc import Callable, Iterator
from importlib import resources
from types import CodeType
from typing import Any

import yaml

from cloudeval.admission.schedules import ScheduleError, parse
from cloudeval.schema import Fault, Object, Part, quantity
from cloudeval.values import dig, is_ip, matches

_CLUSTER_SCOPED = (
    "Namespace Node PersistentVolume StorageClass ClusterRole ClusterRoleBinding PriorityClass IngressClass RuntimeClass "
    "CustomResourceDefinition ResourceFlavor ClusterQueue WorkloadPriorityClass APIService CSIDriver VolumeAttachment "
    "MutatingWebhookConfiguration ValidatingWebhookConfiguration ValidatingAdmissionPolicy CertificateSigningRequest "
    "FlowSchema PriorityLevelConfiguration"
)
#: Kinds whose objects belong to no namespace.
CLUSTER_SCOPED = frozenset(_CLUSTER_SCOPED.split())
#: (Field, reason) of each fault of a part.
Reasons = Iterator[tuple[str, str]]
#: (Field, condition, reason).
Row = tuple[str, CodeType, str]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LETTERS = 'letters, digits, "-", "_" or "."'


# ---- checks of one value: each returns the reason, or None


def _pattern(pattern: str, most: int, described: str) -> Callable[[Any], str | None]:
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        if not value:
            return "is required"
        good = len(str(value)) <= most and compiled.fullmatch(str(value))
        return None if good else f'"{value}" must be at most {most} {described}'

    return check


_subdomain = _pattern(rf"{_LABEL}(\.{_LABEL})*", 253, 'lower-case letters, digits, "-" or "."')
_port_name = _pattern(rf"(?=.*[a-z])(?!.*--){_LABEL}", 15, 'lower-case letters, digits or single "-", with a letter')


def _key(value: Any) -> str | None:
    prefix, slash, name = str(value or "").rpartition("/")
    if slash and _subdomain(prefix):
        return f'the prefix of "{value}" must be a DNS subdomain'
    good = len(name) <= 63 and _QUALIFIED.fullmatch(name)
    return None if good else f'"{value}" is no valid key: at most 63 {_LETTERS} after an optional prefix'


def _schedule(value: str) -> str | None:
    try:
        parse(value)
    except ScheduleError as error:
        return f'"{value}": {error}'
    return None


def _is_label_value(value: Any) -> bool:
    return not value or (len(str(value)) <= 63 and _QUALIFIED.fullmatch(str(value)) is not None)


def _matching(condition: Callable[[Any], Any], reason: str) -> Callable[[Any], str | None]:
    return lambda value: None if condition(value) else f'"{value}" {reason}'


_port = _matching(lambda value: isinstance(value, int) and 1 <= value <= 65535, "must be between 1 and 65535")
CHECKS: dict[str, Callable[[Any], str | None]] = {
    "required": lambda value: None if value else "is required",
    "label": _pattern(_LABEL, 63, 'lower-case letters, digits or "-"'),
    "subdomain": _subdomain,
    "service": _pattern(rf"(?=[a-z]){_LABEL}", 63, 'lower-case letters, digits or "-" and start with a letter'),
    "key": _key,
    "annotation": lambda key: _key(key.lower()),
    "label value": _matching(_is_label_value, f"is no label value: at most 63 {_LETTERS}"),
    "port": _port,
    "port name": _port_name,
    "port or name": lambda value: _port_name(value) if isinstance(value, str) else _port(value),
    "variable": _pattern(r"[-._a-zA-Z][-._a-zA-Z0-9]*", 10_000, f"{_LETTERS}, the first one no digit"),
    "data key": _pattern(r"(?!\.\.)(?!\.$)[-._a-zA-Z0-9]+", 253, f'{_LETTERS} and not start with ".."'),
    "relative": _matching(
        lambda value: value and value[0] != "/" and ".." not in value.split("/"), 'must be a relative path without ".."'
    ),
    "address": _matching(lambda value: is_ip(value or ""), "must be an IP address"),
    "mode": _matching(lambda value: 0 <= value <= 0o777, "must be between 0 and 0777 (511)"),
    "count or percent": _matching(
        lambda value: re.fullmatch(r"[0-9]+%", value) if isinstance(value, str) else value >= 0,
        "must be an integer of at least 0 or a percentage such as 25%",
    ),
    "schedule": _schedule,
    "time zone": _matching(lambda value: value in zoneinfo.available_timezones(), "is no IANA time zone"),
    "duration": _matching(re.compile(r"([0-9]+(\.[0-9]*)?(h|m|s|ms|us|ns))+").fullmatch, "must be a duration like 2s"),
}
#: Checks that look at a field even where it is missing.
_OF_MISSING = "required|label|subdomain|key|port|port or name|variable|data key|relative|schedule|address"


def _field(check: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield (path below the field, reason) of one field under its check."""
    word, _, rest = check.partition(" ")
    if word == "each":
        for index, item in enumerate(value or []):
            yield from ((f"[{index}]", reason) for _, reason in _field(rest, item))
    elif word in ("keys", "values"):
        for key, item in (value or {}).items():
            yield f".{key}", CHECKS[rest](key if word == "keys" else item)
    elif word in ("optional", "given", "required") and rest:
        if value not in ((None, "", 0) if word == "optional" else (None,)):
            yield "", CHECKS[rest](value)
        elif word == "required":
            yield "", "is required"
    elif word == "unique":
        if name := _twice([item.get(rest) for item in value or []]):
            yield "", f'the {rest} "{name}" stands twice'
    elif " | " in check:
        if value not in (None, "", *check.split(" | ")):
            yield "", f'"{value}" must be one of {check.replace(" | ", ", ")}'
    elif found := re.fullmatch(r">= (\d+)", check):
        if value is not None and value < int(found[1]):
            yield "", f"{value} must be at least {found[1]}"
    elif found := re.fullmatch(r"(\d+)-(\d+)", check):
        if value is not None and not int(found[1]) <= value <= int(found[2]):
            yield "", f"{value} must be between {found[1]} and {found[2]}"
    elif value is not None or check in _OF_MISSING.split("|"):
        yield "", CHECKS[check](value)


# ---- what conditions may call


def _twice(items: list[Any]) -> Any:
    return next((item for index, item in enumerate(items) if item is not None and item in items[:index]), None)


def _cidr_inside(inner: str, outer: str | None = None) -> bool:
    try:
        part = ipaddress.ip_network(inner, strict=False)
        whole = None if outer is None else ipaddress.ip_network(outer, strict=False)
    except ValueError:
        return False
    return whole is None or (part.version == whole.version and part != whole and part.subnet_of(whole))  # type: ignore[arg-type]


def _field_path(ref: Object, metadata: str, others: str) -> bool:
    path = ref.get("fieldPath") or ""
    if re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return True
    return path in [*(f"metadata.{name}" for name in metadata.split()), *others.split()]


_COUNTED = r"pods|secrets|configmaps|persistentvolumeclaims|replicationcontrollers|resourcequotas"
_quota_name = re.compile(
    rf".*/.*|{_COUNTED}|(cpu|memory|requests|limits|count|storage|ephemeral-storage|services)(\..*)?"
).fullmatch


def _targets(items: list[Any] | None, jobs: list[Any] | None) -> bool:
    names = {job.get("name") for job in jobs or []}
    return all(target in names for item in items or [] for target in (item or {}).get("targetReplicatedJobs") or [])


_BUILT_IN = (all, any, bool, enumerate, int, isinstance, len, set, sorted, str, sum)
_HELPERS: Object = {function.__name__: function for function in _BUILT_IN} | {
    "__builtins__": {},
    "ok": lambda check, value: CHECKS[check](value) is None,
    "twice": _twice,
    "zero": lambda value: value in (0, "0%"),
    "at_most_all": lambda value: not re.fullmatch(r"[0-9]+%", str(value)) or int(value[:-1]) <= 100,
    "cidr_inside": _cidr_inside,
    "field_path": _field_path,
    "resource_field": re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.*)").fullmatch,
    "path_segment": re.compile(r"(?!\.{1,2}$)[^/%]+").fullmatch,
    "quota_name": _quota_name,
    "quantity": quantity,
    "targets": _targets,
}


# ---- the table


@functools.cache
def _table() -> dict[str, list[tuple[str, dict[str, str], list[Row]]]]:
    """Return, by type, (path of the parts, checks by field, rows)."""
    text = (resources.files("cloudeval.admission") / "rules.yaml").read_text()
    table: dict[str, list[Any]] = {}
    for name, fields in yaml.load(text, Loader=yaml.CSafeLoader).items():
        kind, _, path = name.partition(" ")
        rows = [
            (field, compile(condition, name, "eval"), reason) for field, condition, reason in fields.pop("rows", [])
        ]
        table.setdefault(kind, []).append((path, fields, rows))
    return table


def _below(value: Any, path: str, steps: list[str]) -> Iterator[tuple[str, Object]]:
    """Yield (path, mapping) of the parts below a value; a step that ends in `[]` stands for each item of a list."""
    if not steps:
        if isinstance(value, dict):
            yield path, value
        return
    key = steps[0].removesuffix("[]")
    inner, at = dig(value, key), f"{path}.{key}".lstrip(".")
    if steps[0].endswith("[]"):
        for index, item in enumerate(inner or []):
            yield from _below(item, f"{at}[{index}]", steps[1:])
    else:
        yield from _below(inner, at, steps[1:])


def check_parts(root: str, parts: list[Part]) -> list[Fault]:
    """Return the faults of an object of the kind `root` under the rules of its parts' types."""
    found: dict[Fault, None] = {}

    def add(path: str, reasons: Reasons) -> None:
        found.update((Fault(f"{path}.{field}".strip("."), reason, "admission"), None) for field, reason in reasons)

    add("metadata", _name(root, parts[0].value.get("metadata") or {}))
    for part in parts:
        for below, fields, rows in _table().get(part.type, []):
            for path, value in _below(part.value, part.path, below.split(".") if below else []):
                add(path, _fields(value, fields))
                add(path, _rows(value, {"root": root, "part": part.type}, rows))
        if special := _SPECIAL.get(part.type):
            add(part.path, special(part.value, root))
    return list(found)


def _fields(value: Object, fields: dict[str, str]) -> Reasons:
    for field, check in fields.items():
        for one in check.split(", "):
            yield from ((field + below, reason) for below, reason in _field(one, value.get(field)) if reason)


def _rows(value: Object, names: Object, rows: list[Row]) -> Reasons:
    names |= {"given": [key for key, item in value.items() if item is not None], "get": functools.partial(dig, value)}
    for field, condition, reason in rows:
        known = dict.fromkeys(_names(condition)) | value | _HELPERS | names
        if not eval(condition, known):
            yield field, reason.format_map(known) if "{" in reason else reason


def _names(condition: CodeType) -> Iterator[str]:
    yield from condition.co_names
    for constant in condition.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# ---- rules that need more than an expression


def _name(kind: str, metadata: Object) -> Reasons:
    name, namespace = metadata.get("name"), metadata.get("namespace")
    checks = {"Service": "service"} | dict.fromkeys(("Namespace", "LocalQueue", "JobSet", "PyTorchJob"), "label")
    if not name and not metadata.get("generateName"):
        yield "name", "is required"
    elif name and "Role" in kind:
        if not _HELPERS["path_segment"](name):
            yield "name", f'"{name}" must not contain "/" or "%"'
    elif name and (reason := CHECKS[checks.get(kind, "subdomain")](name)):
        yield "name", reason
    elif kind == "CronJob" and len(name or "") > 52:
        yield "name", "must be at most 52 characters, so that the names of its Jobs fit"
    if namespace and kind in CLUSTER_SCOPED:
        yield "namespace", f"must be empty: {kind} belongs to the cluster"
    elif namespace and (reason := CHECKS["label"](namespace)):
        yield "namespace", reason


def _template(policies: str, selected: Callable[[Object], Any] = lambda _: True) -> Callable[[Object, str], Reasons]:
    """Return the rule of an owner of pods: its selector fits its template, and the restart policy is one of these."""

    def rule(spec: Object, _root: str) -> Reasons:
        selector, labels, pod = spec.get("selector"), dig(spec, "template.metadata.labels"), dig(spec, "template.spec")
        if selected(spec) and selector is not None:
            wanted, expressions = selector.get("matchLabels"), selector.get("matchExpressions") or []
            if not wanted and not expressions:
                yield "selector", "must not be empty"
            elif all(item.get("key") and item.get("operator") for item in expressions):
                if not matches(selector, labels):
                    yield "template.metadata.labels", f"{labels or {}} must match the selector {wanted or selector}"
        if pod is None:
            yield "template.spec", "is required"
            return
        policy = pod.get("restartPolicy")
        if (policy or "Always") not in policies.split():
            given = f'"{policy or "Always"}" must be {policies.replace(" ", " or ")} here'
            yield "template.spec.restartPolicy", given + ("" if policy else "; the default is Always")
        if pod.get("activeDeadlineSeconds") and policies == "Always":
            yield "template.spec.activeDeadlineSeconds", "must not be set here"

    return rule


def _pod(value: Object, _root: str) -> Reasons:
    if (policy := dig(value, "spec.restartPolicy", "Always")) not in ("Always", "OnFailure", "Never"):
        yield "spec.restartPolicy", f'"{policy}" must be Always or OnFailure or Never here'


def _pod_spec(spec: Object, root: str) -> Reasons:
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    containers, first = spec.get("containers") or [], spec.get("initContainers") or []
    if name := _twice([item.get("name") for item in [*first, *containers]]):
        yield "containers", f'the container name "{name}" stands twice'
    ports = [port for item in containers for port in item.get("ports") or [] if port.get("hostPort")]
    if port := _twice([(p.get("protocol") or "TCP", p.get("hostIP") or "", p["hostPort"]) for p in ports]):
        yield "containers", f"the host port {port[2]} stands twice"
    if spec.get("hostNetwork") and any(port["hostPort"] != port.get("containerPort") for port in ports):
        yield "containers", "hostPort must equal containerPort with hostNetwork"
    for key, items in (("initContainers", first), ("containers", containers)):
        for index, item in enumerate(items):
            at, policy = f"{key}[{index}]", item.get("restartPolicy")
            # The API server does not look for the volumes of a StatefulSet's mounts: claims are added when pods are made.
            for number, mount in enumerate(item.get("volumeMounts") or []):
                if mount.get("name") and mount["name"] not in volumes and root != "StatefulSet":
                    yield f"{at}.volumeMounts[{number}].name", f'no volume is named "{mount["name"]}"'
            if policy and (key == "containers" or policy != "Always"):
                yield f"{at}.restartPolicy", "must be Always on an init container and must not be set on others"
            for hook in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
                if key == "initContainers" and policy != "Always" and item.get(hook):
                    yield f"{at}.{hook}", "an init container must not have probes and lifecycle hooks"


def _resources(value: Object, _root: str) -> Reasons:
    limits, requests = value.get("limits") or {}, value.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if reason := _key(name):
                yield f"{part}.{name}", reason
            if not re.fullmatch(r"cpu|memory|(ephemeral-)?storage|hugepages-.*|.*/.*", name):
                hint = f"others need a prefix such as example.com/{name}"
                yield f"{part}.{name}", f'"{name}" is no standard resource; {hint}'
            if quantity(amount) < 0:
                yield f"{part}.{name}", f"{amount} must not be negative"
    for name, amount in requests.items():
        if name in limits and quantity(amount) > quantity(limits[name]):
            yield f"requests.{name}", f"{amount} must not exceed the limit {limits[name]}"
        if "/" in name and "kubernetes.io/" not in name and name not in limits:
            yield f"limits.{name}", "an extended resource needs a limit that equals its request"


def _job(spec: Object, root: str) -> Reasons:
    yield from _template("Never OnFailure", lambda spec: spec.get("manualSelector"))(spec, root)
    pod = dig(spec, "template.spec", {})
    names = {item.get("name") for key in ("containers", "initContainers") for item in pod.get(key) or []}
    for index, rule in enumerate(dig(spec, "podFailurePolicy.rules", [])):
        if (name := dig(rule, "onExitCodes.containerName")) and name not in names:
            yield f"podFailurePolicy.rules[{index}].onExitCodes.containerName", f'no container is named "{name}"'


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret(value: Object, _root: str) -> Reasons:
    data, plain, kind = value.get("data") or {}, value.get("stringData") or {}, value.get("type") or "Opaque"
    for key in _SECRET_KEYS.get(kind, ()):
        if key not in data and key not in plain:
            yield f"data[{key}]", f"is required for the type {kind}"
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & {*data, *plain}:
        yield "data", f"needs username or password for the type {kind}"
    if kind == "kubernetes.io/dockerconfigjson" and ".dockerconfigjson" in {*data, *plain}:
        encoded = base64.b64decode(data.get(".dockerconfigjson") or "").decode(errors="replace")
        text = plain.get(".dockerconfigjson") or encoded
        if not text.lstrip().startswith("{"):
            yield "data[.dockerconfigjson]", "must be JSON"
    if kind == "kubernetes.io/service-account-token":
        if not (dig(value, "metadata.annotations") or {}).get("kubernetes.io/service-account.name"):
            yield "metadata.annotations", "needs kubernetes.io/service-account.name"


_SPECIAL: dict[str, Callable[[Object, str], Reasons]] = {
    **dict.fromkeys(("DeploymentSpec", "ReplicaSetSpec", "DaemonSetSpec", "StatefulSetSpec"), _template("Always")),
    "Pod": _pod,
    "JobSpec": _job,
    "ReplicaSpec": _template("Always OnFailure Never", lambda _: False),
    "PodSpec": _pod_spec,
    "ResourceRequirements": _resources,
    "Secret": _secret,
}


def image_is_valid(image: str) -> bool:
    """Return True if a container runtime can read the image reference."""
    part = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
    pattern = rf"([A-Za-z0-9.-]+(:[0-9]+)?/)?{part}(/{part})*(:[\w][\w.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
    return bool(re.fullmatch(pattern, image))
