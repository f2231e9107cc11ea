"""Validation of pod specs, as the API server does it before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cloudeval.values import ENV_NAME, PATH_SEGMENT, Faults, is_ip

PROTOCOLS = ("TCP", "UDP", "SCTP")
_VOLUME_SOURCES = (
    "emptyDir",
    "hostPath",
    "configMap",
    "secret",
    "downwardAPI",
    "projected",
    "persistentVolumeClaim",
    "nfs",
    "csi",
    "ephemeral",
    "iscsi",
    "gitRepo",
    "image",
    "fc",
    "cephfs",
    "rbd",
    "glusterfs",
    "awsElasticBlockStore",
    "gcePersistentDisk",
    "azureDisk",
    "azureFile",
    "cinder",
    "flexVolume",
    "flocker",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "scaleIO",
    "storageos",
    "vsphereVolume",
)
_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.podIP",
    "status.hostIPs",
    "status.podIPs",
    "metadata.labels",
    "metadata.annotations",
)
_RESOURCES = (
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
)


def check_pod_spec(spec: dict[str, Any], path: str, restart_policies: tuple[str, ...], found: Faults) -> None:
    """Add the faults of a pod spec.

    Args:
        spec: The pod spec; its structure has been checked.
        path: Where it stands.
        restart_policies: The policies that the owner allows.
        found: The list that faults are added to.
    """
    policy = spec.get("restartPolicy") or "Always"
    if policy not in restart_policies:
        found.add(
            f"{path}.restartPolicy",
            f'"{policy}" must be {" or ".join(restart_policies)} here'
            + ("" if spec.get("restartPolicy") else "; the default is Always"),
        )
    found.one_of(
        spec.get("dnsPolicy"), ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"), f"{path}.dnsPolicy"
    )
    if spec.get("dnsPolicy") == "None":
        found.require(
            (spec.get("dnsConfig") or {}).get("nameservers"), f"{path}.dnsConfig", "is required with dnsPolicy None"
        )
    found.at_least(spec.get("activeDeadlineSeconds"), 1, f"{path}.activeDeadlineSeconds")
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            found.label_name(spec[key], f"{path}.{key}")
    if spec.get("serviceAccountName"):
        found.subdomain(spec["serviceAccountName"], f"{path}.serviceAccountName")
    volumes = _volumes(spec, path, found)
    _containers(spec, path, volumes, found)
    _scheduling(spec, path, found)
    security = spec.get("securityContext") or {}
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        found.at_least(security.get(key), 0, f"{path}.securityContext.{key}")
    found.one_of(
        security.get("fsGroupChangePolicy"), ("OnRootMismatch", "Always"), f"{path}.securityContext.fsGroupChangePolicy"
    )
    found.labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    for index, alias in enumerate(spec.get("hostAliases") or []):
        found.require(is_ip(alias.get("ip") or ""), f"{path}.hostAliases[{index}].ip", "must be an IP address")
        for name in alias.get("hostnames") or []:
            found.subdomain(name, f"{path}.hostAliases[{index}].hostnames")


def _volumes(spec: dict[str, Any], path: str, found: Faults) -> dict[str, dict[str, Any]]:
    volumes: dict[str, dict[str, Any]] = {}
    for index, volume in enumerate(spec.get("volumes") or []):
        at = f"{path}.volumes[{index}]"
        name = volume.get("name")
        found.label_name(name, f"{at}.name")
        found.require(name not in volumes, f"{at}.name", f'the volume "{name}" stands twice')
        volumes[name] = volume
        sources = [key for key in _VOLUME_SOURCES if volume.get(key) is not None]
        if not sources:  # the server takes a volume without a source for an emptyDir
            volume["emptyDir"] = {}
        found.require(len(sources) <= 1, at, f"one volume must have one source, not {' and '.join(sources)}")
        for source in sources:
            _volume_source(source, volume[source], f"{at}.{source}", found)
    return volumes


def _volume_source(kind: str, source: dict[str, Any], at: str, found: Faults) -> None:
    match kind:
        case "hostPath":
            if found.require(source.get("path"), f"{at}.path", "is required"):
                found.require(".." not in source["path"].split("/"), f"{at}.path", 'must not contain ".."')
            found.one_of(
                source.get("type"),
                ("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"),
                f"{at}.type",
            )
        case "configMap":
            found.require(source.get("name"), f"{at}.name", "is required")
            _items(source, at, found)
        case "secret":
            found.require(source.get("secretName"), f"{at}.secretName", "is required")
            _items(source, at, found)
        case "downwardAPI":
            _mode(source.get("defaultMode"), f"{at}.defaultMode", found)
            _downward(source, at, found)
        case "persistentVolumeClaim":
            found.require(source.get("claimName"), f"{at}.claimName", "is required")
        case "projected":
            _mode(source.get("defaultMode"), f"{at}.defaultMode", found)
            for index, item in enumerate(source.get("sources") or []):
                inner = f"{at}.sources[{index}]"
                for key in ("configMap", "secret"):
                    if item.get(key) is not None:
                        found.require(item[key].get("name"), f"{inner}.{key}.name", "is required")
                        _items(item[key], f"{inner}.{key}", found)
                if item.get("downwardAPI") is not None:
                    _downward(item["downwardAPI"], f"{inner}.downwardAPI", found)
                if item.get("serviceAccountToken") is not None:
                    found.relative(item["serviceAccountToken"].get("path"), f"{inner}.serviceAccountToken.path")
                found.require(
                    len([key for key in item if item[key] is not None]) <= 1, inner, "one entry must have one source"
                )


def _items(source: dict[str, Any], at: str, found: Faults) -> None:
    _mode(source.get("defaultMode"), f"{at}.defaultMode", found)
    for index, item in enumerate(source.get("items") or []):
        found.require(item.get("key"), f"{at}.items[{index}].key", "is required")
        found.relative(item.get("path"), f"{at}.items[{index}].path")
        _mode(item.get("mode"), f"{at}.items[{index}].mode", found)


def _downward(source: dict[str, Any], at: str, found: Faults) -> None:
    for index, item in enumerate(source.get("items") or []):
        found.relative(item.get("path"), f"{at}.items[{index}].path")
        _mode(item.get("mode"), f"{at}.items[{index}].mode", found)
        found.require(
            item.get("fieldRef") or item.get("resourceFieldRef"),
            f"{at}.items[{index}]",
            "needs fieldRef or resourceFieldRef",
        )
        if item.get("fieldRef"):
            _field_ref(item["fieldRef"], f"{at}.items[{index}].fieldRef", found, volume=True)
        if item.get("resourceFieldRef"):
            found.require(
                item["resourceFieldRef"].get("containerName"),
                f"{at}.items[{index}].resourceFieldRef.containerName",
                "is required",
            )


def _mode(mode: Any, at: str, found: Faults) -> None:
    if mode is not None and not 0 <= mode <= 0o777:
        found.add(at, f"{mode} must be between 0 and 0777 (511)")


def _field_ref(ref: dict[str, Any], at: str, found: Faults, volume: bool = False) -> None:
    field = ref.get("fieldPath") or ""
    subscript = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", field)
    allowed = (
        ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
        if volume
        else _FIELDS[:9]
    )
    found.require(subscript or field in allowed, f"{at}.fieldPath", f'"{field}" is not supported here')


def all_containers(spec: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield path, container and whether it is an init container, init containers first."""
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or []):
            yield f"{path}.{key}[{index}]", container, key == "initContainers"


