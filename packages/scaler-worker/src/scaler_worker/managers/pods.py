"""Pods as plain dicts in the form of Kubernetes: the pod of a unit, and the unit and phase of a listed pod. Pure."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaler_io.provisioning.provisioner import UnitPhase, UnitReport
from scaler_io.service.options import UsageError, one_line
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass

Pod = dict[str, Any]
"""A pod, or a part of one, as in JSON."""

MANAGER_LABEL: Final = "scaler/worker-manager"
"""The label that finds all pods of a manager."""
UNIT_ANNOTATION: Final = "scaler/unit"
"""The name of the unit as the manager knows it."""
SCHEDULER_ANNOTATION: Final = "scaler/scheduler"
"""The address of the scheduler that the manager works for."""
CONTAINER: Final = "worker"
NAME_LENGTH: Final = 63
"""Also the limit of the host name, which is the pod's name."""
EXIT_SECONDS: Final = 15
"""Between the deadline of draining and SIGKILL: handing objects over may take 8 s of them."""
MESSAGE_LENGTH: Final = 500

_USUAL_WAITS: Final = frozenset(("", "ContainerCreating", "PodInitializing"))
_RECLAIMED: Final = frozenset(("NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"))
"""Reasons of failed pods whose node is gone or was needed for others."""
_GIVEN_BY_MANAGER: Final = ("name", "generateName", "namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The options for all pods of a manager; an empty one leaves the value of the template."""

    manager: str
    scheduler: str
    words: Sequence[str]
    """The arguments of scaler_cluster."""
    drain_timeout_seconds: float
    image: str = ""
    service_account: str = ""
    cpu: str = ""
    memory: str = ""
    image_pull_secrets: Sequence[str] = ()
    node_selector: Mapping[str, str]
    environment: Mapping[str, str]


def pod_name(unit: str) -> str:
    """The name of a unit's pod, always the same one: an RFC 1123 label, and no two units have the same."""
    name = re.sub(r"[^a-z0-9-]", "-", unit.lower()).strip("-")
    if name == unit and len(name) <= NAME_LENGTH:
        return name
    digest = hashlib.sha256(unit.encode()).hexdigest()[:8]
    return f"{name[: NAME_LENGTH - 9].rstrip('-')}-{digest}".lstrip("-")


def pod_template(document: object, settings: PodSettings) -> Pod:
    """The pod of all units but for its name: `document`, the file of the user (None without one), with the settings.

    Raises UsageError for a document that is no pod or that contradicts the manager.
    """
    pod = _checked_document(document)
    labels, annotations = _part(pod["metadata"], "labels"), _part(pod["metadata"], "annotations")
    labels[MANAGER_LABEL] = settings.manager
    annotations[SCHEDULER_ANNOTATION] = settings.scheduler
    spec = pod["spec"]
    _set_end(spec, settings.drain_timeout_seconds)
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    else:
        # Tasks are code of users: they need no access to the API unless somebody says so.
        spec.setdefault("automountServiceAccountToken", False)
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    _part(spec, "nodeSelector").update(settings.node_selector)
    if not spec["nodeSelector"]:
        del spec["nodeSelector"]
    container = _worker_container(spec)
    _set_container(container, settings)
    _share_memory(spec, container)
    return pod


def pod_for(template: Pod, unit: str) -> Pod:
    """The pod of one unit."""
    pod = copy.deepcopy(template)
    pod["metadata"]["name"] = pod_name(unit)
    pod["metadata"]["annotations"][UNIT_ANNOTATION] = unit
    container = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
    container["env"].append({"name": UNIT_VARIABLE, "value": unit})
    return pod


def _checked_document(document: object) -> Pod:
    pod = {} if document is None else copy.deepcopy(document)
    if not isinstance(pod, dict):
        raise UsageError("it is no pod: write a mapping with `metadata` and `spec`")
    kind = pod.setdefault("kind", "Pod")
    pod.setdefault("apiVersion", "v1")
    if kind != "Pod":
        raise UsageError(f"its kind is {kind}: write a Pod")
    if unknown := pod.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        raise UsageError(f"unknown key {min(unknown, key=str)}: a pod template has apiVersion, kind, metadata and spec")
    metadata, _ = _part(pod, "metadata"), _part(pod, "spec")
    for name in _GIVEN_BY_MANAGER:
        if name in metadata:
            raise UsageError(f"metadata.{name} is given by the manager: leave it out")
    return pod


def _part(holder: Pod, key: str) -> Pod:
    """The mapping under a key, made if it is missing."""
    part = holder.setdefault(key, {})
    if not isinstance(part, dict):
        raise UsageError(f"{key} is not a mapping")
    return part


def _set_end(spec: Pod, drain_timeout_seconds: float) -> None:
    """How the pod ends: it runs once, and has the time to drain after SIGTERM."""
    if spec.setdefault("restartPolicy", "Never") != "Never":
        raise UsageError(f"spec.restartPolicy is {spec['restartPolicy']}: write Never, the manager replaces pods")
    needed = math.ceil(drain_timeout_seconds) + EXIT_SECONDS
    if spec.setdefault("terminationGracePeriodSeconds", needed) < needed:
        raise UsageError(
            f"spec.terminationGracePeriodSeconds {spec['terminationGracePeriodSeconds']} is too short to drain, "
            f"which takes {needed} s: leave it out, it follows --drain-timeout-seconds"
        )


def _worker_container(spec: Pod) -> Pod:
    """The container of the worker: the one of that name, the only one, or a new one."""
    containers = spec.setdefault("containers", [{}])
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers) or not containers:
        raise UsageError("spec.containers is not a list of containers")
    named = [each for each in containers if each.get("name") == CONTAINER]
    if not named and len(containers) > 1:
        raise UsageError(f"none of the containers is called {CONTAINER!r}: call the one of scaler_cluster that")
    container: Pod = named[0] if named else containers[0]
    container["name"] = CONTAINER
    return container


def _set_container(container: Pod, settings: PodSettings) -> None:
    if "args" in container:
        raise UsageError("args of the worker's container are given by the manager: leave them out, or use `command`")
    if settings.image:
        container["image"] = settings.image
    if not container.get("image"):
        raise UsageError("there is no image: give --image, or name it in the --pod-template")
    container.setdefault("command", ["scaler_cluster"])
    container["args"] = list(settings.words)
    # The last lines of the log tell why it has failed.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    environment = {**settings.environment, MANAGER_VARIABLE: settings.manager}
    given = [entry for entry in container.get("env") or () if entry.get("name") not in environment]
    container["env"] = [*given, *({"name": name, "value": value} for name, value in environment.items())]
    for name, amount in (("cpu", settings.cpu), ("memory", settings.memory)):
        if amount:
            resources = _part(container, "resources")
            _part(resources, "requests")[name] = amount
            _part(resources, "limits")[name] = amount


def _share_memory(spec: Pod, container: Pod) -> None:
    """Mount memory for objects that workers share, unless the template does: containers have 64 MiB otherwise."""
    mounts = container.setdefault("volumeMounts", [])
    if any(mount.get("mountPath") == "/dev/shm" for mount in mounts):
        return
    mounts.append({"name": "scaler-shared-memory", "mountPath": "/dev/shm"})
    spec.setdefault("volumes", []).append({"name": "scaler-shared-memory", "emptyDir": {"medium": "Memory"}})


# --- what a pod says of its unit ------------------------------------------------------------------------------------


def unit_of(pod: Pod, scheduler: str) -> str:
    """The unit that a listed pod is; empty for a pod of another scheduler or of none."""
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get(UNIT_ANNOTATION, "")) if annotations.get(SCHEDULER_ANNOTATION) == scheduler else ""


def report_of(pod: Pod) -> UnitReport:
    """The status of a pod's unit: its phase, and why it has ended or what keeps it from starting."""
    status = pod.get("status") or {}
    terminated = _worker_state(status).get("terminated")
    phase = status.get("phase")
    # A sidecar may keep a pod running whose worker has ended.
    if phase in ("Failed", "Succeeded") or terminated:
        return UnitReport(UnitPhase.RECLAIMED if _is_reclaimed(status) else UnitPhase.ENDED, _end(status, terminated))
    if phase == "Pending":
        return UnitReport(UnitPhase.STARTING, _hindrance(status))
    return UnitReport(UnitPhase.RUNNING)


def _worker_state(status: Pod) -> Pod:
    states = status.get("containerStatuses") or ()
    return next((each.get("state") or {} for each in states if each.get("name") == CONTAINER), {})


def _condition(status: Pod, kind: str) -> Pod:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _is_reclaimed(status: Pod) -> bool:
    # An eviction may also be the unit's own fault: it takes more memory or disk than it asked for.
    if status.get("reason") == "Evicted":
        return False
    return status.get("reason") in _RECLAIMED or _condition(status, "DisruptionTarget").get("status") == "True"


def _end(status: Pod, terminated: Pod | None) -> str:
    """Why a pod has ended, in one line."""
    parts = []
    if terminated:
        signal, code = terminated.get("signal"), terminated.get("exitCode")
        how = f"signal {signal}" if signal else f"exit code {code}"
        parts.append(f"container {terminated.get('reason') or 'ended'}, {how}")
    parts += [text for text in (status.get("reason"), status.get("message")) if text]
    if terminated and terminated.get("message"):
        parts.append(terminated["message"])
    return one_line(": ".join(parts))[:MESSAGE_LENGTH] or f"pod {status.get('phase')}"


def _hindrance(status: Pod) -> str:
    """Why a pending pod does not start; empty if it needs only time."""
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waits = [(each.get("state") or {}).get("waiting") or {} for each in states]
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        waits.insert(0, scheduled)
    for wait in waits:
        if wait.get("reason", "") not in _USUAL_WAITS:
            return one_line(": ".join(text for text in (wait["reason"], wait.get("message")) if text))[:MESSAGE_LENGTH]
    return ""
