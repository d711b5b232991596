"""Worker adapters as the scheduler asks them, against an HTTP server that answers what a test says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_protocol.addresses import Address
from scaler_scheduler.service import webhook
from scaler_scheduler.service.options import COMMAND
from scaler_scheduler.service.webhook import (
    AdapterClient,
    AdapterFault,
    AdapterInfo,
    WebhookProvisioner,
    Webhooks,
    manager_of,
)
from support.waiting import wait_until

INFO = "get_worker_adapter_info"


class ScriptedAdapter:
    """Answers by a script: statuses with bodies; when it is used up, 200."""

    def __init__(self) -> None:
        self.script: list[tuple[int, object]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.silence = threading.Lock()
        """Nothing is answered while somebody holds it."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.headers.append(self.headers["Authorization"])
                with outer.silence:
                    pass
                status, body = outer.script.pop(0) if outer.script else (200, {"status": "ok"})
                if not status:  # no answer, or none of HTTP
                    self.wfile.write(str(body or "").encode())
                    return
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAdapter]:
    monkeypatch.setattr(webhook, "RETRY_SECONDS", (0.0, 0.0))
    made = ScriptedAdapter()
    yield made
    made.close()


def units(adapter: ScriptedAdapter, token: str | None = None) -> WebhookProvisioner:
    return WebhookProvisioner(AdapterClient(adapter.url, token), "web")


