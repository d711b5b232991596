"""Kubernetes for tests: the API of pods, real or small, and a kubelet whose containers are processes of this host."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.processes import PROGRAMS, free_ports
from support.waiting import wait_until

NAMESPACE = "scaler"
ADMIN = "admin-token"
LIMITED = "limited-token"
NO_SUCH_IMAGE = "no.such/image"
APISERVER = "SCALER_TEST_KUBE_APISERVER"
"""The path of a kube-apiserver; etcd is in PATH. Tests then use it instead of the small API."""
POLL_SECONDS = 0.03
Json = dict[str, Any]


@dataclass(frozen=True)
class KubeApi:
    """Where an API listens, and how tests make it behave."""

    url: str
    certificate: str
    """PEM text; empty without TLS."""
    allow: Callable[[Sequence[str]], None]
    """What the limited user may do with pods: these verbs."""
    forget: Callable[[], None]
    """Make lists expire whose pages are not read yet."""

    def kubeconfig(self, path: Path, token: str = ADMIN) -> Path:
        """Write the configuration of a user."""
        cluster: Json = {"server": self.url}
        if self.certificate:
            cluster["certificate-authority-data"] = base64.b64encode(self.certificate.encode()).decode()
        context = {"cluster": "test", "user": "user", "namespace": NAMESPACE}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document), "utf-8")  # JSON is YAML
        return path

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """An administrator's request; HTTPError if it is refused."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind},
            method=method,
        )
        context = ssl.create_default_context(cadata=self.certificate) if self.certificate else None
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            found: Json = json.loads(answer.read())
        return found

    def pods(self) -> list[Json]:
        """All pods of the namespace."""
        items: list[Json] = self.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return items

    def remove_pods(self) -> None:
        """Remove all pods at once."""
        for pod in self.pods():
            self.request("DELETE", f"{path_of(pod)}?gracePeriodSeconds=0")


