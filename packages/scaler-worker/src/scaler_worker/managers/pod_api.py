"""The pods of one namespace, by the client of Kubernetes: errors name the cause and the remedy.

Only this module imports `kubernetes`; it needs the extra of that name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import kubernetes.client
import kubernetes.config
import urllib3
from kubernetes.client.exceptions import ApiException

from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_worker.managers.pods import Pod

CALL_SECONDS: Final = 30.0
PAGE_SIZE: Final = 500
LISTINGS: Final = 3
"""How often a listing begins anew because its pages have expired."""
DEFAULT_NAMESPACE: Final = "default"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class PodApi:
    """Creates, deletes and lists pods of a namespace. The methods block; several threads may call them at once."""

    def __init__(self, configuration: Any, namespace: str, *, page_size: int = PAGE_SIZE) -> None:
        configuration.retries = False  # the manager tries again
        self._host: str = configuration.host
        self.namespace = namespace
        self._page_size = page_size
        self._client: Any = kubernetes.client.ApiClient(configuration)
        self._core = kubernetes.client.CoreV1Api(self._client)

    def create(self, pod: Pod) -> None:
        """Create a pod; one that exists already is no error. Raises ProvisionerError."""
        self._call("create", self._core.create_namespaced_pod, self.namespace, pod, ignored=409)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Have a pod end in its grace period, or remove it at once; none of that name is no error.

        Raises ProvisionerError.
        """
        grace: dict[str, Any] = {"grace_period_seconds": 0} if force else {}
        self._call("delete", self._core.delete_namespaced_pod, name, self.namespace, ignored=404, **grace)

    def list_pods(self, selector: str) -> list[Pod]:
        """All pods with these labels, read page by page. Raises ProvisionerError."""
        for _ in range(LISTINGS):
            pods = self._list_once(selector)
            if pods is not None:
                return pods
        raise ProvisionerError(f"{self._host}: the pages of a list expired {LISTINGS} times before they were read")

    def _list_once(self, selector: str) -> list[Pod] | None:
        """All pages; None if they have expired meanwhile."""
        pods: list[Pod] = []
        token = ""
        while True:
            page = self._call(
                "list",
                self._core.list_namespaced_pod,
                self.namespace,
                ignored=410,
                label_selector=selector,
                limit=self._page_size,
                **({"_continue": token} if token else {}),
            )
            if page is None:
                return None
            pods += page["items"]
            token = page["metadata"].get("continue") or ""
            if not token:
                return pods

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, verb: str, function: Callable[..., Any], *arguments: Any, ignored: int, **options: Any) -> Any:
        """The answer to a request; None if it has the status that is ignored."""
        try:
            answer = function(*arguments, **options, _preload_content=False, _request_timeout=CALL_SECONDS)
            return json.loads(answer.data)
        except ApiException as error:
            if error.status == ignored:
                return None
            raise ProvisionerError(self._refusal(verb, error)) from error
        except (urllib3.exceptions.HTTPError, json.JSONDecodeError) as error:
            raise ProvisionerError(f"the Kubernetes API at {self._host} does not answer: {error}") from error

    def _refusal(self, verb: str, error: Any) -> str:
        said = _message(error)
        if error.status == 401:
            return f"{self._host} does not accept the credentials, renew the token or kubeconfig: {said}"
        # Quotas and admission control answer 403, too.
        if error.status == 403 and f"cannot {verb} resource" in said:
            return (
                f"the manager may not {verb} pods in namespace {self.namespace}; its Role lacks the rule "
                f'{{apiGroups: [""], resources: ["pods"], verbs: ["{verb}"]}}: {said}'
            )
        return f"Kubernetes refuses to {verb} pods, {error.status} {error.reason}: {said}"


def _message(error: Any) -> str:
    """The message of the server's answer: a Status object, unless a proxy has answered."""
    text = str(error.body or "")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "no message"


def connect(kubeconfig: Path | None, context: str, namespace: str) -> PodApi:
    """The pods of a namespace: by a kubeconfig if one is named or this is no pod, otherwise by the service account.

    Raises ValueError if there is no configuration.
    """
    config: Any = kubernetes.config
    configuration = kubernetes.client.Configuration()
    in_cluster = kubeconfig is None and not context and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_cluster:
            config.load_incluster_config(client_configuration=configuration)
            own = _NAMESPACE_FILE.read_text("utf-8").strip()
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(file, context or None, client_configuration=configuration)
            contexts, active = config.list_kube_config_contexts(file)
            chosen = next((each for each in contexts if each["name"] == context), active)
            own = chosen["context"].get("namespace")
    except (config.ConfigException, OSError) as error:
        raise ValueError(
            f"no access to Kubernetes: {error}; name a file with --kubeconfig, or set KUBECONFIG"
        ) from error
    return PodApi(configuration, namespace or own or DEFAULT_NAMESPACE)


def check_pod(pod: Pod) -> None:
    """Raise ValueError, which names the field, for a pod that the client does not understand."""
    try:
        kubernetes.client.V1Pod.model_validate(pod)
    except ValueError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]  # type: ignore[attr-defined]
        raise ValueError("; ".join(faults)) from error
