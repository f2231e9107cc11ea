"""Controllers of Job and CronJob."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

from cloudeval.admission.schedules import fires
from cloudeval.store import Store, condition, is_active, is_ready, owner_reference, pod_from_template

Object = dict[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
#: Seconds before a failed pod of a Job is replaced, doubled for each failure. Kubernetes waits 10 s, doubled up to 6 min.
BACKOFF_S = 0.05


def job(store: Store, owner: Object, now: float) -> None:
    """Run pods until enough have succeeded, or until too many have failed or the deadline has passed."""
    spec, status = owner["spec"], owner.setdefault("status", {"startTime": now})
    if condition(owner, "Complete") == "True" or condition(owner, "Failed") == "True":
        _expire(store, owner, now)
        return
    pods = store.owned("Pod", owner)
    active = [pod for pod in pods if is_active(pod)]
    if spec.get("suspend"):
        for pod in active:
            store.delete(pod, now)
        status.update(active=0, conditions=[{"type": "Suspended", "status": "True"}], startTime=None)
        return
    if status.get("startTime") is None:
        status["startTime"] = now
    status["conditions"] = []
    succeeded = [pod for pod in pods if _phase(pod) == "Succeeded"]
    failed = [pod for pod in pods if _phase(pod) == "Failed"]
    verdict, ignored = _failure_policy(spec, failed)
    counted = [pod for pod in failed if pod["metadata"]["uid"] not in ignored]
    status.update(
        succeeded=_successes(spec, succeeded), failed=len(failed), active=len(active), ready=sum(map(is_ready, active))
    )
    if spec["completionMode"] == "Indexed":
        status["completedIndexes"] = ",".join(str(index) for index in sorted({_index(pod) for pod in succeeded}))
    reason = verdict or _give_up(spec, status, pods, counted, now)
    if reason:
        _finish(store, owner, "Failed", reason, now)
    elif _is_complete(spec, status, active, succeeded):
        _finish(store, owner, "Complete", "", now)
    else:
        _start_pods(store, owner, active, succeeded, counted, now)
        status["active"] = len([pod for pod in store.owned("Pod", owner) if is_active(pod)])


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _successes(spec: Object, succeeded: list[Object]) -> int:
    return len({_index(pod) for pod in succeeded}) if spec["completionMode"] == "Indexed" else len(succeeded)


def _is_complete(spec: Object, status: Object, active: list[Object], succeeded: list[Object]) -> bool:
    for rule in (spec.get("successPolicy") or {}).get("rules") or []:
        done = {_index(pod) for pod in succeeded}
        wanted = _indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else done
        if len(done & wanted) >= (rule.get("succeededCount") or len(wanted)) and done:
            return True
    if spec.get("completions") is None:  # a work queue: one success, and no pod left
        return status["succeeded"] > 0 and not active
    return bool(status["succeeded"] >= spec["completions"])


def _indexes(text: str) -> set[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return {index for low, dash, high in parts for index in range(int(low), int(high if dash else low) + 1)}


def _give_up(spec: Object, status: Object, pods: list[Object], counted: list[Object], now: float) -> str | None:
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and now - status["startTime"] >= deadline:
        return "DeadlineExceeded"
    if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
        restarts = sum(
            item.get("restartCount", 0)
            for pod in pods
            if _phase(pod) in ("Running", "Pending", "Failed")
            for item in (pod["status"].get("containerStatuses") or [])
            + (pod["status"].get("initContainerStatuses") or [])
        )
        exceeded = restarts > 0 if spec["backoffLimit"] == 0 else restarts >= spec["backoffLimit"]
        if exceeded or len(counted) > spec["backoffLimit"]:
            return "BackoffLimitExceeded"
        return None
    if (limit := spec.get("backoffLimitPerIndex")) is not None:
        lost = {_index(pod) for pod in counted if sum(_index(other) == _index(pod) for other in counted) > limit}
        if spec.get("maxFailedIndexes") is not None and len(lost) > spec["maxFailedIndexes"]:
            return "MaxFailedIndexesExceeded"
        return "FailedIndexes" if lost and len(lost) + status["succeeded"] >= spec["completions"] else None
    return "BackoffLimitExceeded" if len(counted) > spec["backoffLimit"] else None


def _failure_policy(spec: Object, failed: list[Object]) -> tuple[str | None, set[str]]:
    """Return why the failure policy ends the Job, or None, and the uids of pods whose failure it ignores."""
    ignored: set[str] = set()
    for pod in failed:
        for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
            if not _rule_matches(rule, pod):
                continue
            if rule["action"] == "FailJob":
                return "PodFailurePolicy", ignored
            if rule["action"] == "Ignore":
                ignored.add(pod["metadata"]["uid"])
            break
    return None, ignored


def _rule_matches(rule: Object, pod: Object) -> bool:
    if codes := rule.get("onExitCodes"):
        for item in pod["status"].get("containerStatuses") or []:
            code = (item["state"].get("terminated") or {}).get("exitCode", 0)
            if (
                code
                and codes.get("containerName") in (None, item["name"])
                and (code in codes["values"]) == (codes["operator"] == "In")
            ):
                return True
        return False
    return any(
        condition(pod, wanted["type"]) == wanted.get("status", "True") for wanted in rule.get("onPodConditions") or []
    )


def _start_pods(
    store: Store, owner: Object, active: list[Object], succeeded: list[Object], counted: list[Object], now: float
) -> None:
    spec, name = owner["spec"], owner["metadata"]["name"]
    last = max((pod["status"].get("finishedAt", 0.0) for pod in counted), default=0.0)
    if counted and now - last < BACKOFF_S * 2 ** (len(counted) - 1):
        return
    labels = {
        "job-name": name,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": owner["metadata"]["uid"],
        "batch.kubernetes.io/controller-uid": owner["metadata"]["uid"],
    }
    if spec.get("completions") is None:
        room = 0 if succeeded else spec["parallelism"] - len(active)
    else:
        room = min(spec["parallelism"], spec["completions"] - len(succeeded)) - len(active)
    for pod in active[: max(0, -room)]:
        store.delete(pod, now)
    taken = {_index(pod) for pod in [*active, *succeeded]} if spec["completionMode"] == "Indexed" else set()
    limit = spec.get("backoffLimitPerIndex")
    if limit is not None:
        taken |= {_index(pod) for pod in counted if sum(_index(other) == _index(pod) for other in counted) > limit}
    for _ in range(max(0, room)):
        pod = pod_from_template(spec["template"], owner, f"{name}-", labels, generate=True)
        if spec["completionMode"] == "Indexed":
            free = next((number for number in range(spec["completions"]) if number not in taken), None)
            if free is None:
                return
            taken.add(free)
            _give_index(pod, name, free)
        store.create(pod)


def _give_index(pod: Object, name: str, index: int) -> None:
    pod["metadata"]["generateName"] = f"{name}-{index}-"
    pod["metadata"].setdefault("annotations", {})[INDEX] = str(index)
    pod["metadata"]["labels"][INDEX] = str(index)
    pod["spec"]["hostname"] = f"{name}-{index}"
    for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]:
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})


def _finish(store: Store, owner: Object, kind: str, reason: str, now: float) -> None:
    status = owner["status"]
    status["conditions"] = [{"type": kind, "status": "True", **({"reason": reason} if reason else {})}]
    status["finishedAt" if kind == "Failed" else "completionTime"] = now
    for pod in store.owned("Pod", owner):
        if is_active(pod):
            status["failed"] = status.get("failed", 0) + (kind == "Failed")
            store.delete(pod, now)
    status["active"] = 0


def _expire(store: Store, owner: Object, now: float) -> None:
    status, ttl = owner["status"], owner["spec"].get("ttlSecondsAfterFinished")
    if ttl is not None and now - status.get("completionTime", status.get("finishedAt", now)) >= ttl:
        for pod in store.owned("Pod", owner):
            store.delete(pod, now)
        store.remove(owner)


def fire(store: Store, owner: Object, when: datetime, now: float) -> Object | None:
    """Let a CronJob fire for one scheduled time. Return the Job, or None where suspend or concurrencyPolicy forbid it."""
    spec = owner["spec"]
    running = [
        item for item in store.owned("Job", owner) if not condition(item, "Complete") and not condition(item, "Failed")
    ]
    if spec.get("suspend") or (running and spec["concurrencyPolicy"] == "Forbid"):
        return None
    if spec["concurrencyPolicy"] == "Replace":
        for item in running:
            for pod in store.owned("Pod", item):
                store.delete(pod, now)
            store.remove(item)
    template = copy.deepcopy(spec["jobTemplate"])
    metadata = {
        **(template.get("metadata") or {}),
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": [owner_reference(owner)],
        "name": f"{owner['metadata']['name']}-{int(when.timestamp()) // 60}",
    }
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
    store.create(made)
    owner.setdefault("status", {})["lastScheduleTime"] = when.isoformat()
    return made


def trim_history(store: Store, owner: Object) -> None:
    """Remove finished Jobs beyond the history limits, the oldest first."""
    for kind, key in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        done = [item for item in store.owned("Job", owner) if condition(item, kind) == "True"]
        for item in done[: max(0, len(done) - owner["spec"][key])]:
            for pod in store.owned("Pod", item):
                store.remove(pod)
            store.remove(item)


def next_times(owner: Object, start: datetime, count: int) -> list[datetime]:
    """Return the next times at which a CronJob's schedule fires."""
    return fires(owner["spec"]["schedule"], start, count)
