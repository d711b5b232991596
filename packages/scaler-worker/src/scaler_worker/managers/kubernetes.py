"""`kubernetes`: units are bare pods, which run once.

A pod has the manager's id in a label, by which the manager finds its pods again, and the name of its unit in an
annotation and in the environment. Pods are created and deleted by name. One that has ended is reported and deleted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitReport
from scaler_io.service.options import Option, UsageError, comma_list, positive_seconds
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.options import ManagerOptions, manager_command, pair, pairs
from scaler_worker.managers.pods import (
    MANAGER_LABEL,
    NAME_LENGTH,
    Pod,
    PodSettings,
    pod_for,
    pod_name,
    pod_template,
    report_of,
    unit_of,
)
from scaler_worker.managers.running import run_manager

if TYPE_CHECKING:
    from scaler_worker.managers.pod_api import PodApi

LOGGER: Final = logging.getLogger("scaler")
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|[kMGTP]|[KMGTP]i)?")


def quantity(text: str) -> str:
    """Parse an amount as Kubernetes writes it, such as 500m, 2 or 4Gi; raises ValueError."""
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"{text!r} is not an amount: write 2 or 500m for CPUs, 512Mi or 4Gi for memory")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions(ManagerOptions):
    """The command line of `scaler_worker_manager kubernetes`."""

    image: str
    namespace: str
    pod_template: Path | None
    service_account: str
    cpu: str
    memory: str
    image_pull_secrets: tuple[str, ...]
    node_selector: dict[str, str]
    env: tuple[tuple[str, str], ...]
    kubeconfig: Path | None
    context: str
    poll_interval_seconds: float

    def __post_init__(self) -> None:
        ManagerOptions.__post_init__(self)
        if len(self.worker_manager_id) > NAME_LENGTH:
            raise UsageError(f"--worker-manager-id: a label of Kubernetes has at most {NAME_LENGTH} characters")
        if not self.image and self.pod_template is None:
            raise UsageError("there is no image: give --image, or name it in a --pod-template")

    def template(self) -> Pod:
        """The pod of all units but for its name; raises ValueError, which names the file."""
        if self.pod_template is None:
            return pod_template(None, self._settings())
        try:
            return pod_template(_read_yaml(self.pod_template), self._settings())
        except ValueError as error:
            raise UsageError(f"--pod-template {self.pod_template}: {error}") from error

    def _settings(self) -> PodSettings:
        return PodSettings(
            manager=self.worker_manager_id,
            scheduler=str(self.address),
            words=self.unit_words(""),
            drain_timeout_seconds=self.drain_timeout_seconds,
            image=self.image,
            service_account=self.service_account,
            cpu=self.cpu,
            memory=self.memory,
            image_pull_secrets=self.image_pull_secrets,
            node_selector=self.node_selector,
            environment=dict(self.env),
        )


COMMAND: Final = manager_command(
    "kubernetes",
    "Start workers as pods of a Kubernetes cluster, as the scheduler wants them.",
    KubernetesOptions,
    (
        Option(("--image", "-i"), "the container image, with scaler-worker in it", default=""),
        Option(("--namespace", "-ns"), "where pods run, if not where the manager or its context is", default=""),
        Option(
            ("--pod-template",),
            "a YAML file with a pod, for all that has no option here; options win",
            Path,
            default=None,
            metavar="FILE",
        ),
        Option(("--service-account",), "the service account of pods; they have no token without", default=""),
        Option(("--cpu",), "CPUs of a pod, requested and limit, such as 4 or 500m", quantity, default=""),
        Option(("--memory",), "memory of a pod, requested and limit, such as 4Gi", quantity, default=""),
        Option(
            ("--image-pull-secrets", "--image-pull-secret"),
            "the secrets that pulling the image needs, separated by commas",
            comma_list,
            default=(),
        ),
        Option(("--node-selector",), "labels of nodes for pods, like disk=ssd,zone=a", pairs, default={}),
        Option(("--env",), "a variable of pods, NAME=VALUE", pair, default=(), repeated=True, metavar="NAME=VALUE"),
        Option(
            ("--kubeconfig",),
            "access to the cluster; the service account of its own pod, or $KUBECONFIG, if left out",
            Path,
            default=None,
            metavar="FILE",
        ),
        Option(("--context",), "a context of that file, if not its current one", default=""),
        Option(("--poll-interval-seconds",), "how often pods are listed", positive_seconds, default=5.0),
    ),
    example="scaler_worker_manager kubernetes tcp://scheduler:2345 -wmi k8s -mtc 100 -wpu 4 --image scaler:3 --cpu 4",
)


class KubernetesProvisioner(Provisioner):
    """Starts, stops and lists units that are pods made from `template`."""

    def __init__(self, options: KubernetesOptions, api: PodApi, template: Pod) -> None:
        self._selector = f"{MANAGER_LABEL}={options.worker_manager_id}"
        self._scheduler = str(options.address)
        self._api, self._template = api, template

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Create pods; the error of one that is refused names those before it as accepted."""
        accepted: list[str] = []
        for unit in units:
            try:
                self._api.create(pod_for(self._template, unit))
            except ProvisionerError as error:
                raise ProvisionerError(str(error), accepted=accepted) from error
            accepted.append(unit)
        return units

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Delete pods, which get SIGTERM and their grace period, or are removed at once with `force`."""
        failures = []
        for unit in units:
            try:
                self._api.delete(pod_name(unit), force=force)
            except ProvisionerError as error:  # one pod that cannot be deleted must not keep the others
                failures.append(str(error))
        if failures:
            raise ProvisionerError(f"{len(failures)} of {len(units)} pods: {failures[0]}")

    def list_units(self) -> Mapping[str, UnitReport]:
        """The units of all pods of this manager and scheduler; pods of those that have ended are deleted."""
        reports = {}
        for pod in self._api.list_pods(self._selector):
            if unit := unit_of(pod, self._scheduler):
                reports[unit] = report_of(pod)
                if reports[unit].phase.has_ended and "deletionTimestamp" not in pod["metadata"]:
                    self._clean_up(pod["metadata"]["name"])
        return reports

    def _clean_up(self, name: str) -> None:
        try:
            self._api.delete(name)
        except ProvisionerError as error:
            LOGGER.warning("pod %s has ended and is not deleted: %s", name, error)

    def close(self) -> None:
        """Close the connections to the API."""
        self._api.close()


def _read_yaml(path: Path) -> object:
    import yaml

    try:
        document: object = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(error.strerror or str(error)) from error
    except yaml.YAMLError as error:
        raise UsageError(f"not YAML: {error}") from error
    return document


def connected(options: KubernetesOptions) -> KubernetesProvisioner:
    """The provisioner of these options; raises ValueError if there is no client, no access or no valid pod."""
    try:
        from scaler_worker.managers.pod_api import check_pod, connect
    except ImportError as error:
        raise UsageError(
            f'the client of Kubernetes is not installed: pip install "scaler[kubernetes]" ({error})'
        ) from error
    template = options.template()
    try:
        check_pod(template)
    except ValueError as error:
        raise UsageError(f"the pod is not valid: {error}") from error
    return KubernetesProvisioner(options, connect(options.kubeconfig, options.context, options.namespace), template)


def run(options: KubernetesOptions) -> int:
    """Run the manager until it has ended."""
    config = options.manager_config("kubernetes", poll_seconds=options.poll_interval_seconds)
    # Only the image knows its Python; units tell when they join.
    offers = tuple(replace(offer, python="", cloudpickle="") for offer in config.offers)
    return run_manager(options, lambda: connected(options), replace(config, offers=offers))
