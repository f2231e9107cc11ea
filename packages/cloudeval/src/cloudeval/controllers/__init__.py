"""The control loops of one simulated cluster. `step` runs each once; repeat it until nothing changes."""

from cloudeval.controllers import jobs, services, workloads
from cloudeval.controllers.scheduling import schedule
from cloudeval.store import Store

__all__ = ["step"]

_LOOPS = (
    ("CronJob", jobs.cron_job),
    ("Job", jobs.job),
    ("Deployment", workloads.deployment),
    ("ReplicaSet", workloads.replica_set),
    ("StatefulSet", workloads.stateful_set),
    ("DaemonSet", workloads.daemon_set),
    ("PersistentVolumeClaim", services.bind_claim),
    ("Service", services.service),
)


def step(store: Store, now: float, *, scheduling: bool = True) -> None:
    """Run every controller once, then remove objects whose owner is gone, then place pods on nodes."""
    for kind, loop in _LOOPS:
        for owner in store.list(kind):
            loop(store, owner, now)
    uids = {value["metadata"]["uid"] for value in store.objects.values()}
    for value in list(store.objects.values()):
        owners = value["metadata"].get("ownerReferences") or []
        if owners and not any(owner["uid"] in uids for owner in owners):
            store.delete(value, now)
    if scheduling:
        schedule(store)
