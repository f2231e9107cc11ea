"""RBAC: may a subject do something? As Kubernetes' RBAC authorizer decides it."""

from __future__ import annotations

from typing import Any

from cloudeval.store import Store
from cloudeval.values import matches

Object = dict[str, Any]


def may(
    store: Store, subject: str, verb: str, resource: str, *, namespace: str = "", group: str = "", name: str = ""
) -> bool:
    """Return True if bindings allow the request.

    Args:
        store: The objects.
        subject: `user:ann`, `group:ops`, or `sa:namespace/name`.
        verb: For example `get`.
        resource: For example `pods` or `pods/log`; a path such as `/healthz` asks for a non-resource URL.
        namespace: Namespace of the request; empty for cluster-scoped ones.
        group: API group, empty for the core group.
        name: Name of one object, for rules with resourceNames.
    """
    for binding in store.list("ClusterRoleBinding"):
        if _binds(binding, subject) and _role_allows(store, binding, verb, resource, group, name):
            return True
    return any(
        _binds(binding, subject) and _role_allows(store, binding, verb, resource, group, name)
        for binding in store.list("RoleBinding", namespace)
        if namespace
    )


def _binds(binding: Object, subject: str) -> bool:
    kind, _, name = subject.partition(":")
    for item in binding.get("subjects") or []:
        if kind == "user" and item["kind"] == "User" and item["name"] == name:
            return True
        if kind == "group" and item["kind"] == "Group" and item["name"] == name:
            return True
        if kind == "sa":
            namespace, _, account = name.partition("/")
            groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
            if item["kind"] == "ServiceAccount" and (item.get("namespace"), item["name"]) == (namespace, account):
                return True
            if item["kind"] == "Group" and item["name"] in groups:
                return True
            if item["kind"] == "User" and item["name"] == f"system:serviceaccount:{namespace}:{account}":
                return True
    return False


_BUILT_IN = {
    "cluster-admin": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ],
    "view": [
        {
            "apiGroups": ["", "apps", "batch", "networking.k8s.io"],
            "verbs": ["get", "list", "watch"],
            "resources": [
                "pods",
                "pods/log",
                "services",
                "configmaps",
                "endpoints",
                "serviceaccounts",
                "deployments",
                "replicasets",
                "statefulsets",
                "daemonsets",
                "jobs",
                "cronjobs",
                "ingresses",
                "networkpolicies",
                "persistentvolumeclaims",
                "events",
                "namespaces",
            ],
        }
    ],
}


def rules_of(store: Store, kind: str, name: str, namespace: str) -> list[Object]:
    """Return the rules of a role, aggregated ones included."""
    role = store.get(kind, name, namespace if kind == "Role" else None)
    if role is None:
        return _BUILT_IN.get(name, []) if kind == "ClusterRole" else []
    rules = list(role.get("rules") or [])
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []:
        for other in store.list("ClusterRole"):
            if other is not role and matches(selector, other["metadata"].get("labels")):
                rules += other.get("rules") or []
    return rules


def _role_allows(store: Store, binding: Object, verb: str, resource: str, group: str, name: str) -> bool:
    ref = binding["roleRef"]
    rules = rules_of(store, ref["kind"], ref["name"], binding["metadata"].get("namespace", ""))
    return any(_rule_allows(rule, verb, resource, group, name) for rule in rules)


def _rule_allows(rule: Object, verb: str, resource: str, group: str, name: str) -> bool:
    if not {"*", verb} & set(rule.get("verbs") or []):
        return False
    if resource.startswith("/"):
        return any(
            url in ("*", resource) or (url.endswith("*") and resource.startswith(url[:-1]))
            for url in rule.get("nonResourceURLs") or []
        )
    names = {"*", resource, "*/" + resource.partition("/")[2] if "/" in resource else resource}
    return bool(
        {"*", group} & set(rule.get("apiGroups") or [])
        and names & set(rule.get("resources") or [])
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
    )