def path_of(pod: Json) -> str:
    """The path of a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


# --- the small API --------------------------------------------------------------------------------------------------


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class PodStore:
    """The pods of a small API, which behaves as a kube-apiserver of version 1.20 does in the tests of this folder."""

    pods: dict[str, Json] = field(default_factory=dict)
    revision: int = 1
    oldest: int = 1
    """The first revision that pages may be read of."""
    verbs: Sequence[str] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def allow(self, verbs: Sequence[str]) -> None:
        self.verbs = tuple(verbs)

    def forget(self) -> None:
        self.revision += 1
        self.oldest = self.revision

    def answer(self, method: str, url: str, token: str, body: Json | None) -> Json:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        words = parts.path.strip("/").split("/")[2:]  # after api/v1
        if len(words) < 3 or words[0] != "namespaces" or words[2] != "pods":
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        name, rest = "".join(words[3:4]), "".join(words[4:5])
        verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}.get(method, "get" if name else "list")
        self._authorize(token, verb, words[1])
        if words[1] != NAMESPACE and verb == "create":
            raise Refused(404, "NotFound", f'namespaces "{words[1]}" not found')
        with self.lock:
            self.revision += 1
            if not name:
                return self._create(body or {}) if verb == "create" else self._list(words[1], query)
            pod = self.pods.get(name)
            if pod is None:
                raise Refused(404, "NotFound", f'pods "{name}" not found')
            if rest == "binding":
                pod["spec"]["nodeName"] = (body or {})["target"]["name"]
            elif rest == "status":
                pod["status"].update((body or {})["status"])
            elif verb == "delete":
                self._delete(pod, query.get("gracePeriodSeconds"))
            return pod

    def _authorize(self, token: str, verb: str, namespace: str) -> None:
        if token == LIMITED and verb not in self.verbs:
            where = f'in API group "" in the namespace "{namespace}"'
            message = f'pods is forbidden: User "limited" cannot {verb} resource "pods" {where}'
            raise Refused(403, "Forbidden", message)
        if token not in (LIMITED, ADMIN):
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _create(self, pod: Json) -> Json:
        name = pod["metadata"]["name"]
        if name in self.pods:
            raise Refused(409, "AlreadyExists", f'pods "{name}" already exists')
        if not name.replace("-", "").isalnum() or name != name.lower():
            raise Refused(422, "Invalid", f'Pod "{name}" is invalid: metadata.name: Invalid value: "{name}"')
        pod["metadata"]["namespace"] = NAMESPACE
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        return pod

    def _list(self, namespace: str, query: dict[str, str]) -> Json:
        revision, _, after = query.get("continue", f"{self.revision}|").partition("|")
        if int(revision) < self.oldest:
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        key, _, value = query.get("labelSelector", "").partition("=")
        found = [
            pod
            for name, pod in sorted(self.pods.items())
            if namespace == NAMESPACE and name > after and (not key or pod["metadata"]["labels"].get(key) == value)
        ]
        limit = int(query.get("limit", 0)) or len(found)
        page, more = found[:limit], found[limit:]
        token = f"{revision}|{page[-1]['metadata']['name']}" if more else ""
        return {"kind": "PodList", "metadata": {"continue": token} if token else {}, "items": page}

    def _delete(self, pod: Json, asked: str | None) -> None:
        grace = int(asked) if asked is not None else pod["spec"]["terminationGracePeriodSeconds"]
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Failed", "Succeeded"):
            grace = 0
        if not grace:
            del self.pods[pod["metadata"]["name"]]
        pod["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        pod["metadata"]["deletionGracePeriodSeconds"] = grace


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: PodStore

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        try:
            code, found = 200, self.store.answer(self.command, self.path, token, body)
        except Refused as refused:
            code = refused.code
            found = {"kind": "Status", "status": "Failure", "reason": refused.reason, "message": str(refused)}
        text = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = do_PATCH = _answer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""


@contextmanager
def small_api() -> Iterator[KubeApi]:
    """An API in a thread of this process."""
    store = PodStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield KubeApi(f"http://127.0.0.1:{server.server_address[1]}", "", store.allow, store.forget)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- a real one -----------------------------------------------------------------------------------------------------


@contextmanager
def real_api(apiserver: str, folder: Path) -> Iterator[KubeApi]:
    """The kube-apiserver of this path with an etcd of its own, for a namespace and a limited user."""
    port = free_ports(3)
    etcd, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    (folder / "tokens").write_text(f"{ADMIN},admin,1,system:masters\n{LIMITED},limited,2\n", "utf-8")
    subprocess.run(["openssl", "genrsa", "-out", folder / "key", "2048"], check=True, capture_output=True)
    with (
        _program(
            folder / "etcd.log",
            *("etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd}"),
            *(f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}"),
            *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
        ),
        _program(
            folder / "apiserver.log",
            *(apiserver, f"--etcd-servers={etcd}", f"--secure-port={port + 2}", "--bind-address=127.0.0.1"),
            *(f"--cert-dir={folder}", f"--token-auth-file={folder / 'tokens'}", "--authorization-mode=RBAC"),
            *("--disable-admission-plugins=ServiceAccount", "--service-account-issuer=https://scaler.test"),
            *(f"--service-account-key-file={folder / 'key'}", f"--service-account-signing-key-file={folder / 'key'}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"),
        ),
    ):
        certificate = folder / "apiserver.crt"
        wait_until(certificate.exists, "the certificate of the apiserver", 60)
        api = KubeApi(
            f"https://127.0.0.1:{port + 2}",
            certificate.read_text("utf-8"),
            lambda verbs: _write_role(api, verbs),
            lambda: _compact(etcd),
        )
        wait_until(lambda: _is_ready(api), "the apiserver", 60)
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        api.request(
            "POST",
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
            {
                "metadata": {"name": "limited"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "limited"}],
            },
        )
        yield api


@contextmanager
def _program(log: Path, *words: str) -> Iterator[None]:
    with open(log, "wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(api: KubeApi) -> bool:
    try:
        api.request("GET", "/api/v1/namespaces/default")
    except OSError:
        return False
    return True


def _write_role(api: KubeApi, verbs: Sequence[str]) -> None:
    """Give the limited user these verbs, and wait until the server knows it."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}
    role = {"metadata": {"name": "limited"}, "rules": [rule]}
    try:
        api.request("POST", roles, role)
    except urllib.error.HTTPError as error:
        assert error.code == 409
        api.request("PUT", f"{roles}/limited", role)
    for verb in ("create", "delete", "list"):
        wait_until(lambda: _may(api, verb) is (verb in verbs), f"the right to {verb}")  # noqa: B023


