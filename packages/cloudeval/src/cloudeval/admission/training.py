"""Admission of training kinds (PyTorchJob, JobSet, Kueue queues): the rules of their operators' webhooks."""

from __future__ import annotations

from typing import Any

from cloudeval.admission.objects import _job_spec
from cloudeval.admission.pods import check_pod_spec
from cloudeval.schema import Fault, quantity
from cloudeval.values import Faults

Object = dict[str, Any]


def check_object(value: Object) -> list[Fault]:
    """Return why the operator would refuse the object; nothing for other kinds."""
    found = Faults()
    spec = value.get("spec") or {}
    if check := {
        "PyTorchJob": _pytorch_job,
        "JobSet": _job_set,
        "ClusterQueue": _cluster_queue,
        "LocalQueue": _local_queue,
    }.get(value["kind"]):
        check(spec, found)
    return list(found)


def _pytorch_job(spec: Object, found: Faults) -> None:
    replicas = spec.get("pytorchReplicaSpecs") or {}
    for role in replicas:
        found.require(role in ("Master", "Worker"), f"spec.pytorchReplicaSpecs.{role}", "must be Master or Worker")
    if "elasticPolicy" not in spec:
        found.require("Master" in replicas, "spec.pytorchReplicaSpecs", "needs a Master unless elasticPolicy is given")
    for role, replica in replicas.items():
        at = f"spec.pytorchReplicaSpecs.{role}"
        if role == "Master":
            found.require(replica.get("replicas", 1) == 1, f"{at}.replicas", "must be 1")
        found.at_least(replica.get("replicas"), 0, f"{at}.replicas")
        found.one_of(replica.get("restartPolicy"), ("Always", "OnFailure", "Never", "ExitCode"), f"{at}.restartPolicy")
        template = replica.get("template") or {}
        if found.require(template.get("spec"), f"{at}.template.spec", "is required"):
            check_pod_spec(template["spec"], f"{at}.template.spec", ("Always", "OnFailure", "Never"), found)
            names = [container.get("name") for container in template["spec"].get("containers") or []]
            found.require("pytorch" in names, f"{at}.template.spec.containers", 'one container must be named "pytorch"')
    policy = spec.get("runPolicy") or {}
    found.one_of(policy.get("cleanPodPolicy"), ("All", "Running", "None"), "spec.runPolicy.cleanPodPolicy")
    for key in ("backoffLimit", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        found.at_least(policy.get(key), 0, f"spec.runPolicy.{key}")
    elastic = spec.get("elasticPolicy") or {}
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if low is not None and high is not None:
        found.require(low <= high, "spec.elasticPolicy.minReplicas", "must not exceed maxReplicas")


def _job_set(spec: Object, found: Faults) -> None:
    jobs = spec.get("replicatedJobs") or []
    found.require(jobs, "spec.replicatedJobs", "is required")
    names = [job.get("name") for job in jobs]
    found.unique(names, "spec.replicatedJobs", "name")
    for index, job in enumerate(jobs):
        at = f"spec.replicatedJobs[{index}]"
        found.label_name(job.get("name"), f"{at}.name")
        found.at_least(job.get("replicas"), 0, f"{at}.replicas")
        inner = (job.get("template") or {}).get("spec")
        if found.require(inner, f"{at}.template.spec", "is required"):
            _job_spec(inner or {}, f"{at}.template.spec", found)
        for number, item in enumerate(job.get("dependsOn") or []):
            found.require(
                item.get("name") in names[:index],
                f"{at}.dependsOn[{number}].name",
                "must name an earlier replicatedJob",
            )
            found.one_of(item.get("status"), ("Ready", "Complete"), f"{at}.dependsOn[{number}].status")
    success = spec.get("successPolicy") or {}
    found.one_of(success.get("operator"), ("All", "Any"), "spec.successPolicy.operator")
    rules = (spec.get("failurePolicy") or {}).get("rules") or []
    for path, targets in [
        ("spec.successPolicy", success.get("targetReplicatedJobs")),
        *((f"spec.failurePolicy.rules[{n}]", rule.get("targetReplicatedJobs")) for n, rule in enumerate(rules)),
    ]:
        for target in targets or []:
            found.require(target in names, f"{path}.targetReplicatedJobs", f'no replicatedJob is named "{target}"')
    for index, rule in enumerate(rules):
        found.one_of(
            rule.get("action"),
            ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
            f"spec.failurePolicy.rules[{index}].action",
        )
    found.at_least((spec.get("failurePolicy") or {}).get("maxRestarts"), 0, "spec.failurePolicy.maxRestarts")
    found.one_of(
        (spec.get("startupPolicy") or {}).get("startupPolicyOrder"),
        ("AnyOrder", "InOrder"),
        "spec.startupPolicy.startupPolicyOrder",
    )


def _cluster_queue(spec: Object, found: Faults) -> None:
    seen: list[str] = []
    for index, group in enumerate(spec.get("resourceGroups") or []):
        at = f"spec.resourceGroups[{index}]"
        covered = group.get("coveredResources") or []
        seen += covered
        for number, flavor in enumerate(group.get("flavors") or []):
            names = [resource.get("name") for resource in flavor.get("resources") or []]
            found.require(names == covered, f"{at}.flavors[{number}].resources", f"must list {covered} in this order")
            for resource in flavor.get("resources") or []:
                found.require(
                    quantity(resource.get("nominalQuota", 0)) >= 0,
                    f"{at}.flavors[{number}].resources",
                    "nominalQuota must not be negative",
                )
                if resource.get("borrowingLimit") is not None:
                    found.require(
                        spec.get("cohort"),
                        f"{at}.flavors[{number}].resources.{resource.get('name')}.borrowingLimit",
                        "needs a cohort",
                    )
    found.unique(seen, "spec.resourceGroups", "resource")
    found.one_of(spec.get("queueingStrategy"), ("StrictFIFO", "BestEffortFIFO"), "spec.queueingStrategy")
    preemption = spec.get("preemption") or {}
    found.one_of(
        preemption.get("reclaimWithinCohort"), ("Never", "LowerPriority", "Any"), "spec.preemption.reclaimWithinCohort"
    )
    found.one_of(
        preemption.get("withinClusterQueue"),
        ("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
        "spec.preemption.withinClusterQueue",
    )
    if spec.get("namespaceSelector") is not None:
        found.selector(spec["namespaceSelector"], "spec.namespaceSelector")


def _local_queue(spec: Object, found: Faults) -> None:
    found.subdomain(spec.get("clusterQueue"), "spec.clusterQueue")