def _containers(spec: dict[str, Any], path: str, volumes: dict[str, dict[str, Any]], found: Faults) -> None:
    found.require(spec.get("containers"), f"{path}.containers", "at least one container is required")
    found.unique([c.get("name") for _, c, _ in all_containers(spec)], f"{path}.containers", "container name")
    host_ports = []
    for at, container, init in all_containers(spec, path):
        found.label_name(container.get("name"), f"{at}.name")
        image = container.get("image")
        if found.require(image, f"{at}.image", "is required"):
            found.require(image == str(image).strip(), f"{at}.image", "must not start or end with blanks")
        found.one_of(container.get("imagePullPolicy"), ("Always", "Never", "IfNotPresent"), f"{at}.imagePullPolicy")
        found.one_of(
            container.get("terminationMessagePolicy"),
            ("File", "FallbackToLogsOnError"),
            f"{at}.terminationMessagePolicy",
        )
        _ports(container, at, bool(spec.get("hostNetwork")), found)
        if not init:
            host_ports += [
                (p.get("protocol") or "TCP", p.get("hostIP") or "", p["hostPort"])
                for p in container.get("ports") or []
                if p.get("hostPort")
            ]
        _env(container, at, found)
        _mounts(container, at, volumes, found)
        _probes(container, at, init, found)
        _security(container, at, found)
        found.resources(container.get("resources"), f"{at}.resources")
    found.unique(host_ports, f"{path}.containers", "host port")


