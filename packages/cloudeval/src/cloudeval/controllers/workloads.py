"""Controllers of ReplicaSet, Deployment, DaemonSet and StatefulSet: each brings a store one step closer to its spec."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from typing import Any

from cloudeval.controllers.scheduling import fits_node
from cloudeval.store import Store, is_active, is_ready, ordinal, owner_reference, pod_from_template

Object = dict[str, Any]


def template_hash(template: Object) -> str:
    """Return a short name for a pod template."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return "".join("bcdfghjklmnpqrstvwxz2456789"[int(digest[n : n + 2], 16) % 27] for n in range(0, 20, 2))


def _is_available(pod: Object, least_ready_s: float, now: float) -> bool:
    return is_ready(pod) and now - (pod.get("status") or {}).get("readySince", now) >= least_ready_s


def replica_set(store: Store, owner: Object, now: float) -> None:
    """Keep as many active pods as the ReplicaSet wants; pods that are not ready go first, then the youngest."""
    spec = owner["spec"]
    pods = [pod for pod in store.owned("Pod", owner) if is_active(pod)]
    _adopt(store, owner, pods)
    wanted = spec.get("replicas", 1)
    for _ in range(wanted - len(pods)):
        store.create(pod_from_template(spec["template"], owner, f"{owner['metadata']['name']}-", generate=True))
    if len(pods) > wanted:
        order = sorted(
            pods,
            key=lambda pod: (is_ready(pod), bool(pod["spec"].get("nodeName")), -int(pod["metadata"]["uid"][:8], 16)),
        )
        for pod in order[: len(pods) - wanted]:
            store.delete(pod, now)
    pods = [pod for pod in store.owned("Pod", owner) if is_active(pod)]
    least = spec.get("minReadySeconds", 0)
    owner["status"] = {
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "availableReplicas": sum(_is_available(pod, least, now) for pod in pods),
    }


def _adopt(store: Store, owner: Object, pods: list[Object]) -> None:
    for pod in store.list("Pod", owner["metadata"]["namespace"], owner["spec"]["selector"]):
        if not pod["metadata"].get("ownerReferences") and is_active(pod):
            pod["metadata"]["ownerReferences"] = [owner_reference(owner)]
            pods.append(pod)


def _share(value: int | str, total: int, up: bool) -> int:
    if isinstance(value, str):
        exact = int(value.rstrip("%")) * total / 100
        return math.ceil(exact) if up else math.floor(exact)
    return value


def deployment(store: Store, owner: Object, now: float) -> None:
    """Move replicas from old ReplicaSets to that of the present template, within maxSurge and maxUnavailable."""
    spec, wanted = owner["spec"], owner["spec"]["replicas"]
    sets = store.owned("ReplicaSet", owner)
    digest = template_hash(spec["template"])
    new = next((item for item in sets if item["metadata"]["labels"]["pod-template-hash"] == digest), None)
    old = [item for item in sets if item is not new]
    if new is None and spec.get("paused") and not old:
        return
    if new is None and not spec.get("paused"):
        new = _new_replica_set(store, owner, digest, len(sets) + 1)
    if new is not None:
        new["spec"]["minReadySeconds"] = spec.get("minReadySeconds", 0)
    if spec.get("paused"):
        _scale_paused([*old, *([new] if new else [])], wanted)
    elif new is not None and spec["strategy"]["type"] == "Recreate":
        for item in old:
            item["spec"]["replicas"] = 0
        if not any(store.owned("Pod", item) for item in old):
            new["spec"]["replicas"] = wanted
    elif new is not None:
        _roll(store, owner, new, old, now)
    _history(store, owner, old)
    _deployment_status(store, owner, new, old, now)


def _new_replica_set(store: Store, owner: Object, digest: str, revision: int) -> Object:
    spec = owner["spec"]
    template = copy.deepcopy(spec["template"])
    labels = {**(template.setdefault("metadata", {}).get("labels") or {}), "pod-template-hash": digest}
    template["metadata"]["labels"] = labels
    selector = copy.deepcopy(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), "pod-template-hash": digest}
    new = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{owner['metadata']['name']}-{digest}",
            "namespace": owner["metadata"]["namespace"],
            "labels": labels,
            "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {"replicas": 0, "selector": selector, "template": template},
    }
    store.create(new)
    return new


def _scale_paused(sets: list[Object], wanted: int) -> None:
    """Scale a paused deployment without a rollout: the largest ReplicaSet takes the difference."""
    if not sets:
        return
    total = sum(item["spec"]["replicas"] for item in sets)
    largest = max(sets, key=lambda item: item["spec"]["replicas"])
    largest["spec"]["replicas"] = max(0, largest["spec"]["replicas"] + wanted - total)


