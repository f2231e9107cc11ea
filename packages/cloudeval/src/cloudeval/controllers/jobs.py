"""Controllers of Job and CronJob."""

import copy
from datetime import datetime

from cloudeval.errors import NotCoveredError
from cloudeval.store import (
    Objects,
    Store,
    condition,
    containers_of,
    is_active,
    is_ready,
    make,
    owner_reference,
    phase,
    pod_from_template,
)
from cloudeval.values import Object, dig

INDEX = "batch.kubernetes.io/job-completion-index"
#: Seconds before a failed pod of a Job is replaced, doubled for each failure. Kubernetes waits 10 s, doubled up to 6 min.
BACKOFF_S = 0.05


def job(store: Store, owner: Object, now: float) -> None:
    """Run pods until enough have succeeded, or until too many have failed or the deadline has passed."""
    spec, status = owner["spec"], owner.setdefault("status", {"startTime": now})
    if spec.get("backoffLimitPerIndex") is not None:
        raise NotCoveredError("no controller here has backoffLimitPerIndex")
    if _has_ended(owner):
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
    succeeded = [pod for pod in pods if phase(pod) == "Succeeded"]
    failed = [pod for pod in pods if phase(pod) == "Failed"]
    verdict, ignored = _failure_policy(spec, failed)
    counted = [pod for pod in failed if pod["metadata"]["uid"] not in ignored]
    done = {_index(pod) for pod in succeeded} if spec["completionMode"] == "Indexed" else set()
    status.update(conditions=[], succeeded=len(done or succeeded), failed=len(failed), active=len(active))
    status["ready"] = sum(map(is_ready, active))
    if spec["completionMode"] == "Indexed":
        status["completedIndexes"] = ",".join(map(str, sorted(done)))
    if reason := verdict or _give_up(spec, status, pods, counted, now):
        _finish(store, owner, "Failed", reason, now)
    elif _is_complete(spec, status, active, done):
        _finish(store, owner, "Complete", "", now)
    else:
        _start_pods(store, owner, active, succeeded, counted, now)
        status["active"] = len(store.owned("Pod", owner, active=True))


def _has_ended(owner: Object) -> bool:
    return "True" in (condition(owner, "Complete"), condition(owner, "Failed"))


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _is_complete(spec: Object, status: Object, active: Objects, done: set[int]) -> bool:
    for rule in dig(spec, "successPolicy.rules", []):
        wanted = _indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else done
        if done and len(done & wanted) >= (rule.get("succeededCount") or len(wanted)):
            return True
    if spec.get("completions") is None:  # a work queue: one success, and no pod left
        return status["succeeded"] > 0 and not active
    return bool(status["succeeded"] >= spec["completions"])