def _ports(container: dict[str, Any], at: str, host_network: bool, found: Faults) -> None:
    ports = container.get("ports") or []
    for index, port in enumerate(ports):
        here = f"{at}.ports[{index}]"
        if port.get("name") is not None:
            found.port_name(port["name"], f"{here}.name")
        found.port(port.get("containerPort"), f"{here}.containerPort")
        if port.get("hostPort"):
            found.port(port["hostPort"], f"{here}.hostPort")
            if host_network:
                found.require(
                    port["hostPort"] == port.get("containerPort"),
                    f"{here}.hostPort",
                    "must equal containerPort with hostNetwork",
                )
        found.one_of(port.get("protocol"), PROTOCOLS, f"{here}.protocol")
    found.unique([port.get("name") for port in ports], f"{at}.ports", "port name")


def _env(container: dict[str, Any], at: str, found: Faults) -> None:
    for index, entry in enumerate(container.get("env") or []):
        here = f"{at}.env[{index}]"
        name = entry.get("name")
        if found.require(name, f"{here}.name", "is required"):
            found.require(
                ENV_NAME.fullmatch(name),
                f"{here}.name",
                f'"{name}" must be letters, digits, "_", "-" or "." and not start with a digit',
            )
        source = entry.get("valueFrom")
        if source is None:
            continue
        found.require(not entry.get("value"), here, "value and valueFrom exclude each other")
        kinds = [key for key, value in source.items() if value is not None]
        found.require(len(kinds) == 1, f"{here}.valueFrom", "must have one source")
        for kind in ("configMapKeyRef", "secretKeyRef"):
            if source.get(kind) is not None:
                if found.require(source[kind].get("key"), f"{here}.valueFrom.{kind}.key", "is required"):
                    found.config_key(source[kind]["key"], f"{here}.valueFrom.{kind}.key")
                found.require(source[kind].get("name"), f"{here}.valueFrom.{kind}.name", "is required")
        if source.get("fieldRef") is not None:
            _field_ref(source["fieldRef"], f"{here}.valueFrom.fieldRef", found)
        if source.get("resourceFieldRef") is not None:
            resource = source["resourceFieldRef"].get("resource")
            found.require(
                resource in _RESOURCES or str(resource).startswith(("limits.hugepages-", "requests.hugepages-")),
                f"{here}.valueFrom.resourceFieldRef.resource",
                f'"{resource}" must be one of {", ".join(_RESOURCES)}',
            )
    for index, entry in enumerate(container.get("envFrom") or []):
        here = f"{at}.envFrom[{index}]"
        refs = [entry[key] for key in ("configMapRef", "secretRef") if entry.get(key) is not None]
        found.require(len(refs) == 1, here, "needs configMapRef or secretRef")
        for ref in refs:
            found.require(ref.get("name"), f"{here}.name", "is required")
        if entry.get("prefix"):
            found.require(ENV_NAME.fullmatch(entry["prefix"]), f"{here}.prefix", "must be a valid variable name")


