"""Runs the pods of a store in real containers: init containers, restarts, probes, hooks and termination.

`tick` does one round without waiting. Deviations from Kubernetes, all in time: restarts back off from 0.1 s instead of
10 s, and grace periods longer than 1 s are cut to 1 s.
"""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass, field

from cloudeval.admission.rules import image_is_valid
from cloudeval.errors import NotCoveredError
from cloudeval.runners import cgroups, images
from cloudeval.runners.containers import ADDABLE, CAPABILITIES, Container, ContainerSpec, Mount
from cloudeval.runners.network import NODE_ADDRESS, Network
from cloudeval.runners.probes import Probe, run_handler
from cloudeval.runners.sandbox import SCRATCH
from cloudeval.runners.volumes import NotYet, PodVolumes, environment, expand
from cloudeval.schema import quantity
from cloudeval.store import Store, containers_of, is_ready
from cloudeval.values import Object, dig

#: Seconds before a container is restarted, doubled for each restart up to the second number.
BACKOFF_S = (0.1, 5.0)
#: Seconds that a termination grace period has at most.
GRACE_S = 1.0
#: Seconds that a preStop hook has at most.
HOOK_S = 2.0
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass
class Run:
    """A container of a pod over all its restarts."""

    definition: Object
    init: bool
    container: Container | None = None
    restarts: int = 0
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last: Object = field(default_factory=dict)
    retry_at: float = 0.0
    done: bool = False
    probes: dict[str, Probe] = field(default_factory=dict)

    @property
    def sidecar(self) -> bool:
        """True for an init container that keeps running beside the others."""
        return self.init and self.definition.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        """True while its process runs."""
        return "running" in self.state

    @property
    def started(self) -> bool:
        """True while it runs and its startup probe, if any, has passed."""
        return self.running and self.passed("startupProbe")

    @property
    def ready(self) -> bool:
        """True while it is started and its readiness probe, if any, passes."""
        return self.started and self.passed("readinessProbe")

    def passed(self, kind: str) -> bool:
        """Return True if the probe of that kind passes, or there is none."""
        return kind not in self.probes or self.probes[kind].passing

    def signal(self, number: int) -> None:
        """Send a signal to its process, if it runs."""
        if self.running and self.container:
            self.container.signal(number)


def _capabilities(security: Object, key: str) -> set[str]:
    return {name.removeprefix("CAP_") for name in dig(security, f"capabilities.{key}", [])}


