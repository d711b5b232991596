"""The pod of a unit, and what a listed pod says of its unit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scaler_io.provisioning.provisioner import UnitPhase, UnitReport
from scaler_io.service.options import UsageError
from scaler_worker.managers.pods import PodSettings, pod_for, pod_name, pod_template, report_of, unit_of

SCHEDULER = "tcp://scheduler:2345"
RFC_1123 = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def settings(**changes: Any) -> PodSettings:
    given: dict[str, Any] = {
        "manager": "grid",
        "scheduler": SCHEDULER,
        "words": [SCHEDULER, "--num-of-workers", "4"],
        "drain_timeout_seconds": 25.0,
        "node_selector": {},
        "environment": {},
    }
    return PodSettings(**{**given, **changes})


def test_a_pod_from_options_only() -> None:
    template = pod_template(
        None,
        settings(
            image="scaler:3",
            service_account="worker",
            cpu="4",
            memory="8Gi",
            image_pull_secrets=("registry",),
            node_selector={"disk": "ssd"},
            environment={"A": "b"},
        ),
    )
    assert pod_for(template, "grid-00ff00-1") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "grid-00ff00-1",
            "labels": {"scaler/worker-manager": "grid"},
            "annotations": {"scaler/scheduler": SCHEDULER, "scaler/unit": "grid-00ff00-1"},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 40,
            "serviceAccountName": "worker",
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {
                    "name": "worker",
                    "image": "scaler:3",
                    "command": ["scaler_cluster"],
                    "args": [SCHEDULER, "--num-of-workers", "4"],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "SCALER_WORKER_MANAGER_ID", "value": "grid"},
                        {"name": "SCALER_UNIT_ID", "value": "grid-00ff00-1"},
                    ],
                    "resources": {
                        "requests": {"cpu": "4", "memory": "8Gi"},
                        "limits": {"cpu": "4", "memory": "8Gi"},
                    },
                    "volumeMounts": [{"name": "scaler-shared-memory", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "scaler-shared-memory", "emptyDir": {"medium": "Memory"}}],
        },
    }


def test_options_win_over_the_template_and_the_rest_of_it_stays() -> None:
    document: Any = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 600,
            "nodeSelector": {"zone": "a", "disk": "hdd"},
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {
                    "name": "worker",
                    "image": "old",
                    "command": ["/opt/scaler_cluster"],
                    "env": [{"name": "KEPT", "value": "1"}, {"name": "A", "value": "old"}],
                    "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}],
                },
            ],
        },
    }
    pod = pod_for(
        pod_template(document, settings(image="new", node_selector={"disk": "ssd"}, environment={"A": "b"})), "u"
    )
    assert pod["metadata"]["labels"] == {"team": "a", "scaler/worker-manager": "grid"}
    assert pod["metadata"]["annotations"]["note"] == "b"
    spec = pod["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}] and spec["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert spec["terminationGracePeriodSeconds"] == 600 and spec["automountServiceAccountToken"] is False
    assert "volumes" not in spec, "the template has its own shared memory"
    proxy, worker = spec["containers"]
    assert proxy == {"name": "proxy", "image": "proxy:1"}
    assert (worker["image"], worker["command"]) == ("new", ["/opt/scaler_cluster"])
    assert [entry["name"] for entry in worker["env"]] == ["KEPT", "A", "SCALER_WORKER_MANAGER_ID", "SCALER_UNIT_ID"]
    assert worker["env"][1]["value"] == "b"
    assert document["metadata"]["labels"] == {"team": "a"}, "the document is not changed"


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (["a"], "it is no pod"),
        ({"kind": "Deployment"}, "its kind is Deployment: write a Pod"),
        ({"status": {}}, "unknown key status"),
        ({"metadata": {"name": "x"}}, "metadata.name is given by the manager"),
        ({"spec": []}, "spec is not a mapping"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy is Always: write Never"),
        ({"spec": {"terminationGracePeriodSeconds": 30}}, "30 is too short to drain, which takes 40 s"),
        ({"spec": {"containers": []}}, "spec.containers is not a list of containers"),
        ({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}, "none of the containers is called 'worker'"),
        ({"spec": {"containers": [{"image": "a", "args": ["x"]}]}}, "args of the worker's container are given"),
        ({}, "there is no image: give --image"),
    ],
)
def test_templates_that_contradict_the_manager_are_refused(document: object, fault: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fault)):
        pod_template(document, settings())


def test_names_of_pods_are_rfc_1123_and_differ_where_units_do() -> None:
    assert pod_name("grid-00ff00-12") == "grid-00ff00-12"
    units = ["Grid-1", "grid_1", "grid.1", "_", "x" * 70 + "-1", "x" * 70 + "-2", "a" * 54 + "--b" + "c" * 20]
    names = [pod_name(unit) for unit in units]
    assert all(RFC_1123.fullmatch(name) for name in names), names
    assert len({*names, "grid-1"}) == len(units) + 1
    assert names == [pod_name(unit) for unit in units]


def pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [] if state is None else [{"name": "worker", "state": state}]
    return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": states, **status}}


NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.mark.parametrize(
    ("listed", "report"),
    [
        (pod("Running", {"running": {}}), UnitReport(UnitPhase.RUNNING)),
        (pod("Unknown"), UnitReport(UnitPhase.RUNNING)),
        ({"metadata": {"name": "p"}}, UnitReport(UnitPhase.RUNNING)),
        (pod("Pending"), UnitReport(UnitPhase.STARTING)),
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), UnitReport(UnitPhase.STARTING)),
        (
            pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "back-off\npulling"}}),
            UnitReport(UnitPhase.STARTING, "ImagePullBackOff: back-off; pulling"),
        ),
        (
            pod("Pending", conditions=[NO_NODE]),
            UnitReport(UnitPhase.STARTING, "Unschedulable: 0/3 nodes are available"),
        ),
        (
            pod("Failed", {"terminated": {"reason": "Error", "exitCode": 7, "message": "no such host"}}),
            UnitReport(UnitPhase.ENDED, "container Error, exit code 7: no such host"),
        ),
        (
            pod("Failed", {"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
            UnitReport(UnitPhase.ENDED, "container OOMKilled, exit code 137"),
        ),
        (
            pod("Succeeded", {"terminated": {"reason": "Completed", "exitCode": 0}}),
            UnitReport(UnitPhase.ENDED, "container Completed, exit code 0"),
        ),
        (
            pod("Running", {"terminated": {"reason": "Error", "exitCode": 1}}),
            UnitReport(UnitPhase.ENDED, "container Error, exit code 1"),
        ),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory"),
            UnitReport(UnitPhase.ENDED, "Evicted: The node was low on resource: memory"),
        ),
        (pod("Failed", reason="NodeShutdown"), UnitReport(UnitPhase.RECLAIMED, "NodeShutdown")),
        (pod("Failed", conditions=[DISRUPTED]), UnitReport(UnitPhase.RECLAIMED, "pod Failed")),
    ],
)
def test_what_a_pod_says_of_its_unit(listed: dict[str, Any], report: UnitReport) -> None:
    assert report_of(listed) == report


def test_pods_of_others_are_no_units() -> None:
    own = pod_for(pod_template(None, settings(image="i")), "Unit_1")
    assert unit_of(own, SCHEDULER) == "Unit_1"
    assert unit_of(own, "tcp://other:2345") == "" and unit_of(pod("Running"), SCHEDULER) == ""