def _mounts(container: dict[str, Any], at: str, volumes: dict[str, dict[str, Any]], found: Faults) -> None:
    mounts = container.get("volumeMounts") or []
    for index, mount in enumerate(mounts):
        here = f"{at}.volumeMounts[{index}]"
        found.require(mount.get("mountPath"), f"{here}.mountPath", "is required")
        if found.require(mount.get("name"), f"{here}.name", "is required"):
            found.require(mount["name"] in volumes, f"{here}.name", f'no volume is named "{mount["name"]}"')
        for key in ("subPath", "subPathExpr"):
            if mount.get(key):
                found.relative(mount[key], f"{here}.{key}")
        found.require(
            not (mount.get("subPath") and mount.get("subPathExpr")), here, "subPath and subPathExpr exclude each other"
        )
    found.unique([mount.get("mountPath") for mount in mounts], f"{at}.volumeMounts", "mountPath")


def _probes(container: dict[str, Any], at: str, init: bool, found: Faults) -> None:
    sidecar = init and container.get("restartPolicy") == "Always"
    if init:
        found.one_of(container.get("restartPolicy"), ("Always",), f"{at}.restartPolicy")
    else:
        found.require(not container.get("restartPolicy"), f"{at}.restartPolicy", "is for init containers only")
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(key)
        if probe is None:
            continue
        here = f"{at}.{key}"
        if init and not sidecar:
            found.add(here, "an init container must not have probes")
            continue
        _handler(probe, here, ("exec", "httpGet", "tcpSocket", "grpc"), found)
        for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
            found.at_least(probe.get(field), 0, f"{here}.{field}")
        if key != "readinessProbe" and probe.get("successThreshold"):
            found.require(probe["successThreshold"] == 1, f"{here}.successThreshold", "must be 1 here")
        if probe.get("terminationGracePeriodSeconds") is not None:
            found.require(
                key != "readinessProbe", f"{here}.terminationGracePeriodSeconds", "must not be set on a readiness probe"
            )
    lifecycle = container.get("lifecycle") or {}
    if lifecycle and init and not sidecar:
        found.add(f"{at}.lifecycle", "an init container must not have lifecycle hooks")
    for key, handler in lifecycle.items():
        if isinstance(handler, dict):
            _handler(handler, f"{at}.lifecycle.{key}", ("exec", "httpGet", "tcpSocket", "sleep"), found)


def _handler(handler: dict[str, Any], here: str, kinds: tuple[str, ...], found: Faults) -> None:
    given = [kind for kind in kinds if handler.get(kind) is not None]
    found.require(
        len(given) == 1, here, f"needs one handler of {', '.join(kinds)}" if not given else "must have one handler only"
    )
    for kind in given:
        detail = handler[kind]
        if kind == "exec":
            found.require(detail.get("command"), f"{here}.exec.command", "is required")
        elif kind in ("httpGet", "tcpSocket"):
            found.port_or_name(detail.get("port"), f"{here}.{kind}.port")
            found.one_of(detail.get("scheme"), ("HTTP", "HTTPS"), f"{here}.{kind}.scheme")
        elif kind == "grpc":
            found.port(detail.get("port"), f"{here}.grpc.port")


def _security(container: dict[str, Any], at: str, found: Faults) -> None:
    security = container.get("securityContext") or {}
    for key in ("runAsUser", "runAsGroup"):
        found.at_least(security.get(key), 0, f"{at}.securityContext.{key}")
    found.one_of(security.get("procMount"), ("Default", "Unmasked"), f"{at}.securityContext.procMount")
    if security.get("allowPrivilegeEscalation") is False:
        found.require(
            not security.get("privileged"),
            f"{at}.securityContext",
            "allowPrivilegeEscalation: false and privileged exclude each other",
        )
        added = (security.get("capabilities") or {}).get("add") or []
        found.require(
            not {"CAP_SYS_ADMIN"} & set(added),
            f"{at}.securityContext",
            "allowPrivilegeEscalation: false and CAP_SYS_ADMIN exclude each other",
        )


