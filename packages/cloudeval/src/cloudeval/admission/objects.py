"""Validation of whole objects by kind, after their structure has been checked against the schema."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable
from typing import Any

from cloudeval.admission.pods import PROTOCOLS, check_pod_spec, path_segment
from cloudeval.admission.schedules import cron_fault
from cloudeval.schema import quantity
from cloudeval.values import SERVICE, Faults, is_ip, matches

Object = dict[str, Any]

CLUSTER_SCOPED = {
    "Namespace",
    "Node",
    "PersistentVolume",
    "StorageClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "IngressClass",
    "CustomResourceDefinition",
    "RuntimeClass",
    "ResourceFlavor",
    "ClusterQueue",
    "WorkloadPriorityClass",
    "APIService",
    "CSIDriver",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "CertificateSigningRequest",
    "FlowSchema",
    "PriorityLevelConfiguration",
    "VolumeAttachment",
}
_ALWAYS = ("Always",)
_FINISH = ("Never", "OnFailure")


def check_object(value: Object) -> Faults:
    """Return the faults of one object whose structure has been checked."""
    found = Faults()
    kind, metadata = value["kind"], value.get("metadata") or {}
    _metadata(kind, metadata, found)
    if check := _KINDS.get(kind):
        check(value, found)
    return found


def _metadata(kind: str, metadata: Object, found: Faults) -> None:
    name = metadata.get("name") or ""
    if not name and not metadata.get("generateName"):
        found.add("metadata.name", "is required")
    elif name and kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        found.require(path_segment(name), "metadata.name", f'"{name}" must not contain "/" or "%"')
    elif name and kind in ("Service",):
        found.require(
            len(name) <= 63 and SERVICE.fullmatch(name),
            "metadata.name",
            f'"{name}" must be at most 63 lower-case letters, digits or "-" and start with a letter',
        )
    elif name and kind in ("Namespace", "LocalQueue", "JobSet", "PyTorchJob"):
        found.label_name(name, "metadata.name")
    elif name:
        found.subdomain(name, "metadata.name")
        if kind == "CronJob":
            found.require(
                len(name) <= 52, "metadata.name", "must be at most 52 characters, so that the names of its Jobs fit"
            )
    if kind in CLUSTER_SCOPED:
        found.require(
            not metadata.get("namespace"), "metadata.namespace", f"must be empty: {kind} belongs to the cluster"
        )
    elif metadata.get("namespace"):
        found.label_name(metadata["namespace"], "metadata.namespace")
    found.labels(metadata.get("labels"), "metadata.labels")
    for key in metadata.get("annotations") or {}:
        found.qualified(key.lower(), f"metadata.annotations.{key}")
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        found.require(
            "/" in finalizer or finalizer in ("orphan", "foregroundDeletion"),
            f"metadata.finalizers[{index}]",
            f'"{finalizer}" needs a domain prefix',
        )


def _template(spec: Object, path: str, policies: tuple[str, ...], found: Faults, selected: bool = True) -> None:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    found.labels(labels, f"{path}.template.metadata.labels")
    if selected and spec.get("selector") is not None:
        selector = spec["selector"]
        found.selector(selector, f"{path}.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            found.add(f"{path}.selector", "must not be empty")
        elif not any(fault.path.startswith(f"{path}.selector") for fault in found) and not matches(selector, labels):
            found.add(
                f"{path}.template.metadata.labels",
                f"{labels or {}} must match the selector {selector.get('matchLabels') or selector}",
            )
    if template.get("spec") is None:
        found.add(f"{path}.template.spec", "is required")
    else:
        check_pod_spec(template["spec"], f"{path}.template.spec", policies, found)
        if policies != _ALWAYS and not selected:
            return
        found.require(
            not template["spec"].get("activeDeadlineSeconds") or policies != _ALWAYS,
            f"{path}.template.spec.activeDeadlineSeconds",
            "must not be set here",
        )


def _count_or_percent(value: Any, path: str, found: Faults) -> float:
    """Check an integer or percentage and return it as a number."""
    if isinstance(value, str):
        if not found.require(
            re.fullmatch(r"[0-9]+%", value), path, f'"{value}" must be an integer or a percentage such as 25%'
        ):
            return 1
        found.require(
            int(value[:-1]) <= 100 or not path.endswith("maxUnavailable"), path, "must not be greater than 100%"
        )
        return float(value[:-1])
    found.at_least(value, 0, path)
    return float(value)


def _deployment(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.at_least(spec.get("replicas"), 0, "spec.replicas")
    found.at_least(spec.get("minReadySeconds"), 0, "spec.minReadySeconds")
    found.at_least(spec.get("revisionHistoryLimit"), 0, "spec.revisionHistoryLimit")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None:
        found.require(
            deadline > (spec.get("minReadySeconds") or 0),
            "spec.progressDeadlineSeconds",
            "must be greater than minReadySeconds",
        )
    elif (spec.get("minReadySeconds") or 0) >= 600:
        found.add("spec.progressDeadlineSeconds", "must be greater than minReadySeconds")
    strategy = spec.get("strategy") or {}
    found.one_of(strategy.get("type"), ("Recreate", "RollingUpdate"), "spec.strategy.type")
    rolling = strategy.get("rollingUpdate")
    if rolling is not None:
        if strategy.get("type") == "Recreate":
            found.add("spec.strategy.rollingUpdate", "must not be set when the type is Recreate")
        amounts = [
            _count_or_percent(rolling[key], f"spec.strategy.rollingUpdate.{key}", found)
            if rolling.get(key) is not None
            else 25
            for key in ("maxUnavailable", "maxSurge")
        ]
        found.require(any(amounts), "spec.strategy.rollingUpdate.maxUnavailable", "must not be 0 when maxSurge is 0")
    _template(spec, "spec", _ALWAYS, found)


def _replica_set(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.at_least(spec.get("replicas"), 0, "spec.replicas")
    _template(spec, "spec", _ALWAYS, found)


def _daemon_set(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    strategy = spec.get("updateStrategy") or {}
    found.one_of(strategy.get("type"), ("RollingUpdate", "OnDelete"), "spec.updateStrategy.type")
    rolling = strategy.get("rollingUpdate") or {}
    if "maxUnavailable" in rolling or "maxSurge" in rolling:
        unavailable = _count_or_percent(
            rolling.get("maxUnavailable", 1), "spec.updateStrategy.rollingUpdate.maxUnavailable", found
        )
        surge = _count_or_percent(rolling.get("maxSurge", 0), "spec.updateStrategy.rollingUpdate.maxSurge", found)
        found.require(
            unavailable or surge, "spec.updateStrategy.rollingUpdate.maxUnavailable", "must not be 0 when maxSurge is 0"
        )
        if surge and "maxUnavailable" in rolling:
            found.require(
                not unavailable, "spec.updateStrategy.rollingUpdate.maxSurge", "must be 0 unless maxUnavailable is 0"
            )
    _template(spec, "spec", _ALWAYS, found)


def _stateful_set(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.at_least(spec.get("replicas"), 0, "spec.replicas")
    found.one_of(spec.get("podManagementPolicy"), ("OrderedReady", "Parallel"), "spec.podManagementPolicy")
    strategy = spec.get("updateStrategy") or {}
    found.one_of(strategy.get("type"), ("RollingUpdate", "OnDelete"), "spec.updateStrategy.type")
    found.at_least(
        (strategy.get("rollingUpdate") or {}).get("partition"), 0, "spec.updateStrategy.rollingUpdate.partition"
    )
    claims = {(claim.get("metadata") or {}).get("name"): claim for claim in spec.get("volumeClaimTemplates") or []}
    template = (spec.get("template") or {}).get("spec") or {}
    before = len(found)
    _template(spec, "spec", _ALWAYS, found)
    # The API server does not look for the volumes of a StatefulSet's mounts: claims are added when pods are made.
    unknown = [fault for fault in found[before:] if "no volume is named" in fault.reason and template]
    for fault in unknown:
        found.remove(fault)
    for name, claim in claims.items():
        for mode in (claim.get("spec") or {}).get("accessModes") or []:
            found.one_of(
                mode,
                ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
                f"spec.volumeClaimTemplates.{name}.accessModes",
            )


def _job_spec(spec: Object, path: str, found: Faults) -> None:
    for key in (
        "parallelism",
        "completions",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        found.at_least(spec.get(key), 0, f"{path}.{key}")
    found.at_least(spec.get("activeDeadlineSeconds"), 0, f"{path}.activeDeadlineSeconds")
    mode = spec.get("completionMode")
    found.one_of(mode, ("NonIndexed", "Indexed"), f"{path}.completionMode")
    if mode == "Indexed":
        found.require(
            spec.get("completions") is not None, f"{path}.completions", "is required when completionMode is Indexed"
        )
        found.require(
            (spec.get("parallelism") or 0) <= 100_000,
            f"{path}.parallelism",
            "must be at most 100000 when completionMode is Indexed",
        )
    if spec.get("backoffLimitPerIndex") is not None:
        found.require(mode == "Indexed", f"{path}.backoffLimitPerIndex", "needs completionMode Indexed")
    if spec.get("maxFailedIndexes") is not None:
        found.require(
            spec.get("backoffLimitPerIndex") is not None,
            f"{path}.backoffLimitPerIndex",
            "is required with maxFailedIndexes",
        )
    if spec.get("selector") is not None:
        found.require(
            spec.get("manualSelector"),
            f"{path}.selector",
            "is generated by the server; it must not be given unless manualSelector is true",
        )
    found.one_of(spec.get("podReplacementPolicy"), ("TerminatingOrFailed", "Failed"), f"{path}.podReplacementPolicy")
    policy = spec.get("podFailurePolicy")
    if policy is not None:
        _pod_failure_policy(spec, policy, path, found)
    if spec.get("successPolicy") is not None:
        found.require(mode == "Indexed", f"{path}.successPolicy", "needs completionMode Indexed")
        found.require(spec["successPolicy"].get("rules"), f"{path}.successPolicy.rules", "is required")
    _template(spec, path, _FINISH, found, selected=bool(spec.get("manualSelector")))


def _pod_failure_policy(spec: Object, policy: Object, path: str, found: Faults) -> None:
    template = (spec.get("template") or {}).get("spec") or {}
    found.require(
        template.get("restartPolicy") == "Never",
        f"{path}.template.spec.restartPolicy",
        "must be Never with podFailurePolicy",
    )
    names = {c.get("name") for key in ("containers", "initContainers") for c in template.get(key) or []}
    for index, rule in enumerate(policy.get("rules") or []):
        at = f"{path}.podFailurePolicy.rules[{index}]"
        found.one_of(rule.get("action"), ("FailJob", "FailIndex", "Ignore", "Count"), f"{at}.action")
        found.require(
            (rule.get("onExitCodes") is None) != (not rule.get("onPodConditions")),
            at,
            "needs either onExitCodes or onPodConditions",
        )
        if codes := rule.get("onExitCodes"):
            found.one_of(codes.get("operator"), ("In", "NotIn"), f"{at}.onExitCodes.operator")
            found.require(codes.get("values"), f"{at}.onExitCodes.values", "is required")
            found.require(
                codes.get("operator") != "In" or 0 not in (codes.get("values") or []),
                f"{at}.onExitCodes.values",
                "must not contain 0 with In",
            )
            found.require(
                (codes.get("values") or []) == sorted(set(codes.get("values") or [])),
                f"{at}.onExitCodes.values",
                "must be in ascending order without duplicates",
            )
            if codes.get("containerName"):
                found.require(
                    codes["containerName"] in names,
                    f"{at}.onExitCodes.containerName",
                    f'no container is named "{codes["containerName"]}"',
                )


def _job(value: Object, found: Faults) -> None:
    name = (value.get("metadata") or {}).get("name") or ""
    _job_spec(value.get("spec") or {}, "spec", found)
    if (value.get("spec") or {}).get("completionMode") == "Indexed":
        found.require(len(name) <= 61, "metadata.name", "must leave room for the index in the pods' host names")


def _cron_job(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    if not spec.get("schedule"):
        found.add("spec.schedule", "is required")
    elif fault := cron_fault(spec["schedule"]):
        found.add("spec.schedule", f'"{spec["schedule"]}": {fault}')
    if (zone := spec.get("timeZone")) is not None:
        found.require(_is_time_zone(zone), "spec.timeZone", f'"{zone}" is no IANA time zone')
    found.one_of(spec.get("concurrencyPolicy"), ("Allow", "Forbid", "Replace"), "spec.concurrencyPolicy")
    for key in ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        found.at_least(spec.get(key), 0, f"spec.{key}")
    template = spec.get("jobTemplate") or {}
    found.labels((template.get("metadata") or {}).get("labels"), "spec.jobTemplate.metadata.labels")
    job = template.get("spec") or {}
    if job.get("manualSelector"):
        found.add("spec.jobTemplate.spec.manualSelector", "must not be set in a CronJob")
    _job_spec({**job, "selector": None, "manualSelector": None}, "spec.jobTemplate.spec", found)
    if job.get("selector") is not None:
        found.add("spec.jobTemplate.spec.selector", "is generated by the server; it must not be given")


def _is_time_zone(zone: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return zone not in ("", "Local")


def _pod(value: Object, found: Faults) -> None:
    if value.get("spec") is None:
        found.add("spec", "is required")
        return
    check_pod_spec(value["spec"], "spec", ("Always", "OnFailure", "Never"), found)
    hostname = value["spec"].get("hostname")
    if hostname and len(hostname) > 63:
        found.add("spec.hostname", "must be at most 63 characters")


def _service(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    kind = spec.get("type") or "ClusterIP"
    found.one_of(kind, ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), "spec.type")
    found.labels(spec.get("selector"), "spec.selector")
    headless = spec.get("clusterIP") == "None"
    ports = spec.get("ports") or []
    if kind == "ExternalName":
        if found.require(spec.get("externalName"), "spec.externalName", "is required for ExternalName"):
            found.subdomain(spec["externalName"].rstrip("."), "spec.externalName")
        found.require(not spec.get("clusterIP"), "spec.clusterIP", "must not be set for ExternalName")
    else:
        found.require(ports or headless, "spec.ports", "is required")
    if headless:
        found.require(kind == "ClusterIP", "spec.clusterIP", f"must not be None for {kind}")
    elif spec.get("clusterIP"):
        found.require(is_ip(spec["clusterIP"]), "spec.clusterIP", "must be empty, None, or an IP address")
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        found.port(port.get("port"), f"{at}.port")
        found.one_of(port.get("protocol"), PROTOCOLS, f"{at}.protocol")
        target = port.get("targetPort")
        if target not in (None, 0, ""):
            found.port_or_name(target, f"{at}.targetPort")
        if len(ports) > 1:
            found.require(port.get("name"), f"{at}.name", "is required with several ports")
        if port.get("name"):
            found.label_name(port["name"], f"{at}.name")
        if port.get("nodePort"):
            found.require(kind in ("NodePort", "LoadBalancer"), f"{at}.nodePort", f"must not be set for {kind}")
            found.require(
                30000 <= port["nodePort"] <= 32767,
                f"{at}.nodePort",
                f"{port['nodePort']} must be between 30000 and 32767",
            )
    found.unique([port.get("name") for port in ports], "spec.ports", "port name")
    found.unique(
        [(port.get("port"), port.get("protocol") or "TCP") for port in ports], "spec.ports", "port and protocol"
    )
    found.one_of(spec.get("sessionAffinity"), ("None", "ClientIP"), "spec.sessionAffinity")
    for key in ("externalTrafficPolicy", "internalTrafficPolicy"):
        found.one_of(spec.get(key), ("Cluster", "Local"), f"spec.{key}")
    if spec.get("externalTrafficPolicy"):
        found.require(kind in ("NodePort", "LoadBalancer"), "spec.externalTrafficPolicy", f"must not be set for {kind}")
    for index, address in enumerate(spec.get("externalIPs") or []):
        found.require(is_ip(address), f"spec.externalIPs[{index}]", f'"{address}" must be an IP address')


def _config_map(value: Object, found: Faults) -> None:
    data, binary = value.get("data") or {}, value.get("binaryData") or {}
    for part, entries in (("data", data), ("binaryData", binary)):
        for key in entries:
            found.config_key(key, f"{part}.{key}")
    for key in set(data) & set(binary):
        found.add(f"binaryData.{key}", "stands in data, too")
    size = sum(len(str(item or "")) for item in [*data.values(), *binary.values()])
    found.require(size <= 1024 * 1024, "", "the data must be at most 1 MiB")


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret(value: Object, found: Faults) -> None:
    data, plain = value.get("data") or {}, value.get("stringData") or {}
    for part, entries in (("data", data), ("stringData", plain)):
        for key in entries:
            found.config_key(key, f"{part}.{key}")
    merged = {**data, **plain}
    kind = value.get("type") or "Opaque"
    for key in _SECRET_KEYS.get(kind, ()):
        found.require(key in merged, f"data[{key}]", f"is required for the type {kind}")
    if kind == "kubernetes.io/basic-auth":
        found.require(
            "username" in merged or "password" in merged,
            "data",
            "needs username or password for the type kubernetes.io/basic-auth",
        )
    if kind == "kubernetes.io/dockerconfigjson" and ".dockerconfigjson" in merged:
        text = plain.get(".dockerconfigjson")
        if text is None:
            text = base64.b64decode(data[".dockerconfigjson"] or "").decode(errors="replace")
        found.require(text.lstrip().startswith("{"), "data[.dockerconfigjson]", "must be JSON")
    if kind == "kubernetes.io/service-account-token":
        annotations = (value.get("metadata") or {}).get("annotations") or {}
        found.require(
            annotations.get("kubernetes.io/service-account.name"),
            "metadata.annotations",
            "needs kubernetes.io/service-account.name",
        )


def _role(value: Object, found: Faults) -> None:
    for index, rule in enumerate(value.get("rules") or []):
        at = f"rules[{index}]"
        found.require(rule.get("verbs"), f"{at}.verbs", "is required")
        if rule.get("nonResourceURLs"):
            found.require(value["kind"] == "ClusterRole", f"{at}.nonResourceURLs", "must not stand in a Role")
            found.require(
                not rule.get("resources") and not rule.get("apiGroups"),
                at,
                "must name either resources or nonResourceURLs",
            )
        else:
            found.require(rule.get("apiGroups"), f"{at}.apiGroups", 'is required; the core group is ""')
            found.require(rule.get("resources"), f"{at}.resources", "is required")


def _binding(value: Object, found: Faults) -> None:
    ref = value.get("roleRef") or {}
    found.require(
        ref.get("apiGroup") in ("rbac.authorization.k8s.io", None, ""),
        "roleRef.apiGroup",
        f'"{ref.get("apiGroup")}" must be rbac.authorization.k8s.io',
    )
    allowed = ("Role", "ClusterRole") if value["kind"] == "RoleBinding" else ("ClusterRole",)
    found.require(ref.get("kind") in allowed, "roleRef.kind", f'"{ref.get("kind")}" must be {" or ".join(allowed)}')
    if found.require(ref.get("name"), "roleRef.name", "is required"):
        found.require(path_segment(ref["name"]), "roleRef.name", 'must not contain "/" or "%"')
    for index, subject in enumerate(value.get("subjects") or []):
        at = f"subjects[{index}]"
        kind, group = subject.get("kind"), subject.get("apiGroup") or ""
        found.require(
            kind in ("User", "Group", "ServiceAccount"), f"{at}.kind", f'"{kind}" must be User, Group or ServiceAccount'
        )
        found.require(subject.get("name"), f"{at}.name", "is required")
        if kind == "ServiceAccount":
            found.require(not group, f"{at}.apiGroup", "must be empty for a ServiceAccount")
            if subject.get("name"):
                found.subdomain(subject["name"], f"{at}.name")
            if value["kind"] == "ClusterRoleBinding":
                found.require(subject.get("namespace"), f"{at}.namespace", "is required for a ServiceAccount")
        elif kind in ("User", "Group"):
            found.require(
                group in ("", "rbac.authorization.k8s.io"), f"{at}.apiGroup", "must be rbac.authorization.k8s.io"
            )


def _network_policy(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.selector(spec.get("podSelector"), "spec.podSelector")
    for index, kind in enumerate(spec.get("policyTypes") or []):
        found.one_of(kind, ("Ingress", "Egress"), f"spec.policyTypes[{index}]")
    for direction, peers_key in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or []):
            at = f"spec.{direction}[{index}]"
            for number, port in enumerate((rule or {}).get("ports") or []):
                here = f"{at}.ports[{number}]"
                found.one_of(port.get("protocol"), PROTOCOLS, f"{here}.protocol")
                if port.get("port") is not None:
                    found.port_or_name(port["port"], f"{here}.port")
                if port.get("endPort") is not None:
                    found.require(
                        isinstance(port.get("port"), int) and port["endPort"] >= port["port"],
                        f"{here}.endPort",
                        "needs a numeric port that is not greater",
                    )
            for number, peer in enumerate((rule or {}).get(peers_key) or []):
                _peer(peer or {}, f"{at}.{peers_key}[{number}]", found)


def _peer(peer: Object, at: str, found: Faults) -> None:
    given = [key for key in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(key) is not None]
    found.require(given, at, "needs podSelector, namespaceSelector or ipBlock")
    found.selector(peer.get("podSelector"), f"{at}.podSelector")
    found.selector(peer.get("namespaceSelector"), f"{at}.namespaceSelector")
    if (block := peer.get("ipBlock")) is not None:
        found.require(len(given) == 1, at, "ipBlock excludes selectors")
        found.require(
            "/" in str(block.get("cidr")), f"{at}.ipBlock.cidr", f'"{block.get("cidr")}" needs a mask such as /24'
        )
        try:
            network = ipaddress.ip_network(block.get("cidr") or "", strict=False)
        except ValueError:
            found.add(f"{at}.ipBlock.cidr", f'"{block.get("cidr")}" is no CIDR block')
            return
        for index, inner in enumerate(block.get("except") or []):
            try:
                part = ipaddress.ip_network(inner, strict=False)
                inside = part.version == network.version and part.subnet_of(network) and part != network  # type: ignore[arg-type]
            except ValueError:
                inside = False
            found.require(
                inside, f"{at}.ipBlock.except[{index}]", f'"{inner}" must be a block strictly inside {network}'
            )


def _claim(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.require(spec.get("accessModes"), "spec.accessModes", "is required")
    for index, mode in enumerate(spec.get("accessModes") or []):
        found.one_of(
            mode, ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"), f"spec.accessModes[{index}]"
        )
    storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if found.require(storage is not None, "spec.resources.requests.storage", "is required"):
        found.require(quantity(storage or 0) > 0, "spec.resources.requests.storage", "must be greater than zero")
    found.one_of(spec.get("volumeMode"), ("Filesystem", "Block"), "spec.volumeMode")
    if spec.get("selector") is not None:
        found.selector(spec["selector"], "spec.selector")


def _ingress(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    found.require(spec.get("rules") or spec.get("defaultBackend"), "spec", "needs rules or defaultBackend")
    for index, rule in enumerate(spec.get("rules") or []):
        host = rule.get("host")
        if host:
            found.subdomain(host.removeprefix("*."), f"spec.rules[{index}].host")
        for number, path in enumerate((rule.get("http") or {}).get("paths") or []):
            at = f"spec.rules[{index}].http.paths[{number}]"
            found.require(
                path.get("pathType") in ("Exact", "Prefix", "ImplementationSpecific"),
                f"{at}.pathType",
                "must be Exact, Prefix or ImplementationSpecific",
            )
            if path.get("pathType") in ("Exact", "Prefix"):
                found.require(str(path.get("path") or "").startswith("/"), f"{at}.path", "must start with /")
            service = (path.get("backend") or {}).get("service") or {}
            if service:
                port = service.get("port") or {}
                found.require(
                    (port.get("number") is None) != (not port.get("name")),
                    f"{at}.backend.service.port",
                    "needs either number or name",
                )


def _budget(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    given = [key for key in ("minAvailable", "maxUnavailable") if spec.get(key) is not None]
    found.require(len(given) <= 1, "spec", "minAvailable and maxUnavailable exclude each other")
    for key in given:
        _count_or_percent(spec[key], f"spec.{key}", found)
    found.selector(spec.get("selector"), "spec.selector")


def _autoscaler(value: Object, found: Faults) -> None:
    spec = value.get("spec") or {}
    least = spec.get("minReplicas", 1) or 1
    found.at_least(spec.get("minReplicas"), 1, "spec.minReplicas")
    found.at_least(spec.get("maxReplicas"), 1, "spec.maxReplicas")
    if isinstance(spec.get("maxReplicas"), int):
        found.require(spec["maxReplicas"] >= least, "spec.maxReplicas", "must not be less than minReplicas")
    target = spec.get("scaleTargetRef") or {}
    found.require(target.get("kind"), "spec.scaleTargetRef.kind", "is required")
    found.require(target.get("name"), "spec.scaleTargetRef.name", "is required")


def _quota(value: Object, found: Faults) -> None:
    for key, amount in ((value.get("spec") or {}).get("hard") or {}).items():
        known = (
            "/" in key
            or key.split(".")[0] in ("cpu", "memory", "requests", "limits", "count", "storage", "ephemeral-storage")
            or key
            in (
                "pods",
                "services",
                "secrets",
                "configmaps",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "resourcequotas",
                "services.nodeports",
                "services.loadbalancers",
            )
        )
        found.require(known, f"spec.hard.{key}", f'"{key}" is no standard resource for quota')
        found.require(quantity(amount) >= 0, f"spec.hard.{key}", "must not be negative")


def _priority_class(value: Object, found: Faults) -> None:
    name = (value.get("metadata") or {}).get("name") or ""
    found.require(not name.startswith("system-"), "metadata.name", "must not start with system-")
    found.require((value.get("value") or 0) <= 1_000_000_000, "value", "must be at most 1000000000")
    found.one_of(value.get("preemptionPolicy"), ("Never", "PreemptLowerPriority"), "preemptionPolicy")


_KINDS: dict[str, Callable[[Object, Faults], None]] = {
    "Pod": _pod,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "DaemonSet": _daemon_set,
    "StatefulSet": _stateful_set,
    "Job": _job,
    "CronJob": _cron_job,
    "Service": _service,
    "ConfigMap": _config_map,
    "Secret": _secret,
    "Role": _role,
    "ClusterRole": _role,
    "RoleBinding": _binding,
    "ClusterRoleBinding": _binding,
    "NetworkPolicy": _network_policy,
    "PersistentVolumeClaim": _claim,
    "Ingress": _ingress,
    "PodDisruptionBudget": _budget,
    "HorizontalPodAutoscaler": _autoscaler,
    "ResourceQuota": _quota,
    "PriorityClass": _priority_class,
}