class OverlappingAdapter(AdapterClient):
    """Names groups as it likes, and does something else while it answers to a listing or a start."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def ask(self, action: str, *, attempts: bool = True, seconds: float = 0.0, **more: object) -> Any:
        rows = [{"worker_group_id": group, "worker_manager_id": "web"} for group in self.groups]
        if action == "start_worker_group":
            self.groups.append("theirs")
        elif action == "shutdown_worker_group":
            self.groups.remove(str(more["worker_group_id"]))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return {"worker_groups": rows} if action == INFO else {"worker_group_id": "theirs"}


def test_a_listing_that_overlaps_with_a_start_loses_no_group() -> None:
    adapter = OverlappingAdapter()
    provisioner = WebhookProvisioner(adapter, "web")
    adapter.meanwhile = lambda: provisioner.start(("web-1",), 0)
    assert list(provisioner.list_units()) == ["web-1"], "a listing that was begun before the start"
    assert list(provisioner.list_units()) == ["web-1"]
    provisioner.stop(("web-1",), force=False)
    assert adapter.groups == []


def test_a_group_is_not_adopted_while_it_is_being_started() -> None:
    adapter = OverlappingAdapter()
    provisioner = WebhookProvisioner(adapter, "web")
    seen: list[str] = []
    adapter.meanwhile = lambda: seen.extend(provisioner.list_units())
    provisioner.start(("web-1",), 0)
    assert seen == [] and list(provisioner.list_units()) == ["web-1"]


def test_a_start_tells_who_the_unit_is(adapter: ScriptedAdapter) -> None:
    adapter.script = [(200, {"status": "started", "worker_group_id": "theirs", "worker_ids": []})]
    provisioner = units(adapter, "secret")
    assert provisioner.start(("web-1",), 0) == ["web-1"]
    (request,) = adapter.requests
    assert request["action"] == "start_worker_group" and request["auth_token"] == "secret"
    assert request["metadata"]["environment"] == {"SCALER_WORKER_MANAGER_ID": "web", "SCALER_UNIT_ID": "web-1"}
    assert adapter.headers == ["Bearer secret"]
    provisioner.stop(("web-1", "unknown"), force=False)
    assert adapter.requests[1]["worker_group_id"] == "theirs", "its own id of the group"
    assert provisioner.list_units() == {}


@pytest.mark.parametrize(
    "fault",
    [
        (500, {"error": "broken"}),
        (503, b"<html>"),
        (200, b"no JSON"),
        (200, b"[" * 100_000),
        (0, None),
        (0, "220 no HTTP\r\n"),
    ],
)
def test_what_fails_is_repeated_under_the_same_id(adapter: ScriptedAdapter, fault: tuple[int, object]) -> None:
    adapter.script = [fault, fault]
    assert units(adapter).start(("web-1",), 0) == ["web-1"]
    assert len(adapter.requests) == 3 and len({json.dumps(request) for request in adapter.requests}) == 1
    adapter.script = [fault] * 3
    with pytest.raises(ProvisionerError, match="the worker adapter at http"):
        units(adapter).start(("web-2",), 0)


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_a_refusal_is_not_repeated_and_is_shown(adapter: ScriptedAdapter, status: int) -> None:
    adapter.script = [(status, {"error": "because"})]
    with pytest.raises(ProvisionerError, match=f"answers {status}: because") as refused:
        units(adapter).start(("web-1",), 0)
    assert len(adapter.requests) == 1 and refused.value.accepted == []


def test_what_was_accepted_is_kept_when_the_adapter_is_full(adapter: ScriptedAdapter) -> None:
    adapter.script = [(200, {}), (429, {"error": "full"})]
    with pytest.raises(ProvisionerError, match="full") as refused:
        units(adapter).start(("web-1", "web-2"), 0)
    assert len(refused.value.accepted) == 1


def test_an_adapter_that_is_silent_is_given_up(adapter: ScriptedAdapter) -> None:
    client = AdapterClient(adapter.url, None)
    adapter.close()
    with pytest.raises(AdapterFault, match="does not answer") as fault:
        client.ask(INFO, seconds=0.5)
    assert fault.value.status == 0
    adapter.__init__()  # type: ignore[misc]


def test_a_group_that_is_being_started_at_the_end_is_named(
    adapter: ScriptedAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    provisioner = units(adapter)
    with adapter.silence:
        starting = threading.Thread(target=provisioner.start, args=(("web-1",), 0))
        starting.start()
        wait_until(lambda: adapter.requests, "the request")
        provisioner.end()
    starting.join()
    assert "worker groups that the adapter is starting may be left: web-1" in caplog.text


def test_a_group_that_is_gone_is_stopped(adapter: ScriptedAdapter) -> None:
    provisioner = units(adapter)
    provisioner.start(("web-1", "web-2"), 0)
    adapter.script = [(404, {"error": "unknown"}), *[(500, {"error": "stuck"})] * 3]
    with pytest.raises(ProvisionerError, match="stuck"):
        provisioner.stop(("web-1", "web-2"), force=True)
    adapter.script = [(400, {"error": "unknown action"})]
    assert provisioner.list_units().keys() == {"web-2"}, "one that cannot be stopped keeps none of the others"


def test_groups_that_an_adapter_lists_are_adopted_if_they_are_ours(adapter: ScriptedAdapter) -> None:
    listed = [
        {"worker_group_id": "web-7", "worker_manager_id": "web"},
        {"worker_group_id": "x", "worker_manager_id": "other"},
        "nonsense",
    ]
    adapter.script = [(200, {"worker_groups": listed}), (200, {"worker_groups": []})]
    provisioner = units(adapter)
    assert provisioner.list_units().keys() == {"web-7"}
    assert provisioner.list_units() == {}


def test_a_listing_that_fails_is_no_empty_one(adapter: ScriptedAdapter) -> None:
    provisioner = units(adapter)
    provisioner.start(("web-1",), 0)
    adapter.script = [(500, {"error": "broken"})] * 3
    with pytest.raises(ProvisionerError, match="broken"):
        provisioner.list_units()
    assert provisioner.list_units().keys() == {"web-1"}


@pytest.mark.parametrize("odd", ["x" * 257, "\ud800", "", None, ["web-7"]])
def test_an_id_that_can_name_no_unit_is_none(adapter: ScriptedAdapter, odd: object) -> None:
    provisioner = units(adapter)
    adapter.script = [(200, {"worker_group_id": odd})]
    provisioner.start(("web-1",), 0)
    ours = {"worker_manager_id": "web"}
    listed = [{"worker_group_id": odd, **ours}, {"worker_group_id": "web-1", **ours}, {"worker_group_id": 7, **ours}]
    adapter.script = [(200, {"worker_groups": listed})]
    assert provisioner.list_units().keys() == {"web-1", "7"}


@pytest.mark.parametrize("error", ["e" * 100_000, "\ud800"])
def test_an_error_that_cannot_be_told_as_it_is_is_shortened(adapter: ScriptedAdapter, error: str) -> None:
    adapter.script = [(400, {"error": error})]
    with pytest.raises(ProvisionerError, match="answers 400: ") as refused:
        units(adapter).start(("web-1",), 0)
    assert len(str(refused.value).encode()) < 1200


def test_deep_json_is_no_answer(adapter: ScriptedAdapter) -> None:
    adapter.script = [(200, b"[" * 200_000)]
    with pytest.raises(AdapterFault, match="which is no JSON object"):
        AdapterClient(adapter.url, None).ask(INFO, attempts=False)


def test_at_the_end_all_groups_are_asked_once(adapter: ScriptedAdapter) -> None:
    provisioner = units(adapter)
    provisioner.start(("web-1", "web-2"), 0)
    adapter.script = [(500, {"error": "broken"})]
    provisioner.end()
    assert [request["action"] for request in adapter.requests[2:]] == ["shutdown_worker_group"] * 2


def test_what_an_adapter_says_of_itself_is_read() -> None:
    said = {"max_worker_groups": 3, "workers_per_group": 2, "base_capabilities": {"gpu": 1, "linux": -1}}
    assert AdapterInfo.of(said) == AdapterInfo(3, 2, "gpu=1,linux")
    assert AdapterInfo.of({}) == AdapterInfo(-1, 1, "")
    assert AdapterInfo.of({"max_worker_groups": 10**12, "workers_per_group": 2}).groups == 2**30 - 1
    wrongs: list[dict[str, object]] = [
        {"max_worker_groups": "many"},
        {"max_worker_groups": float("inf")},
        {"workers_per_group": 0},
        {"workers_per_group": 10**12},
        {"base_capabilities": {"gpu": "many"}},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="get_worker_adapter_info"):
            AdapterInfo.of(wrong)


def test_an_adapter_that_cannot_be_read_is_not_used(adapter: ScriptedAdapter, caplog: pytest.LogCaptureFixture) -> None:
    adapter.script = [(200, {"workers_per_group": 0})]

    async def meet() -> None:
        webhooks = Webhooks([adapter.url, adapter.url], None, Address(path="/nowhere"))
        await asyncio.wait(webhooks._tasks)
        webhooks.close()

    asyncio.run(meet())
    assert f"the worker adapter at {adapter.url} is not used" in caplog.text
    assert len(adapter.requests) == 1, "a URL that is given twice is one adapter"


def test_every_adapter_is_a_manager_of_its_own() -> None:
    assert manager_of("http://127.0.0.1:8080") == "webhook-127-0-0-1-8080"
    assert manager_of("https://grid.example/a") == "webhook-grid-example-https-a"


@pytest.mark.parametrize(
    "url", ["x", "ftp://h", "http://", "http://h:99999", "http://h:odd", "http://[::1", "http://h/a b"]
)
def test_what_is_no_url_of_an_adapter_is_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"--adapter-webhook-urls: .* is no URL of a worker adapter: write http://host"
    ):
        COMMAND.parse(["tcp://127.0.0.1:2345", "--adapter-webhook-url", url], {})


@pytest.mark.parametrize("token", ["two\nlines", "t€n"])
def test_a_token_that_http_cannot_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match=r"^SCALER_ADAPTER_TOKEN: the token has characters other than") as refused:
        COMMAND.parse(["tcp://127.0.0.1:2345"], {"SCALER_ADAPTER_TOKEN": token})
    assert token not in str(refused.value)