def rolling_limits(spec: Object) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods; if both come to 0, one pod may be unavailable."""
    rolling = spec["strategy"]["rollingUpdate"]
    surge = _share(rolling["maxSurge"], spec["replicas"], up=True)
    unavailable = _share(rolling["maxUnavailable"], spec["replicas"], up=False)
    return surge, 1 if surge == 0 and unavailable == 0 else unavailable


def _roll(store: Store, owner: Object, new: Object, old: list[Object], now: float) -> None:
    spec, wanted = owner["spec"], owner["spec"]["replicas"]
    surge, unavailable = rolling_limits(spec)
    total = sum(item["spec"]["replicas"] for item in [new, *old])
    if new["spec"]["replicas"] > wanted:
        new["spec"]["replicas"] = wanted
    elif new["spec"]["replicas"] < wanted and (room := wanted + surge - total) > 0:
        new["spec"]["replicas"] += min(room, wanted - new["spec"]["replicas"])
    least = spec.get("minReadySeconds", 0)
    pods = {
        item["metadata"]["uid"]: [pod for pod in store.owned("Pod", item) if is_active(pod)] for item in [new, *old]
    }
    available = {uid: sum(_is_available(pod, least, now) for pod in members) for uid, members in pods.items()}
    new_unavailable = new["spec"]["replicas"] - available[new["metadata"]["uid"]]
    total = sum(item["spec"]["replicas"] for item in [new, *old])
    spare = total - (wanted - unavailable) - new_unavailable
    for item in sorted(
        old, key=lambda item: int(item["metadata"]["uid"][:8], 16)
    ):  # pods that are not available go first
        useless = min(spare, item["spec"]["replicas"] - available[item["metadata"]["uid"]])
        if useless > 0:
            item["spec"]["replicas"] -= useless
            spare -= useless
    spare = min(spare, sum(available.values()) - (wanted - unavailable))
    for item in sorted(old, key=lambda item: int(item["metadata"]["uid"][:8], 16)):
        down = min(max(spare, 0), item["spec"]["replicas"])
        item["spec"]["replicas"] -= down
        spare -= down


def _history(store: Store, owner: Object, old: list[Object]) -> None:
    empty = [item for item in old if item["spec"]["replicas"] == 0 and not store.owned("Pod", item)]
    excess = len(empty) - owner["spec"]["revisionHistoryLimit"]
    for item in sorted(
        empty, key=lambda item: int(item["metadata"]["annotations"]["deployment.kubernetes.io/revision"])
    )[: max(excess, 0)]:
        store.remove(item)


def _deployment_status(store: Store, owner: Object, new: Object | None, old: list[Object], now: float) -> None:
    spec = owner["spec"]
    least = spec.get("minReadySeconds", 0)
    pods = [pod for item in [*old, *([new] if new else [])] for pod in store.owned("Pod", item) if is_active(pod)]
    updated = [pod for pod in store.owned("Pod", new) if is_active(pod)] if new else []
    available = sum(_is_available(pod, least, now) for pod in pods)
    unavailable = rolling_limits(spec)[1] if spec["strategy"]["type"] == "RollingUpdate" else 0
    enough = available >= spec["replicas"] - unavailable
    status = owner.setdefault("status", {})
    done = len(updated) == spec["replicas"] == len(pods) and available >= spec["replicas"]
    progress = (len(updated), available, len(pods))
    if status.get("progress") != progress:
        status.update(progress=progress, progressSince=now)
    late = not done and not spec.get("paused") and now - status["progressSince"] > spec["progressDeadlineSeconds"]
    status.update(
        observedGeneration=owner["metadata"]["generation"],
        replicas=len(pods),
        updatedReplicas=len(updated),
        readyReplicas=sum(map(is_ready, pods)),
        availableReplicas=available,
        unavailableReplicas=max(0, spec["replicas"] - available),
        conditions=[
            {"type": "Available", "status": str(enough)},
            {
                "type": "Progressing",
                "status": str(not late),
                "reason": "ProgressDeadlineExceeded"
                if late
                else "NewReplicaSetAvailable"
                if done
                else "ReplicaSetUpdated",
            },
        ],
    )


def daemon_set(store: Store, owner: Object, now: float) -> None:
    """Keep one pod on each node that the template's selector, affinity and tolerations allow."""
    spec = owner["spec"]
    digest = template_hash(spec["template"])
    pods: dict[str, list[Object]] = {}
    for pod in store.owned("Pod", owner):
        pods.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
    strategy = spec["updateStrategy"]
    eligible = [
        node for node in store.list("Node") if fits_node(_with_daemon_tolerations(spec["template"]["spec"]), node)
    ]
    unavailable = sum(not any(is_ready(pod) for pod in pods.get(node["metadata"]["name"], [])) for node in eligible)
    budget = _share((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), len(eligible), up=True)
    names = {node["metadata"]["name"] for node in eligible}
    for node_name in names:
        mine = [pod for pod in pods.get(node_name, []) if is_active(pod)]
        for pod in pods.get(node_name, []):
            if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
                store.delete(pod, now)
        if not mine and not pods.get(node_name):
            pod = pod_from_template(
                spec["template"],
                owner,
                f"{owner['metadata']['name']}-",
                {"controller-revision-hash": digest},
                generate=True,
            )
            pod["spec"] = _with_daemon_tolerations(pod["spec"])
            pod["spec"]["nodeName"] = node_name
            store.create(pod)
        for pod in mine:
            outdated = pod["metadata"]["labels"]["controller-revision-hash"] != digest
            if outdated and strategy["type"] == "RollingUpdate" and (unavailable < budget or not is_ready(pod)):
                unavailable += is_ready(pod)
                store.delete(pod, now)
    for node_name, members in pods.items():
        for pod in members:
            if node_name not in names:
                store.delete(pod, now)
    current = [pod for pod in store.owned("Pod", owner) if is_active(pod)]
    owner["status"] = {
        "desiredNumberScheduled": len(eligible),
        "currentNumberScheduled": len(current),
        "numberReady": sum(map(is_ready, current)),
        "numberMisscheduled": 0,
        "updatedNumberScheduled": sum(
            pod["metadata"]["labels"]["controller-revision-hash"] == digest for pod in current
        ),
    }


