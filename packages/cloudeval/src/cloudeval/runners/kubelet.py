"""Runs the pods of a store in real containers: init containers, restarts, probes, hooks and termination.

`tick` does one round without waiting. Deviations from Kubernetes, all in time: restarts back off from 0.1 s instead of
10 s, and grace periods longer than 2 s are cut to 2 s.
"""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from cloudeval.admission.pods import image_is_valid
from cloudeval.errors import NotCoveredError
from cloudeval.runners import cgroups, images
from cloudeval.runners.containers import ADDABLE, CAPABILITIES, Container, ContainerSpec, Mount
from cloudeval.runners.network import NODE_ADDRESS, Network
from cloudeval.runners.probes import Probe, run_handler
from cloudeval.runners.sandbox import SCRATCH
from cloudeval.runners.volumes import NotYet, PodVolumes, environment, expand
from cloudeval.schema import quantity
from cloudeval.store import Store

Object = dict[str, Any]

#: Seconds before a container is restarted, doubled for each restart up to the second number.
BACKOFF_S = (0.1, 5.0)
#: Seconds that a termination grace period has at most.
GRACE_S = 2.0


@dataclass
class Run:
    """A container of a pod over all its restarts."""

    definition: Object
    init: bool
    container: Container | None = None
    restarts: int = 0
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last: Object = field(default_factory=dict)
    started_at: float = 0.0
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

    def passed(self, kind: str) -> bool:
        """Return True if the probe of that kind passes, or there is none."""
        return kind not in self.probes or self.probes[kind].passing


class PodRuntime:
    """One pod on this node."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet, self.pod = kubelet, pod
        self.uid = pod["metadata"]["uid"]
        self.volumes = PodVolumes(kubelet.store, pod)
        spec = pod["spec"]
        self.runs = [Run(item, True) for item in spec.get("initContainers") or []] + [
            Run(item, False) for item in spec["containers"]
        ]
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
            self._observe(run, now)
        if self.pod["metadata"].get("deletionTimestamp") is not None or self._is_late(now):
            self._terminate(now)
        elif self.status["phase"] not in ("Succeeded", "Failed"):
            self._advance(now)
        self._report(now)

    def _refuse(self) -> None:
        spec = self.pod["spec"]
        if spec.get("hostPID") or spec.get("hostIPC"):
            raise NotCoveredError("hostPID and hostIPC would open the sandbox; no runner here allows them")
        if spec.get("shareProcessNamespace"):
            raise NotCoveredError("shareProcessNamespace is not covered")
        for run in self.runs:
            security = run.definition.get("securityContext") or {}
            added = {name.removeprefix("CAP_") for name in (security.get("capabilities") or {}).get("add") or []}
            if security.get("privileged") or added - set(ADDABLE):
                raise NotCoveredError(
                    f"the container {run.definition['name']} asks for {'privileged' if security.get('privileged') else ', '.join(sorted(added - set(ADDABLE)))}; the sandbox does not give it"
                )

    def _is_late(self, now: float) -> bool:
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        if (
            deadline is not None
            and self.started_at is not None
            and now - self.started_at > deadline
            and self.status["phase"] not in ("Succeeded", "Failed")
        ):
            self.failure = "DeadlineExceeded"
        return self.failure is not None and any(run.running for run in self.runs)

    def _advance(self, now: float) -> None:
        for run in self.runs:
            if run.init and not run.done:
                self._ensure(run, now)
                if run.sidecar and run.running and run.passed("startupProbe"):
                    continue
                return
        for run in self.runs:
            if not run.init or run.sidecar:
                self._ensure(run, now)

    def _ensure(self, run: Run, now: float) -> None:
        """Start a container that should run and does not."""
        if run.running or run.done or now < run.retry_at:
            return
        if "terminated" in run.state and not self._restarts(run):
            return
        if "terminated" in run.state:
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
        policy = self.pod["spec"]["restartPolicy"]
        code = run.state["terminated"]["exitCode"]
        if run.sidecar:
            return True
        return (policy == "Always" and not (run.init and code == 0)) or (policy == "OnFailure" and code != 0)

    def _start(self, run: Run, now: float) -> str | None:
        definition = run.definition
        image = images.find(definition["image"])
        if image is None:
            return f"{'ErrImageNeverPull' if definition.get('imagePullPolicy') == 'Never' else 'ImagePullBackOff' if image_is_valid(definition['image']) else 'InvalidImageName'}: no image {definition['image']}"
        env = environment(self.kubelet.store, self.pod, definition, image.env, images.PATH)
        security = {**(self.pod["spec"].get("securityContext") or {}), **(definition.get("securityContext") or {})}
        user = security.get("runAsUser", image.user[0])
        if security.get("runAsNonRoot") and user == 0:
            return "CreateContainerConfigError: container has runAsNonRoot and image will run as root"
        spec = self._container_spec(run, image, env, security, user)
        if run.container:
            run.container.remove()
        container = Container(spec, self.kubelet.sandbox)
        if run.restarts and run.container:
            container.log.write_bytes(b"")
        refused = container.start()
        if refused is not None:
            run.container = None
            run.state = {"terminated": {"exitCode": 128, "reason": "StartError", "message": refused, "finishedAt": now}}
            run.retry_at = now + BACKOFF_S[0] * 2**run.restarts
            return None
        run.container, run.started_at = container, now
        run.state = {"running": {"startedAt": now}}
        run.probes = {
            kind: Probe(kind, definition[kind], now)
            for kind in ("startupProbe", "livenessProbe", "readinessProbe")
            if definition.get(kind)
        }
        hook = (definition.get("lifecycle") or {}).get("postStart")
        if hook and not run_handler(hook, container, definition, self.status["podIP"], 5):
            self._kill(run)
        return None

    def _container_spec(
        self, run: Run, image: images.Image, env: dict[str, str], security: Object, user: int
    ) -> ContainerSpec:
        definition, spec = run.definition, self.pod["spec"]
        entry = [expand(item, env) for item in definition.get("command") or []] or list(image.entrypoint)
        arguments = [expand(item, env) for item in definition.get("args") or []]
        if not arguments and not definition.get("command"):
            arguments = list(image.command)
        limits, requests = (
            (definition.get("resources") or {}).get("limits") or {},
            (definition.get("resources") or {}).get("requests") or {},
        )
        drops = {name.removeprefix("CAP_") for name in (security.get("capabilities") or {}).get("drop") or []}
        adds = {name.removeprefix("CAP_") for name in (security.get("capabilities") or {}).get("add") or []}
        kept = tuple(
            name
            for name in ADDABLE
            if name in adds or (name in CAPABILITIES and name not in drops and "ALL" not in drops)
        )
        groups = tuple(
            group
            for group in [security.get("fsGroup"), *(security.get("supplementalGroups") or [])]
            if group is not None
        )
        name = f"{self.uid[:8]}-{definition['name']}-{run.restarts}"
        return ContainerSpec(
            name=name,
            arguments=[*entry, *arguments],
            env=env,
            tree=image.tree,
            directory=definition.get("workingDir") or image.directory,
            user=user,
            group=security.get("runAsGroup", image.user[1] if "runAsUser" not in security else 0),
            groups=groups,
            mounts=(*self.volumes.mounts(definition, env), *self._system_files(definition, name)),
            namespace=None if spec.get("hostNetwork") else self.kubelet.network.namespace(self.uid),
            hostname=(spec.get("hostname") or self.pod["metadata"]["name"])[:63],
            read_only=bool(security.get("readOnlyRootFilesystem")),
            capabilities=kept,
            new_privileges=security.get("allowPrivilegeEscalation", True),
            memory_bytes=max(int(quantity(limits["memory"])), 6 * 2**20) if "memory" in limits else None,
            cpu_quota_us=max(1000, int(quantity(limits["cpu"]) * 100_000)) if "cpu" in limits else None,
            cpu_shares=max(2, int(quantity(requests["cpu"]) * 1024)) if "cpu" in requests else None,
            sysctls={item["name"]: item["value"] for item in (spec.get("securityContext") or {}).get("sysctls") or []},
        )

    def _system_files(self, definition: Object, name: str) -> list[Mount]:
        folder = SCRATCH / "files" / self.uid
        folder.mkdir(parents=True, exist_ok=True)
        hosts = self.kubelet.network.hosts_file(self.pod)
        resolv, message = folder / "resolv.conf", folder / f"message-{name}"
        resolv.write_text(
            f"search {self.pod['metadata']['namespace']}.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        )
        message.touch()
        message.chmod(0o666)
        taken = {item["mountPath"] for item in definition.get("volumeMounts") or []}
        return [
            mount
            for mount in (
                Mount(hosts, "/etc/hosts"),
                Mount(resolv, "/etc/resolv.conf"),
                Mount(message, definition.get("terminationMessagePath", "/dev/termination-log")),
            )
            if mount.target not in taken
        ]

    # ---- observation

    def _observe(self, run: Run, now: float) -> None:
        if run.running and run.container and (code := run.container.poll()) is not None:
            self._ended(run, code, now)
        if run.running and self.stopping_at is None:
            self._probe(run, now)

    def _ended(self, run: Run, code: int, now: float) -> None:
        assert run.container is not None
        memory = cgroups.was_out_of_memory(self.kubelet.sandbox, run.container.spec.name)
        reason = "OOMKilled" if memory and code == 137 else "Completed" if code == 0 else "Error"
        message = SCRATCH / "files" / self.uid / f"message-{run.container.spec.name}"
        text = message.read_text(errors="replace")[-4096:] if message.exists() else ""
        if not text and code and run.definition.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            text = run.container.logs()[-2048:]
        run.state = {"terminated": {"exitCode": code, "reason": reason, "message": text, "finishedAt": now}}
        if run.init and code == 0 and not run.sidecar:
            run.done = True
        run.retry_at = now + min(BACKOFF_S[0] * 2**run.restarts, BACKOFF_S[1])

    def _probe(self, run: Run, now: float) -> None:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = run.probes.get(kind)
            if (
                probe is None
                or (kind != "startupProbe" and not run.passed("startupProbe"))
                or (kind == "startupProbe" and probe.passing)
            ):
                continue
            assert run.container is not None
            if (
                probe.tick(now, run.container, run.definition, self.status["podIP"])
                and probe.failed
                and kind != "readinessProbe"
            ):
                self.kubelet.store.events.append(
                    f"{kind} of {run.definition['name']} failed; the container is restarted"
                )
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
        running = [run for run in self.runs if run.running and run.container]
        if self.stopping_at is None:
            grace = min(GRACE_S, self.pod["metadata"].get("grace", self.pod["spec"]["terminationGracePeriodSeconds"]))
            self.stopping_at = now + grace
            for run in running:
                hook = (run.definition.get("lifecycle") or {}).get("preStop")
                if hook and run.container:
                    run_handler(hook, run.container, run.definition, self.status["podIP"], GRACE_S)
                if run.container:
                    run.container.signal(signal.SIGTERM)
        elif now >= self.stopping_at:
            for run in running:
                if run.container:
                    run.container.signal(signal.SIGKILL)
        if not running and self.pod["metadata"].get("deletionTimestamp") is not None:
            self.remove()
            self.kubelet.store.remove(self.pod)

    def remove(self) -> None:
        """Remove containers, network and volumes."""
        for run in self.runs:
            if run.container:
                self.kubelet.old_logs[(self.pod["metadata"]["name"], run.definition["name"])] = run.container.logs()
                run.container.remove()
        self.kubelet.network.remove_pod(self.uid)
        self.volumes.remove()
        shutil.rmtree(SCRATCH / "files" / self.uid, ignore_errors=True)

    # ---- status

    def _report(self, now: float) -> None:
        main = [run for run in self.runs if not run.init]
        ready = (
            all(run.running and run.passed("startupProbe") and run.passed("readinessProbe") for run in main)
            and self.stopping_at is None
        )
        initialized = all(run.done or (run.sidecar and run.running) for run in self.runs if run.init)
        self.status["phase"] = self._phase(main)
        was_ready = any(
            item["type"] == "Ready" and item["status"] == "True" for item in self.status.get("conditions") or []
        )
        if ready and not was_ready:
            self.status["readySince"] = now
        gates = [
            {"type": gate["conditionType"], "status": "False"} for gate in self.pod["spec"].get("readinessGates") or []
        ]
        self.status["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": str(initialized)},
            {"type": "ContainersReady", "status": str(ready)},
            {"type": "Ready", "status": str(ready and not gates)},
            *gates,
        ]
        if self.status["phase"] in ("Succeeded", "Failed"):
            self.status.setdefault("finishedAt", now)
        if self.failure:
            self.status["reason"] = self.failure
        for key, init in (("initContainerStatuses", True), ("containerStatuses", False)):
            self.status[key] = [self._container_status(run) for run in self.runs if run.init is init]

    def _container_status(self, run: Run) -> Object:
        state = run.state
        if "terminated" in state and not run.done and self._restarts(run) and self.stopping_at is None and run.restarts:
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        return {
            "name": run.definition["name"],
            "image": run.definition["image"],
            "restartCount": run.restarts,
            "state": state,
            "lastState": run.state if state is not run.state else run.last,
            "ready": run.running and run.passed("startupProbe") and run.passed("readinessProbe")
            if not run.init or run.sidecar
            else run.done,
            "started": run.running and run.passed("startupProbe"),
        }

    def _phase(self, main: list[Run]) -> str:
        before = str(self.status["phase"])
        if before in ("Succeeded", "Failed"):
            return before
        if self.failure and not any(run.running for run in self.runs):
            return "Failed"
        for run in self.runs:
            if run.init and "terminated" in run.state and not run.done and not self._restarts(run):
                return "Failed"
        ended = [run for run in main if "terminated" in run.state and not self._restarts(run)]
        if len(ended) == len(main):
            if any(run.sidecar and run.running for run in self.runs):
                for run in self.runs:
                    if run.sidecar:
                        self._kill(run)
            return "Failed" if any(run.state["terminated"]["exitCode"] for run in ended) else "Succeeded"
        began = any(run.running or run.last or "terminated" in run.state for run in main)
        return "Running" if began else "Pending"


class Kubelet:
    """Runs every pod that is bound to a node of the simulated cluster. All nodes share the sandbox."""

    def __init__(self, store: Store, network: Network, sandbox: str) -> None:
        self.store, self.network, self.sandbox = store, network, sandbox
        self.pods: dict[str, PodRuntime] = {}
        self.old_logs: dict[tuple[str, str], str] = {}

    @staticmethod
    def now() -> float:
        """Return the present time in seconds."""
        return time.monotonic()

    def tick(self) -> None:
        """Do one round over all pods."""
        known = {pod["metadata"]["uid"] for pod in self.store.list("Pod")}
        for uid in [uid for uid in self.pods if uid not in known]:
            self.pods.pop(uid).remove()
        for pod in self.store.list("Pod"):
            if pod["spec"].get("nodeName"):
                runtime = self.pods.get(pod["metadata"]["uid"])
                if runtime is None or runtime.pod is not pod:
                    runtime = self._adopt(runtime, pod)
                runtime.tick(self.now())

    def _adopt(self, runtime: PodRuntime | None, pod: Object) -> PodRuntime:
        """Start a new pod, or take over the changed spec of a running one: other images restart their containers."""
        if runtime is None:
            runtime = self.pods[pod["metadata"]["uid"]] = PodRuntime(self, pod)
            return runtime
        runtime.pod = pod
        pod["status"] = runtime.status
        runtime.volumes.pod = pod
        for run in runtime.runs:
            for definition in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]:
                if definition["name"] == run.definition["name"]:
                    if definition["image"] != run.definition["image"] and run.running:
                        runtime._kill(run)
                    run.definition = definition
        return runtime

    def runtime(self, pod: Object) -> PodRuntime | None:
        """Return what runs of a pod."""
        return self.pods.get(pod["metadata"]["uid"])