def _indexes(text: str) -> set[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return {index for low, dash, high in parts for index in range(int(low), int(high if dash else low) + 1)}


def _give_up(spec: Object, status: Object, pods: Objects, counted: Objects, now: float) -> str | None:
    deadline, limit = spec.get("activeDeadlineSeconds"), spec["backoffLimit"]
    if deadline is not None and now - status["startTime"] >= deadline:
        return "DeadlineExceeded"
    if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
        restarts = sum(
            item.get("restartCount", 0)
            for pod in pods
            if phase(pod) != "Succeeded"
            for key in ("containerStatuses", "initContainerStatuses")
            for item in pod["status"].get(key) or []
        )
        return "BackoffLimitExceeded" if restarts >= max(limit, 1) or len(counted) > limit else None
    return "BackoffLimitExceeded" if len(counted) > limit else None


def _failure_policy(spec: Object, failed: Objects) -> tuple[str | None, set[str]]:
    """Return why the failure policy ends the Job, or None, and the uids of pods whose failure it ignores."""
    ignored: set[str] = set()
    for pod in failed:
        rule: Object = next((rule for rule in dig(spec, "podFailurePolicy.rules", []) if _rule_matches(rule, pod)), {})
        if rule.get("action") == "FailJob":
            return "PodFailurePolicy", ignored
        if rule.get("action") == "Ignore":
            ignored.add(pod["metadata"]["uid"])
    return None, ignored


def _rule_matches(rule: Object, pod: Object) -> bool:
    if codes := rule.get("onExitCodes"):
        return any(
            (code := dig(item, "state.terminated.exitCode", 0))
            and codes.get("containerName") in (None, item["name"])
            and (code in codes["values"]) == (codes["operator"] == "In")
            for item in pod["status"].get("containerStatuses") or []
        )
    wanted = rule.get("onPodConditions") or []
    return any(condition(pod, item["type"]) == item.get("status", "True") for item in wanted)


def _start_pods(store: Store, owner: Object, active: Objects, succeeded: Objects, counted: Objects, now: float) -> None:
    spec, name, uid = owner["spec"], owner["metadata"]["name"], owner["metadata"]["uid"]
    last = max((pod["status"].get("finishedAt", 0.0) for pod in counted), default=0.0)
    if counted and now - last < BACKOFF_S * 2 ** (len(counted) - 1):
        return
    labels = {"job-name": name, "controller-uid": uid}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    if spec.get("completions") is None:
        room = 0 if succeeded else spec["parallelism"] - len(active)
    else:
        room = min(spec["parallelism"], spec["completions"] - len(succeeded)) - len(active)
    for pod in active[: max(0, -room)]:
        store.delete(pod, now)
    indexed = spec["completionMode"] == "Indexed"
    taken = {_index(pod) for pod in [*active, *succeeded]} if indexed else set()
    free = [number for number in range(spec["completions"]) if number not in taken] if indexed else []
    for number in range(max(0, min(room, len(free)) if indexed else room)):
        pod = pod_from_template(spec["template"], owner, labels)
        if indexed:
            _give_index(pod, name, free[number])
        store.create(pod)


def _give_index(pod: Object, name: str, index: int) -> None:
    pod["metadata"]["generateName"] = f"{name}-{index}-"
    pod["metadata"].setdefault("annotations", {})[INDEX] = str(index)
    pod["metadata"]["labels"][INDEX] = str(index)
    pod["spec"]["hostname"] = f"{name}-{index}"
    for container in containers_of(pod["spec"]):
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})


def _finish(store: Store, owner: Object, kind: str, reason: str, now: float) -> None:
    status = owner["status"]
    status["conditions"] = [{"type": kind, "status": "True", **({"reason": reason} if reason else {})}]
    status["finishedAt" if kind == "Failed" else "completionTime"] = now
    for pod in store.owned("Pod", owner, active=True):
        status["failed"] = status.get("failed", 0) + (kind == "Failed")
        store.delete(pod, now)
    status["active"] = 0


def _expire(store: Store, owner: Object, now: float) -> None:
    status, ttl = owner["status"], owner["spec"].get("ttlSecondsAfterFinished")
    if ttl is not None and now - status.get("completionTime", status.get("finishedAt", now)) >= ttl:
        _remove(store, owner, now)


def _remove(store: Store, owner: Object, now: float) -> None:
    for pod in store.owned("Pod", owner):
        store.delete(pod, now)
    store.remove(owner)


def fire(store: Store, owner: Object, when: datetime, now: float) -> Object | None:
    """Let a CronJob fire for one scheduled time. Return the Job, or None where suspend or concurrencyPolicy forbid it."""
    spec, metadata = owner["spec"], owner["metadata"]
    running = [item for item in store.owned("Job", owner) if not _has_ended(item)]
    if spec.get("suspend") or (running and spec["concurrencyPolicy"] == "Forbid"):
        return None
    for item in running if spec["concurrencyPolicy"] == "Replace" else []:
        _remove(store, item, now)
    template = copy.deepcopy(spec["jobTemplate"])
    name = f"{metadata['name']}-{int(when.timestamp()) // 60}"
    owners = [owner_reference(owner)]
    made = make("batch/v1", "Job", name, metadata["namespace"], spec=template["spec"], ownerReferences=owners)
    made["metadata"] = {**(template.get("metadata") or {}), **made["metadata"]}
    store.create(made)
    owner.setdefault("status", {})["lastScheduleTime"] = when.isoformat()
    return made


def cron_job(store: Store, owner: Object, now: float) -> None:
    """Remove finished Jobs beyond the history limits, the oldest first."""
    for kind, key in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        done = [item for item in store.owned("Job", owner) if condition(item, kind) == "True"]
        for item in done[: max(0, len(done) - owner["spec"][key])]:
            _remove(store, item, now)
