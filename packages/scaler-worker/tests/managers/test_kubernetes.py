"""Units that are pods: of a small API of pods or, if SCALER_TEST_KUBE_APISERVER names one, of a real kube-apiserver."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.options import UsageError
from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers import kubernetes
from scaler_worker.managers.kubernetes import KubernetesOptions, KubernetesProvisioner, connected
from scaler_worker.managers.pod_api import connect
from support.faults import Service, Services
from support.gates import SECONDS
from support.kubernetes import (
    ADMIN,
    APISERVER,
    LIMITED,
    NAMESPACE,
    NO_SUCH_IMAGE,
    KubeApi,
    Kubelet,
    real_api,
    small_api,
)
from support.waiting import wait_until

SCHEDULER = "tcp://scheduler:2345"
WORDS = ["--worker-manager-id", "grid", "-mtc", "100", "--image", "scaler:3"]
FAIL = ["sh", "-c", "echo $SCALER_UNIT_ID >> $SEEN; exit 7", "sh"]
WAIT = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done", "sh"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    if apiserver := os.environ.get(APISERVER):
        with real_api(apiserver, tmp_path_factory.mktemp("kubernetes")) as real:
            yield real
        return
    with small_api() as small:
        yield small


@pytest.fixture
def kubelet(api: KubeApi, tmp_path: Path) -> Iterator[Kubelet]:
    running = Kubelet(api, tmp_path / "containers.log")
    yield running
    running.close()


@pytest.fixture
def make(api: KubeApi, tmp_path: Path) -> Iterator[Callable[..., KubernetesProvisioner]]:
    """Makes provisioners; their pods do not outlive the test."""
    made: list[KubernetesProvisioner] = []

    def provisioner(
        *words: str, token: str = ADMIN, command: Sequence[str] = WAIT, scheduler: str = SCHEDULER
    ) -> KubernetesProvisioner:
        config = api.kubeconfig(tmp_path / f"config{len(made)}", token)
        template = tmp_path / "pod.yaml"
        template.write_text(json.dumps({"spec": {"containers": [{"command": command}]}}), "utf-8")
        given = ("--kubeconfig", str(config), "--pod-template", str(template), *words)
        made.append(connected(options(*given, scheduler=scheduler)))
        return made[-1]

    yield provisioner
    for each in made:
        each.close()
    api.remove_pods()


def options(*words: str, scheduler: str = SCHEDULER) -> KubernetesOptions:
    return kubernetes.COMMAND.parse([scheduler, *WORDS, *words], {})


def reports_of(provisioner: KubernetesProvisioner) -> dict[str, UnitReport]:
    return dict(provisioner.list_units())


def phases(provisioner: KubernetesProvisioner) -> dict[str, UnitPhase]:
    return {unit: report.phase for unit, report in provisioner.list_units().items()}


def test_units_run_until_they_are_stopped(make: Callable[..., KubernetesProvisioner], kubelet: Kubelet) -> None:
    provisioner = make()
    units = ("Grid_A-1", "grid-a-2")
    assert provisioner.list_units() == {}
    assert provisioner.start(units, 0) == units
    assert provisioner.start(units, 0) == units, "a repeated start makes no second pod"
    wait_until(lambda: phases(provisioner) == dict.fromkeys(units, UnitPhase.RUNNING), "both run")
    provisioner.stop(("Grid_A-1", "unknown"), force=False)
    wait_until(lambda: phases(provisioner) == {"grid-a-2": UnitPhase.RUNNING}, "one has ended")
    provisioner.stop(("grid-a-2",), force=True)
    assert provisioner.list_units() == {}, "force removes it at once"


def test_pods_are_found_again_by_their_own_manager_only(make: Callable[..., KubernetesProvisioner]) -> None:
    make().start(("grid-a-1",), 0)
    assert reports_of(make()) == {"grid-a-1": UnitReport(UnitPhase.STARTING)}
    assert reports_of(make("-wmi", "other")) == {}
    assert reports_of(make(scheduler="tcp://other:2345")) == {}, "a manager of that id for another scheduler"


def test_the_end_of_a_unit_is_reported_with_its_reason_and_its_pod_deleted(
    make: Callable[..., KubernetesProvisioner], api: KubeApi, kubelet: Kubelet, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    provisioner = make("--env", f"SEEN={seen}", command=FAIL)
    provisioner.start(("Grid_A-1",), 0)
    ended: list[UnitReport] = []

    def has_ended() -> bool:
        ended.extend(report for report in provisioner.list_units().values() if report.phase is UnitPhase.ENDED)
        return bool(ended)

    wait_until(has_ended)
    assert [report.reason for report in ended] == ["container Error, exit code 7"]
    assert api.pods() == []
    assert seen.read_text("utf-8") == "Grid_A-1\n", "the unit has its name in the environment"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--image", NO_SUCH_IMAGE], "ImagePullBackOff: Back-off pulling image"),
        (["--node-selector", "disk=ssd"], "Unschedulable: 0/1 nodes are available"),
    ],
)
def test_what_keeps_a_unit_from_starting_is_its_reason(
    make: Callable[..., KubernetesProvisioner], kubelet: Kubelet, words: list[str], reason: str
) -> None:
    provisioner = make(*words)
    provisioner.start(("grid-a-1",), 0)
    wait_until(lambda: reports_of(provisioner)["grid-a-1"].reason.startswith(reason), reason)
    assert phases(provisioner) == {"grid-a-1": UnitPhase.STARTING}


def test_lists_are_read_in_pages_and_anew_when_they_expire(
    make: Callable[..., KubernetesProvisioner], api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    provisioner = make()
    units = tuple(f"grid-a-{number}" for number in range(5))
    provisioner.start(units, 0)
    pods: Any = provisioner._api
    monkeypatch.setattr(pods, "_page_size", 2)
    read_page = pods._core.list_namespaced_pod
    tokens: list[bool] = []

    def listing(*arguments: Any, **given: Any) -> Any:
        tokens.append("_continue" in given)
        answer = read_page(*arguments, **given)
        if len(tokens) == 1:
            api.forget()
        return answer

    monkeypatch.setattr(pods._core, "list_namespaced_pod", listing)
    assert phases(provisioner).keys() == set(units)
    assert tokens == [False, True, False, True, True], "410 Gone for the second page, then three pages"

    def expiring(*arguments: Any, **given: Any) -> Any:
        api.forget()
        return read_page(*arguments, **given)

    monkeypatch.setattr(pods._core, "list_namespaced_pod", expiring)
    with pytest.raises(ProvisionerError, match="expired 3 times"):
        provisioner.list_units()


@pytest.mark.parametrize("missing", ["create", "delete", "list"])
def test_a_missing_right_is_named(make: Callable[..., KubernetesProvisioner], api: KubeApi, missing: str) -> None:
    api.allow([verb for verb in ("create", "delete", "list") if verb != missing])
    provisioner = make(token=LIMITED)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: provisioner.start(("grid-a-1",), 0),
        "delete": lambda: provisioner.stop(("grid-a-1",), force=False),
        "list": provisioner.list_units,
    }
    for verb, call in calls.items():
        if verb != missing:
            call()
    with pytest.raises(ProvisionerError) as refused:
        calls[missing]()
    assert f"the manager may not {missing} pods in namespace {NAMESPACE}" in str(refused.value)
    assert f'{{apiGroups: [""], resources: ["pods"], verbs: ["{missing}"]}}' in str(refused.value)


def test_refused_pods_and_credentials(make: Callable[..., KubernetesProvisioner]) -> None:
    with pytest.raises(ProvisionerError, match='namespaces "elsewhere" not found') as refused:
        make("--namespace", "elsewhere").start(("grid-a-1",), 0)
    assert list(refused.value.accepted) == []
    with pytest.raises(ProvisionerError, match="does not accept the credentials"):
        make(token="wrong").list_units()


def test_an_api_that_does_not_answer(tmp_path: Path) -> None:
    nobody = KubeApi("http://127.0.0.1:1", "", lambda verbs: None, lambda: None)
    pods = connect(nobody.kubeconfig(tmp_path / "config"), "", "")
    with pytest.raises(ProvisionerError, match=r"the Kubernetes API at http://127.0.0.1:1 does not answer: .*refused"):
        pods.list_pods("a=b")
    pods.close()


def test_where_the_namespace_comes_from(tmp_path: Path) -> None:
    nobody = KubeApi("http://127.0.0.1:1", "", lambda verbs: None, lambda: None)
    config = nobody.kubeconfig(tmp_path / "config")
    assert connect(config, "", "").namespace == NAMESPACE
    assert connect(config, "test", "mine").namespace == "mine"


def test_settings_that_cannot_work_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "pod.yaml"
    cases = {
        "spec: {containers: [{imagePullPoliy: Never}]}": "imagePullPoliy: Extra inputs are not permitted",
        "spec: {containers: [{env: [{name: A, value: 3}]}]}": "value: Input should be a valid string",
        "spec: {": "not YAML",
        "kind: Job": f"--pod-template {file}: its kind is Job",
    }
    for text, fault in cases.items():
        file.write_text(text, "utf-8")
        with pytest.raises(ValueError) as refused:
            connected(options("--pod-template", str(file)))
        assert fault in str(refused.value)
    with pytest.raises(UsageError, match="No such file"):
        connected(options("--pod-template", str(tmp_path / "missing")))
    with pytest.raises(ValueError, match="no access to Kubernetes"):
        connected(options("--kubeconfig", str(tmp_path / "missing")))
    config = KubeApi("http://127.0.0.1:1", "", lambda verbs: None, lambda: None).kubeconfig(tmp_path / "config")
    with pytest.raises(ValueError, match="no access to Kubernetes"):
        connected(options("--kubeconfig", str(config), "--context", "other"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--cpu", "four"], "'four' is not an amount"),
        (["--env", "A"], "'A' is not name=value"),
        (["--node-selector", "disk"], "'disk' is not name=value"),
        (["--image", ""], "there is no image: give --image"),
        (["-wmi", "x" * 64], "at most 63 characters"),
    ],
)
def test_errors_name_value_and_remedy(words: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        options(*words)


def test_the_container_runs_scaler_cluster_with_the_units_options() -> None:
    given = options("-wpu", "4", "-pwc", "gpu=1", "--env", "A=b", "C=d=e", "--node-selector", "disk=ssd,zone=a")
    pod = given.template()
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["scaler_cluster"]
    unit = CLUSTER.parse(container["args"], {"SCALER_UNIT_ID": "u", "SCALER_WORKER_MANAGER_ID": "grid"})
    assert (unit.num_of_workers, unit.per_worker_capabilities, unit.unit_id) == (4, {"gpu": 1}, "u")
    assert [entry["value"] for entry in container["env"]] == ["b", "d=e", "grid"]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}


def end(manager: Service) -> int:
    """End a manager as an operator would; its exit code."""
    manager.process.terminate()
    return manager.process.wait(SECONDS)


class _Cluster(Services):
    """A scheduler, and managers whose units are pods."""

    def __init__(self, folder: Path, api: KubeApi) -> None:
        super().__init__(folder, "--scale-down-cooldown-seconds", "1")
        self._config = api.kubeconfig(folder / "config")

    def add_manager(self, *words: str) -> Service:
        log = self.folder / f"manager-{len(self.started)}.log"
        given = ["--kubeconfig", str(self._config), "--image", "scaler:3", "--poll-interval-seconds", "0.2"]
        program = "scaler_worker.managers.main"
        manager = Service(
            log, program, "kubernetes", self.address, "-wmi", "grid", "-mtc", "4", "-wpu", "2", *given, *words
        )
        self.started.append(manager)
        wait_until(lambda: "connected to the scheduler" in manager.said() or manager.process.poll() is not None)
        return manager


def test_pods_do_the_work_and_end_with_the_manager(api: KubeApi, kubelet: Kubelet, tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path, api)
    with cluster:
        manager = cluster.add_manager("--leave-units")
        with Client(cluster.address) as client:
            assert client.map(abs, range(-40, 0)) == list(range(40, 0, -1))
            names = {pod["metadata"]["name"] for pod in api.pods()}
            assert names and api.pods()[0]["spec"]["terminationGracePeriodSeconds"] == 40
            assert end(manager) == 0
            assert {pod["metadata"]["name"] for pod in api.pods()} >= names, "they are left"
            manager = cluster.add_manager()
            wait_until(lambda: not api.pods(), "idle pods of the earlier manager drain and are deleted")
            assert client.submit(abs, -2).result(SECONDS) == 2
            assert api.pods()
            assert end(manager) == 0
            assert api.pods() == [], "the manager leaves none behind"