def _scheduling(spec: dict[str, Any], path: str, found: Faults) -> None:
    for index, toleration in enumerate(spec.get("tolerations") or []):
        at = f"{path}.tolerations[{index}]"
        operator = toleration.get("operator") or "Equal"
        found.one_of(operator, ("Equal", "Exists"), f"{at}.operator")
        if toleration.get("key"):
            found.qualified(toleration["key"], f"{at}.key")
        elif operator == "Equal":
            found.add(f"{at}.operator", "must be Exists when key is empty")
        if operator == "Exists":
            found.require(not toleration.get("value"), f"{at}.value", "must be empty with Exists")
        found.one_of(toleration.get("effect"), ("NoSchedule", "PreferNoSchedule", "NoExecute"), f"{at}.effect")
        if toleration.get("tolerationSeconds") is not None:
            found.require(
                toleration.get("effect") == "NoExecute", f"{at}.effect", "must be NoExecute with tolerationSeconds"
            )
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        at = f"{path}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        found.require(required.get("nodeSelectorTerms"), f"{at}.nodeSelectorTerms", "is required")
        for index, term in enumerate(required.get("nodeSelectorTerms") or []):
            _node_term(term, f"{at}.nodeSelectorTerms[{index}]", found)
    for index, item in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
        at = f"{path}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        found.require(1 <= (item.get("weight") or 0) <= 100, f"{at}.weight", "must be between 1 and 100")
        _node_term(item.get("preference") or {}, f"{at}.preference", found)
    for kind in ("podAffinity", "podAntiAffinity"):
        at = f"{path}.affinity.{kind}"
        terms = affinity.get(kind) or {}
        for index, term in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or []):
            _pod_term(term, f"{at}.requiredDuringSchedulingIgnoredDuringExecution[{index}]", found)
        for index, item in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
            here = f"{at}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
            found.require(1 <= (item.get("weight") or 0) <= 100, f"{here}.weight", "must be between 1 and 100")
            _pod_term(item.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm", found)
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or []):
        at = f"{path}.topologySpreadConstraints[{index}]"
        found.require((constraint.get("maxSkew") or 0) > 0, f"{at}.maxSkew", "must be greater than 0")
        found.require(constraint.get("topologyKey"), f"{at}.topologyKey", "is required")
        found.require(
            constraint.get("whenUnsatisfiable") in ("DoNotSchedule", "ScheduleAnyway"),
            f"{at}.whenUnsatisfiable",
            "must be DoNotSchedule or ScheduleAnyway",
        )
        found.selector(constraint.get("labelSelector"), f"{at}.labelSelector")


def _node_term(term: dict[str, Any], at: str, found: Faults) -> None:
    for index, item in enumerate(term.get("matchExpressions") or []):
        here = f"{at}.matchExpressions[{index}]"
        found.qualified(item.get("key") or "", f"{here}.key")
        found.expression(item, here, ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))


def _pod_term(term: dict[str, Any], at: str, found: Faults) -> None:
    if found.require(term.get("topologyKey"), f"{at}.topologyKey", "is required"):
        found.qualified(term["topologyKey"], f"{at}.topologyKey")
    found.selector(term.get("labelSelector"), f"{at}.labelSelector")


def image_is_valid(image: str) -> bool:
    """Return True if a container runtime can read the image reference."""
    part = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
    return bool(
        re.fullmatch(
            rf"([A-Za-z0-9.-]+(:[0-9]+)?/)?{part}(/{part})*(:[\w][\w.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?", image
        )
    )


def path_segment(name: str) -> bool:
    """Return True if the name can stand in a URL path, as names of roles must."""
    return bool(PATH_SEGMENT.fullmatch(name)) and name not in (".", "..")