def _with_daemon_tolerations(spec: Object) -> Object:
    spec = copy.deepcopy(spec)
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *(
            {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
            for name, effect in (
                ("not-ready", "NoExecute"),
                ("unreachable", "NoExecute"),
                ("disk-pressure", "NoSchedule"),
                ("memory-pressure", "NoSchedule"),
                ("pid-pressure", "NoSchedule"),
                ("unschedulable", "NoSchedule"),
            )
        ),
    ]
    return spec


def stateful_set(store: Store, owner: Object, now: float) -> None:
    """Keep pods name-0 … name-(n-1): in order, each ready before the next, unless podManagementPolicy is Parallel."""
    spec = owner["spec"]
    digest = template_hash(spec["template"])
    start = (spec.get("ordinals") or {}).get("start", 0)
    wanted = range(start, start + spec["replicas"])
    parallel = spec["podManagementPolicy"] == "Parallel"
    pods = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in store.owned("Pod", owner)}
    _stateful_status(owner, pods, digest)
    for pod in pods.values():
        if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            store.delete(pod, now)
    for number in wanted:
        if number not in pods:
            _stateful_pod(store, owner, number, digest)
            if not parallel:
                return
        elif not is_ready(pods[number]) and not parallel:
            return
    surplus = sorted((number for number in pods if number not in wanted), reverse=True)
    for number in surplus:
        store.delete(pods[number], now)
        if not parallel:
            return
    strategy = spec["updateStrategy"]
    if strategy["type"] != "RollingUpdate":
        return
    partition = strategy["rollingUpdate"]["partition"]
    for number in sorted(pods, reverse=True):
        pod = pods[number]
        if number >= partition and pod["metadata"]["labels"]["controller-revision-hash"] != digest:
            store.delete(pod, now)
            return
        if not is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
            return


def _stateful_pod(store: Store, owner: Object, number: int, digest: str) -> None:
    spec, metadata = owner["spec"], owner["metadata"]
    name = f"{metadata['name']}-{number}"
    labels = {
        "controller-revision-hash": digest,
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
    }
    pod = pod_from_template(spec["template"], owner, name, labels)
    pod["spec"].update(hostname=name, subdomain=spec.get("serviceName", ""))
    for claim in spec.get("volumeClaimTemplates") or []:
        claim_name = f"{claim['metadata']['name']}-{name}"
        if not store.get("PersistentVolumeClaim", claim_name, metadata["namespace"]):
            store.create(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "spec": copy.deepcopy(claim["spec"]),
                    "metadata": {
                        "name": claim_name,
                        "namespace": metadata["namespace"],
                        "labels": {
                            **(claim["metadata"].get("labels") or {}),
                            **(spec["selector"].get("matchLabels") or {}),
                        },
                    },
                }
            )
        volumes = [volume for volume in pod["spec"].get("volumes") or [] if volume["name"] != claim["metadata"]["name"]]
        pod["spec"]["volumes"] = [
            *volumes,
            {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim_name}},
        ]
    store.create(pod)


def _stateful_status(owner: Object, pods: dict[int, Object], digest: str) -> None:
    active = ordinal(pod for pod in pods.values() if is_active(pod))
    owner["status"] = {
        "replicas": len(active),
        "readyReplicas": sum(map(is_ready, active)),
        "currentReplicas": len(active),
        "updatedReplicas": sum(pod["metadata"]["labels"]["controller-revision-hash"] == digest for pod in active),
    }
