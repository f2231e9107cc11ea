"""RBAC: may a subject do something? As Kubernetes' RBAC authorizer decides it."""

from cloudeval.store import Objects, Store
from cloudeval.values import Object, dig

_VIEWED = (
    "pods pods/log services configmaps endpoints serviceaccounts deployments replicasets statefulsets daemonsets jobs "
    "cronjobs ingresses networkpolicies persistentvolumeclaims events namespaces"
)
_VIEW = {"apiGroups": ["", "apps", "batch", "networking.k8s.io"], "verbs": ["get", "list", "watch"]}
_ALL = {"apiGroups": ["*"], "resources": ["*"], "nonResourceURLs": ["*"], "verbs": ["*"]}
#: Rules of the cluster roles that every cluster has.
_BUILT_IN: dict[str, Objects] = {"cluster-admin": [_ALL], "view": [{**_VIEW, "resources": _VIEWED.split()}]}


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
    bindings = store.list("ClusterRoleBinding") + (store.list("RoleBinding", namespace) if namespace else [])
    return any(
        _rule_allows(rule, verb, resource, group, name)
        for binding in bindings
        if _names(subject) & {_identity(item) for item in binding.get("subjects") or []}
        for rule in _rules_of(store, binding)
    )


def _names(subject: str) -> set[tuple[str, str, str]]:
    """Return what a subject is called in bindings: (kind, namespace, name)."""
    kind, _, name = subject.partition(":")
    if kind != "sa":
        return {({"user": "User", "group": "Group"}.get(kind, ""), "", name)}
    namespace, _, account = name.partition("/")
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    own = {("ServiceAccount", namespace, account), ("User", "", f"system:serviceaccount:{namespace}:{account}")}
    return own | {("Group", "", group) for group in groups}


def _identity(item: Object) -> tuple[str, str, str]:
    return item["kind"], item.get("namespace", "") if item["kind"] == "ServiceAccount" else "", item["name"]


def _rules_of(store: Store, binding: Object) -> Objects:
    """Return the rules of a binding's role, aggregated ones included."""
    kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
    role = store.get(kind, name, binding["metadata"].get("namespace") if kind == "Role" else None)
    if role is None:
        return _BUILT_IN.get(name, []) if kind == "ClusterRole" else []
    rules = list(role.get("rules") or [])
    for selector in dig(role, "aggregationRule.clusterRoleSelectors", []):
        for other in store.list("ClusterRole", selector=selector):
            rules += (other.get("rules") or []) if other is not role else []
    return rules


def _rule_allows(rule: Object, verb: str, resource: str, group: str, name: str) -> bool:
    if not {"*", verb} & set(rule.get("verbs") or []):
        return False
    if resource.startswith("/"):
        urls = rule.get("nonResourceURLs") or []
        return any(url in ("*", resource) or (url[-1:] == "*" and resource.startswith(url[:-1])) for url in urls)
    names = {"*", resource, "*/" + resource.partition("/")[2] if "/" in resource else resource}
    return bool(
        {"*", group} & set(rule.get("apiGroups") or [])
        and names & set(rule.get("resources") or [])
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
    )