class PodRuntime:
    """One pod on this node."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet, self.pod = kubelet, pod
        self.uid, self.name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.volumes = PodVolumes(kubelet.store, pod)
        self.runs = [Run(item, True) for item in pod["spec"].get("initContainers") or []]
        self.runs += [Run(item, False) for item in pod["spec"]["containers"]]
        self.started_at: float | None = None
        self.stopping_at: float | None = None
        self.failure: str | None = None
        self.status = pod.setdefault("status", {})
        self.status.update(phase="Pending", hostIP=NODE_ADDRESS, startTime=kubelet.now())

    # ---- life

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.started_at is None:
            self._refuse()
            self.status["podIP"] = self.kubelet.network.add_pod(self.uid, self.pod["spec"])
            self.started_at = now
        for run in self.runs:
            if run.running and run.container and (code := run.container.poll()) is not None:
                self._ended(run, run.container, code, now)
            if run.running and self.stopping_at is None:
                self._probe(run, now)
        ended = self.status["phase"] in ("Succeeded", "Failed")
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        if deadline is not None and now - self.started_at > deadline and not ended:
            self.failure = "DeadlineExceeded"
        late = self.failure is not None and any(run.running for run in self.runs)
        if self._is_deleted() or late:
            self._terminate(now)
        elif not ended:
            self._advance(now)
        self._report(now)

    def _is_deleted(self) -> bool:
        return self.pod["metadata"].get("deletionTimestamp") is not None

    def _refuse(self) -> None:
        spec = self.pod["spec"]
        if spec.get("hostPID") or spec.get("hostIPC"):
            raise NotCoveredError("hostPID and hostIPC would open the sandbox; no runner here allows them")
        if spec.get("shareProcessNamespace"):
            raise NotCoveredError("shareProcessNamespace is not covered")
        for run in self.runs:
            security = run.definition.get("securityContext") or {}
            strong = _capabilities(security, "add") - set(ADDABLE)
            if asked := "privileged" if security.get("privileged") else ", ".join(sorted(strong)):
                name = run.definition["name"]
                raise NotCoveredError(f"the container {name} asks for {asked}; the sandbox does not give it")

    def _advance(self, now: float) -> None:
        for run in self.runs:
            if run.init and not run.done:
                self._ensure(run, now)
                if not (run.sidecar and run.started):
                    return
        for run in self.runs:
            if not run.init or run.sidecar:
                self._ensure(run, now)

    def _ensure(self, run: Run, now: float) -> None:
        """Start a container that should run and does not."""
        again = "terminated" in run.state
        if run.running or run.done or now < run.retry_at or (again and not self._restarts(run)):
            return
        if again:
            run.last, run.restarts = run.state, run.restarts + 1
        try:
            self.volumes.make()
            reason = self._start(run, now)
        except NotYet as error:
            reason = f"CreateContainerConfigError: {error}"
        if reason:
            run.state = {"waiting": {"reason": reason.partition(":")[0], "message": reason}}
            run.retry_at = now + 0.2

    def _restarts(self, run: Run) -> bool:
        policy, code = self.pod["spec"]["restartPolicy"], run.state["terminated"]["exitCode"]
        again = (policy == "Always" and not (run.init and code == 0)) or (policy == "OnFailure" and code != 0)
        return run.sidecar or again

    def _start(self, run: Run, now: float) -> str | None:
        """Start a container. Return why it has to wait, or None."""
        definition = run.definition
        name = definition["image"]
        if (image := images.find(name)) is None:
            never = definition.get("imagePullPolicy") == "Never"
            known = "ImagePullBackOff" if image_is_valid(name) else "InvalidImageName"
            return f"{'ErrImageNeverPull' if never else known}: no image {name}"
        env = environment(self.kubelet.store, self.pod, definition, image.env, images.PATH)
        security = {**(self.pod["spec"].get("securityContext") or {}), **(definition.get("securityContext") or {})}
        if security.get("runAsNonRoot") and security.get("runAsUser", image.user[0]) == 0:
            return "CreateContainerConfigError: container has runAsNonRoot and image will run as root"
        container = Container(self._container_spec(run, image, env, security), self.kubelet.sandbox)
        if run.container:
            run.container.remove()
            container.log.write_bytes(b"")
        if (refused := container.start()) is not None:
            run.container = None
            run.state = {"terminated": {"exitCode": 128, "reason": "StartError", "message": refused, "finishedAt": now}}
            run.retry_at = now + BACKOFF_S[0] * 2**run.restarts
            return None
        run.container, run.state = container, {"running": {"startedAt": now}}
        run.probes = {kind: Probe(kind, definition[kind], now) for kind in _PROBES if definition.get(kind)}
        hook = dig(definition, "lifecycle.postStart")
        if hook and not run_handler(hook, container, definition, self.status["podIP"], 5):
            self._kill(run)
        return None

    def _container_spec(self, run: Run, image: images.Image, env: dict[str, str], security: Object) -> ContainerSpec:
        definition, spec = run.definition, self.pod["spec"]
        entry = [expand(item, env) for item in definition.get("command") or []]
        arguments = [expand(item, env) for item in definition.get("args") or []]
        if not entry:
            entry, arguments = list(image.entrypoint), arguments or list(image.command)
        limits, requests = dig(definition, "resources.limits", {}), dig(definition, "resources.requests", {})
        adds, drops = _capabilities(security, "add"), _capabilities(security, "drop")
        usual = set() if "ALL" in drops else set(CAPABILITIES) - drops
        groups = (security.get("fsGroup"), *(security.get("supplementalGroups") or []))
        name = f"{self.uid[:8]}-{definition['name']}-{run.restarts}"
        return ContainerSpec(
            name=name,
            arguments=[*entry, *arguments],
            env=env,
            tree=image.tree,
            directory=definition.get("workingDir") or image.directory,
            user=security.get("runAsUser", image.user[0]),
            group=security.get("runAsGroup", image.user[1] if "runAsUser" not in security else 0),
            groups=tuple(group for group in groups if group is not None),
            mounts=(*self.volumes.mounts(definition, env), *self._system_files(definition, name)),
            namespace=None if spec.get("hostNetwork") else self.kubelet.network.namespace(self.uid),
            hostname=(spec.get("hostname") or self.name)[:63],
            read_only=bool(security.get("readOnlyRootFilesystem")),
            capabilities=tuple(name for name in ADDABLE if name in adds | usual),
            new_privileges=security.get("allowPrivilegeEscalation", True),
            memory_bytes=max(int(quantity(limits["memory"])), 6 * 2**20) if "memory" in limits else None,
            cpu_quota_us=max(1000, int(quantity(limits["cpu"]) * 100_000)) if "cpu" in limits else None,
            cpu_shares=max(2, int(quantity(requests["cpu"]) * 1024)) if "cpu" in requests else None,
            sysctls={item["name"]: item["value"] for item in dig(spec, "securityContext.sysctls", [])},
        )

    def _system_files(self, definition: Object, name: str) -> list[Mount]:
        folder, zone = SCRATCH / "files" / self.uid, "svc.cluster.local"
        folder.mkdir(parents=True, exist_ok=True)
        resolv, message = folder / "resolv.conf", folder / f"message-{name}"
        namespace = self.pod["metadata"]["namespace"]
        resolv.write_text(f"search {namespace}.{zone} {zone} cluster.local\noptions ndots:5\n")
        message.touch()
        message.chmod(0o666)
        files = {
            "/etc/hosts": self.kubelet.network.hosts_file(self.pod),
            "/etc/resolv.conf": resolv,
            definition.get("terminationMessagePath", "/dev/termination-log"): message,
        }
        taken = {item["mountPath"] for item in definition.get("volumeMounts") or []}
        return [Mount(source, target) for target, source in files.items() if target not in taken]

    # ---- observation

    def _ended(self, run: Run, container: Container, code: int, now: float) -> None:
        killed = code == 137 and cgroups.was_out_of_memory(self.kubelet.sandbox, container.spec.name)
        message = SCRATCH / "files" / self.uid / f"message-{container.spec.name}"
        text = message.read_text(errors="replace")[-4096:] if message.exists() else ""
        if not text and code and run.definition.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            text = container.logs()[-2048:]
        reason = "OOMKilled" if killed else "Completed" if code == 0 else "Error"
        run.state = {"terminated": {"exitCode": code, "reason": reason, "message": text, "finishedAt": now}}
        run.done = run.done or (run.init and code == 0 and not run.sidecar)
        run.retry_at = now + min(BACKOFF_S[0] * 2**run.restarts, BACKOFF_S[1])

    def _probe(self, run: Run, now: float) -> None:
        for kind, probe in run.probes.items():
            if probe.passing if kind == "startupProbe" else not run.passed("startupProbe"):
                continue
            assert run.container is not None
            ran = probe.tick(now, run.container, run.definition, self.status["podIP"])
            if ran and probe.failed and kind != "readinessProbe":
                name = run.definition["name"]
                self.kubelet.store.events.append(f"{kind} of {name} failed; the container is restarted")
                self._kill(run)
                return

    def _kill(self, run: Run) -> None:
        if run.container:
            run.container.signal(signal.SIGTERM)
            deadline = time.monotonic() + min(GRACE_S, self.pod["spec"]["terminationGracePeriodSeconds"])
            while run.container.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            run.container.signal(signal.SIGKILL)

    def _terminate(self, now: float) -> None:
        if self.stopping_at is None:
            grace = self.pod["metadata"].get("grace", self.pod["spec"]["terminationGracePeriodSeconds"])
            self.stopping_at = now + min(GRACE_S, grace)
            for run in self.runs:
                hook = dig(run.definition, "lifecycle.preStop")
                if hook and run.running and run.container:
                    run_handler(hook, run.container, run.definition, self.status["podIP"], HOOK_S)
                run.signal(signal.SIGTERM)
        elif now >= self.stopping_at:
            for run in self.runs:
                run.signal(signal.SIGKILL)
        if self._is_deleted() and not any(run.running for run in self.runs):
            self.remove()
            self.kubelet.store.remove(self.pod)

    def remove(self) -> None:
        """Remove containers, network and volumes."""
        for run in self.runs:
            if run.container:
                run.container.remove()
        self.kubelet.network.remove_pod(self.uid)
        self.volumes.remove()
        shutil.rmtree(SCRATCH / "files" / self.uid, ignore_errors=True)

    # ---- status

    def _report(self, now: float) -> None:
        main = [run for run in self.runs if not run.init]
        ready = all(run.ready for run in main) and self.stopping_at is None
        initialized = all(run.done or (run.sidecar and run.running) for run in self.runs if run.init)
        if ready and not is_ready(self.pod):
            self.status["readySince"] = now
        self.status["phase"] = self._phase(main)
        gates = [gate["conditionType"] for gate in self.pod["spec"].get("readinessGates") or []]
        conditions = {"PodScheduled": True, "Initialized": initialized, "ContainersReady": ready}
        conditions |= {"Ready": ready and not gates, **dict.fromkeys(gates, False)}
        self.status["conditions"] = [{"type": name, "status": str(holds)} for name, holds in conditions.items()]
        if self.status["phase"] in ("Succeeded", "Failed"):
            self.status.setdefault("finishedAt", now)
        if self.failure:
            self.status["reason"] = self.failure
        for key, init in (("initContainerStatuses", True), ("containerStatuses", False)):
            self.status[key] = [self._container_status(run) for run in self.runs if run.init is init]

    def _container_status(self, run: Run) -> Object:
        state, stopped = run.state, "terminated" in run.state
        if stopped and run.restarts and not run.done and self.stopping_at is None and self._restarts(run):
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        return {
            "name": run.definition["name"],
            "image": run.definition["image"],
            "restartCount": run.restarts,
            "state": state,
            "lastState": run.state if state is not run.state else run.last,
            "ready": run.ready if not run.init or run.sidecar else run.done,
            "started": run.started,
        }

    def _phase(self, main: list[Run]) -> str:
        before = str(self.status["phase"])
        if before in ("Succeeded", "Failed"):
            return before
        if self.failure and not any(run.running for run in self.runs):
            return "Failed"
        over = [run for run in self.runs if "terminated" in run.state and not run.done and not self._restarts(run)]
        if any(run.init for run in over):
            return "Failed"
        if len(over) == len(main):
            for run in self.runs:
                if run.sidecar and run.running:
                    self._kill(run)
            return "Failed" if any(run.state["terminated"]["exitCode"] for run in over) else "Succeeded"
        began = any(run.running or run.last or "terminated" in run.state for run in main)
        return "Running" if began else "Pending"


class Kubelet:
    """Runs every pod that is bound to a node of the simulated cluster. All nodes share the sandbox."""

    def __init__(self, store: Store, network: Network, sandbox: str) -> None:
        self.store, self.network, self.sandbox = store, network, sandbox
        self.pods: dict[str, PodRuntime] = {}

    @staticmethod
    def now() -> float:
        """Return the present time in seconds."""
        return time.monotonic()

    def tick(self) -> None:
        """Do one round over all pods."""
        known = {pod["metadata"]["uid"]: pod for pod in self.store.list("Pod")}
        for uid in [uid for uid in self.pods if uid not in known]:
            self.pods.pop(uid).remove()
        for uid, pod in known.items():
            if pod["spec"].get("nodeName"):
                if uid not in self.pods:
                    self.pods[uid] = PodRuntime(self, pod)
                elif self.pods[uid].pod is not pod:
                    self._adopt(self.pods[uid], pod)
                self.pods[uid].tick(self.now())

    def _adopt(self, runtime: PodRuntime, pod: Object) -> None:
        """Take over the changed spec of a running pod: other images restart their containers."""
        runtime.pod = runtime.volumes.pod = pod
        pod["status"] = runtime.status
        for run in runtime.runs:
            for definition in containers_of(pod["spec"]):
                if definition["name"] == run.definition["name"]:
                    if definition["image"] != run.definition["image"] and run.running:
                        runtime._kill(run)
                    run.definition = definition

    def runtime(self, pod: Object) -> PodRuntime | None:
        """Return the running state of a pod, or None before it has started."""
        return self.pods.get(pod["metadata"]["uid"])