def _may(api: KubeApi, verb: str) -> bool:
    attributes = {"namespace": NAMESPACE, "verb": verb, "resource": "pods"}
    review = {"spec": {"user": "limited", "resourceAttributes": attributes}}
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def _compact(etcd: str) -> None:
    """Have etcd forget all revisions but a new one."""
    key = base64.b64encode(b"scaler-test").decode()
    revision = _etcd(f"{etcd}/v3/kv/put", {"key": key, "value": key})["header"]["revision"]
    _etcd(f"{etcd}/v3/kv/compaction", {"revision": revision})


def _etcd(url: str, body: Json) -> Json:
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=20) as answer:
        found: Json = json.loads(answer.read())
    return found


# --- the kubelet ----------------------------------------------------------------------------------------------------


@dataclass
class _Container:
    process: subprocess.Popen[bytes]
    kill_at: float | None = None


class Kubelet:
    """The only node: it binds pods without a node selector and runs their containers as processes of this host."""

    def __init__(self, api: KubeApi, log: Path) -> None:
        self._api, self._log = api, log
        self._containers: dict[str, _Container] = {}
        self._told: set[str] = set()
        self._end = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End, and all containers with it."""
        self._end.set()
        self._thread.join()
        for container in self._containers.values():
            container.process.kill()
            container.process.wait()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._end.wait(POLL_SECONDS):
                self._turn()
        except Exception as error:
            self._failure = error

    def _turn(self) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self._api.pods()}
        for name, pod in pods.items():
            try:
                self._sync(name, pod)
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409):  # it was deleted or changed meanwhile
                    raise
        for name in self._containers.keys() - pods.keys():
            container = self._containers.pop(name)
            container.process.kill()
            container.process.wait()

    def _sync(self, name: str, pod: Json) -> None:
        container = self._containers.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._terminate(pod, container)
        elif container is None and name not in self._told:
            self._begin(name, pod)
        elif container and container.process.poll() is not None and pod["status"]["phase"] == "Running":
            self._tell_end(pod, container.process.returncode)

    def _begin(self, name: str, pod: Json) -> None:
        spec = pod["spec"]["containers"][0]
        if pod["spec"].get("nodeSelector"):
            message = "0/1 nodes are available: 1 node(s) didn't match node selector."
            no_node = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self._told.add(name)
            return self._tell(pod, {"conditions": [no_node]})
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
            binding = {"metadata": {"name": name}, "target": target}
            self._api.request("POST", f"{path_of(pod)}/binding", binding)
        if spec["image"] == NO_SUCH_IMAGE:
            self._told.add(name)
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{NO_SUCH_IMAGE}"'}
            return self._tell(pod, {"containerStatuses": [_state(spec, {"waiting": waiting})]})
        environment = {each["name"]: each["value"] for each in spec["env"]}
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **environment}
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                [*spec["command"], *spec["args"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._containers[name] = _Container(process)
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        self._tell(pod, {"phase": "Running", "containerStatuses": [_state(spec, running)]})

    def _terminate(self, pod: Json, container: _Container | None) -> None:
        if container is not None and container.process.poll() is None:
            if container.kill_at is None:
                container.process.send_signal(signal.SIGTERM)
                container.kill_at = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
            elif time.monotonic() > container.kill_at:
                container.process.kill()
            return
        self._api.request("DELETE", f"{path_of(pod)}?gracePeriodSeconds=0")

    def _tell_end(self, pod: Json, code: int) -> None:
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        states = [_state(pod["spec"]["containers"][0], {"terminated": ended})]
        self._tell(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": states})

    def _tell(self, pod: Json, status: Json) -> None:
        self._api.request("PATCH", f"{path_of(pod)}/status", {"status": status})


def _state(container: Json, state: Json) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }
