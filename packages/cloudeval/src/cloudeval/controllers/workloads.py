"""Controllers of ReplicaSet, Deployment, DaemonSet and StatefulSet: each brings a store one step closer to its spec."""

import copy
import hashlib
import json
import math

from cloudeval.controllers.scheduling import fits_node
from cloudeval.store import (
    ALPHABET,
    Objects,
    Store,
    is_active,
    is_ready,
    make,
    owner_reference,
    phase,
    pod_from_template,
)
from cloudeval.values import Object, dig

_REVISION, _HASH = "deployment.kubernetes.io/revision", "controller-revision-hash"
#: Taints that the pods of a DaemonSet tolerate, by effect.
_DAEMON = {
    "NoExecute": ("not-ready", "unreachable"),
    "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
}


def _template_hash(template: Object) -> str:
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return "".join(ALPHABET[int(digest[n : n + 2], 16) % 27] for n in range(0, 20, 2))


def _available(owner: Object, pods: Objects, now: float) -> int:
    """Return how many pods have been ready for the owner's minReadySeconds."""
    least_s = owner["spec"].get("minReadySeconds", 0)
    return sum(is_ready(pod) and now - dig(pod, "status.readySince", now) >= least_s for pod in pods)


def _share(value: int | str, total: int, up: bool) -> int:
    if isinstance(value, str):
        exact = int(value.rstrip("%")) * total / 100
        return math.ceil(exact) if up else math.floor(exact)
    return value


def _age(value: Object) -> int:
    return -int(value["metadata"]["uid"][:8], 16)


def replica_set(store: Store, owner: Object, now: float) -> None:
    """Keep as many active pods as the ReplicaSet wants; pods that are not ready go first, then the youngest."""
    spec, wanted = owner["spec"], owner["spec"].get("replicas", 1)
    for pod in store.list("Pod", owner["metadata"]["namespace"], spec["selector"]):
        if not pod["metadata"].get("ownerReferences") and is_active(pod):
            pod["metadata"]["ownerReferences"] = [owner_reference(owner)]
    pods = store.owned("Pod", owner, active=True)
    for _ in range(wanted - len(pods)):
        store.create(pod_from_template(spec["template"], owner))
    order = sorted(pods, key=lambda pod: (is_ready(pod), bool(pod["spec"].get("nodeName")), _age(pod)))
    for pod in order[: max(0, len(pods) - wanted)]:
        store.delete(pod, now)
    pods = store.owned("Pod", owner, active=True)
    ready, available = sum(map(is_ready, pods)), _available(owner, pods, now)
    owner["status"] = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": available}


def deployment(store: Store, owner: Object, now: float) -> None:
    """Move replicas from old ReplicaSets to that of the present template, within maxSurge and maxUnavailable."""
    spec, wanted = owner["spec"], owner["spec"]["replicas"]
    sets = store.owned("ReplicaSet", owner)
    digest = _template_hash(spec["template"])
    new = next((item for item in sets if item["metadata"]["labels"]["pod-template-hash"] == digest), None)
    old = [item for item in sets if item is not new]
    if new is None and spec.get("paused") and not old:
        return
    if new is None and not spec.get("paused"):
        new = _new_replica_set(store, owner, digest, len(sets) + 1)
    both = [*old, *([new] if new else [])]
    if new is not None:
        new["spec"]["minReadySeconds"] = spec.get("minReadySeconds", 0)
    if spec.get("paused"):  # no rollout: the largest ReplicaSet takes the difference
        largest = max(both, key=lambda item: item["spec"]["replicas"])["spec"]
        largest["replicas"] = max(0, largest["replicas"] + wanted - sum(item["spec"]["replicas"] for item in both))
    elif new is not None and spec["strategy"]["type"] == "Recreate":
        for item in old:
            item["spec"]["replicas"] = 0
        if not any(store.owned("Pod", item) for item in old):
            new["spec"]["replicas"] = wanted
    elif new is not None:
        _roll(store, owner, new, old, now)
    empty = [item for item in old if item["spec"]["replicas"] == 0 and not store.owned("Pod", item)]
    excess = max(0, len(empty) - spec["revisionHistoryLimit"])
    for item in sorted(empty, key=lambda item: int(item["metadata"]["annotations"][_REVISION]))[:excess]:
        store.remove(item)
    _deployment_status(store, owner, new, both, now)


def _new_replica_set(store: Store, owner: Object, digest: str, revision: int) -> Object:
    template, selector = copy.deepcopy(owner["spec"]["template"]), copy.deepcopy(owner["spec"]["selector"])
    template.setdefault("metadata", {})
    for holder, key in ((template["metadata"], "labels"), (selector, "matchLabels")):
        holder[key] = {**(holder.get(key) or {}), "pod-template-hash": digest}
    new = make(
        "apps/v1",
        "ReplicaSet",
        f"{owner['metadata']['name']}-{digest}",
        owner["metadata"]["namespace"],
        labels=template["metadata"]["labels"],
        annotations={_REVISION: str(revision)},
        ownerReferences=[owner_reference(owner)],
        spec={"replicas": 0, "selector": selector, "template": template},
    )
    store.create(new)
    return new


def _rolling_limits(spec: Object) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods; if both come to 0, one pod may be unavailable."""
    rolling = spec["strategy"]["rollingUpdate"]
    surge = _share(rolling["maxSurge"], spec["replicas"], up=True)
    unavailable = _share(rolling["maxUnavailable"], spec["replicas"], up=False)
    return surge, 1 if surge == 0 and unavailable == 0 else unavailable


def _roll(store: Store, owner: Object, new: Object, old: Objects, now: float) -> None:
    wanted, both = owner["spec"]["replicas"], [new, *old]
    surge, unavailable = _rolling_limits(owner["spec"])
    room = wanted + surge - sum(item["spec"]["replicas"] for item in both)
    if new["spec"]["replicas"] < wanted:
        room = max(0, min(room, wanted - new["spec"]["replicas"]))
    new["spec"]["replicas"] = min(wanted, new["spec"]["replicas"] + max(0, room))
    pods = {item["metadata"]["uid"]: store.owned("Pod", item, active=True) for item in both}
    available = {uid: _available(owner, members, now) for uid, members in pods.items()}
    missing = new["spec"]["replicas"] - available[new["metadata"]["uid"]]
    spare = sum(item["spec"]["replicas"] for item in both) - (wanted - unavailable) - missing
    oldest_first = sorted(old, key=lambda item: -_age(item))
    for item in oldest_first:  # pods that are not available go first
        useless = max(0, min(spare, item["spec"]["replicas"] - available[item["metadata"]["uid"]]))
        item["spec"]["replicas"] -= useless
        spare -= useless
    spare = min(spare, sum(available.values()) - (wanted - unavailable))
    for item in oldest_first:
        down = min(max(spare, 0), item["spec"]["replicas"])
        item["spec"]["replicas"] -= down
        spare -= down


def _deployment_status(store: Store, owner: Object, new: Object | None, both: Objects, now: float) -> None:
    spec, status = owner["spec"], owner.setdefault("status", {})
    pods = [pod for item in both for pod in store.owned("Pod", item, active=True)]
    updated = len(store.owned("Pod", new, active=True)) if new else 0
    available, wanted = _available(owner, pods, now), spec["replicas"]
    unavailable = _rolling_limits(spec)[1] if spec["strategy"]["type"] == "RollingUpdate" else 0
    done = updated == wanted == len(pods) and available >= wanted
    progress = (updated, available, len(pods))
    if status.get("progress") != progress:
        status.update(progress=progress, progressSince=now)
    late = not done and not spec.get("paused") and now - status["progressSince"] > spec["progressDeadlineSeconds"]
    reason = "ProgressDeadlineExceeded" if late else "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
    status.update(
        observedGeneration=owner["metadata"]["generation"],
        replicas=len(pods),
        updatedReplicas=updated,
        readyReplicas=sum(map(is_ready, pods)),
        availableReplicas=available,
        unavailableReplicas=max(0, wanted - available),
        conditions=[
            {"type": "Available", "status": str(available >= wanted - unavailable)},
            {"type": "Progressing", "status": str(not late), "reason": reason},
        ],
    )


def _is_current(pod: Object, digest: str) -> bool:
    return bool(pod["metadata"]["labels"][_HASH] == digest)


def daemon_set(store: Store, owner: Object, now: float) -> None:
    """Keep one pod on each node that the template's selector, affinity and tolerations allow."""
    spec, strategy = owner["spec"], owner["spec"]["updateStrategy"]
    digest, template = _template_hash(spec["template"]), copy.deepcopy(spec["template"])
    tolerations = template["spec"].setdefault("tolerations", [])
    for effect, names in _DAEMON.items():
        tolerations += [{"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name in names]
    nodes = [node["metadata"]["name"] for node in store.list("Node") if fits_node(template["spec"], node)]
    pods: dict[str, Objects] = {name: [] for name in nodes}
    for pod in store.owned("Pod", owner):
        pods.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
    unavailable = sum(not any(map(is_ready, pods[name])) for name in nodes)
    budget = _share(dig(strategy, "rollingUpdate.maxUnavailable", 1), len(nodes), up=True)
    for node, members in pods.items():
        if not members:
            pod = pod_from_template(template, owner, {_HASH: digest})
            pod["spec"]["nodeName"] = node
            store.create(pod)
        for pod in members:
            outdated = is_active(pod) and not _is_current(pod, digest) and strategy["type"] == "RollingUpdate"
            if node not in nodes or phase(pod) in ("Failed", "Succeeded"):
                store.delete(pod, now)
            elif outdated and (unavailable < budget or not is_ready(pod)):
                unavailable += is_ready(pod)
                store.delete(pod, now)
    current = store.owned("Pod", owner, active=True)
    owner["status"] = {
        "desiredNumberScheduled": len(nodes),
        "currentNumberScheduled": len(current),
        "numberReady": sum(map(is_ready, current)),
        "numberMisscheduled": 0,
        "updatedNumberScheduled": sum(_is_current(pod, digest) for pod in current),
    }


def stateful_set(store: Store, owner: Object, now: float) -> None:
    """Keep pods name-0 … name-(n-1): in order, each ready before the next, unless podManagementPolicy is Parallel."""
    spec, strategy, digest = owner["spec"], owner["spec"]["updateStrategy"], _template_hash(owner["spec"]["template"])
    start = dig(spec, "ordinals.start", 0)
    wanted = range(start, start + spec["replicas"])
    parallel = spec["podManagementPolicy"] == "Parallel"
    pods = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in store.owned("Pod", owner)}
    active = [pod for pod in pods.values() if is_active(pod)]
    owner["status"] = {
        "replicas": len(active),
        "readyReplicas": sum(map(is_ready, active)),
        "currentReplicas": len(active),
        "updatedReplicas": sum(_is_current(pod, digest) for pod in active),
    }
    for pod in pods.values():
        if phase(pod) in ("Failed", "Succeeded"):
            store.delete(pod, now)
    for number in wanted:
        if number not in pods:
            _stateful_pod(store, owner, number, digest)
        if not parallel and (number not in pods or not is_ready(pods[number])):
            return
    for number in sorted(set(pods) - set(wanted), reverse=True):
        store.delete(pods[number], now)
        if not parallel:
            return
    for number in sorted(pods, reverse=True) if strategy["type"] == "RollingUpdate" else []:
        pod = pods[number]
        if number >= strategy["rollingUpdate"]["partition"] and not _is_current(pod, digest):
            store.delete(pod, now)
            return
        if not is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
            return


def _stateful_pod(store: Store, owner: Object, number: int, digest: str) -> None:
    spec, namespace, name = owner["spec"], owner["metadata"]["namespace"], f"{owner['metadata']['name']}-{number}"
    labels = {_HASH: digest, "statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(number)}
    pod = pod_from_template(spec["template"], owner, labels, name)
    pod["spec"].update(hostname=name, subdomain=spec.get("serviceName", ""))
    for claim in spec.get("volumeClaimTemplates") or []:
        volume = claim["metadata"]["name"]
        claim_name = f"{volume}-{name}"
        if not store.get("PersistentVolumeClaim", claim_name, namespace):
            own = {**(claim["metadata"].get("labels") or {}), **(spec["selector"].get("matchLabels") or {})}
            copied = copy.deepcopy(claim["spec"])
            store.create(make("v1", "PersistentVolumeClaim", claim_name, namespace, labels=own, spec=copied))
        others = [item for item in pod["spec"].get("volumes") or [] if item["name"] != volume]
        pod["spec"]["volumes"] = [*others, {"name": volume, "persistentVolumeClaim": {"claimName": claim_name}}]
    store.create(pod)
