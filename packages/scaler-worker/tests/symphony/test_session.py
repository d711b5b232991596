"""A session of a library that calls back at the worst moments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from scaler_protocol.errors import ScalerError
from scaler_worker.symphony.session import SymphonySession, TaskReply


class Output:
    """A response."""

    def __init__(self, task: str, data: bytes | None) -> None:
        self._task, self._data = task, data

    def get_id(self) -> str:
        return self._task

    def is_successful(self) -> bool:
        return self._data is not None

    def populate_task_output(self, message: Any) -> None:
        message.on_deserialize(self)

    def read_byte_array(self, kind: str) -> bytes:
        assert kind == "b" and self._data is not None
        return self._data

    def get_exception(self) -> Any:
        return self

    def get_embedded_exception(self) -> Exception:
        return RuntimeError("no more retries")


class Library(ModuleType):
    """As `soamapi`; responds within `send_task_input` to inputs that begin with "early"."""

    def __init__(self) -> None:
        super().__init__("soamapi")
        self.calls: list[Any] = []
        self.callback: Any = None
        self.tasks = 0
        self.refuses = False
        for name in ("initialize", "uninitialize"):
            setattr(self, name, lambda: None)
        self.Message = self.SessionCallback = object

    class SessionFlags:
        RECEIVE_ASYNC = 2

    class Attributes(dict[str, Any]):
        """Takes any attribute."""

        def __getattr__(self, name: str) -> Any:
            return lambda value: self.__setitem__(name, value)

    SessionCreationAttributes = TaskSubmissionAttributes = Attributes

    def DefaultSecurityCallback(self, user: str, password: str) -> None:
        """No security."""

    def connect(self, application: str, security: None) -> Library:
        if application != "Known":
            raise RuntimeError(f"there is no {application}")
        return self

    def create_session(self, attributes: Any) -> Library:
        self.callback = attributes["set_session_callback"]
        return self

    def send_task_input(self, attributes: Any) -> Output:
        if self.refuses:
            raise RuntimeError("refused")
        self.tasks += 1
        payload = attributes["set_task_input"].payload
        if payload.startswith(b"early"):
            self.callback.on_response(Output(str(self.tasks), payload))
        return Output(str(self.tasks), b"")

    def kill_task(self, task: str) -> None:
        self.calls.append(("kill", task))

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setitem(sys.modules, "soamapi", library)
    yield library


class Client:
    """A session, and what it has said."""

    def __init__(self, service: str = "Known") -> None:
        self.replies: list[tuple[int, TaskReply]] = []
        self.losses: list[str] = []
        self.session = SymphonySession(
            service, "name", lambda run, reply: self.replies.append((run, reply)), self.losses.append
        )


def test_a_response_may_come_before_and_after_the_id(library: Library) -> None:
    client = Client()
    client.session.submit(7, b"early")
    assert client.replies == [(7, TaskReply(b"early"))]
    client.session.submit(8, b"late")
    library.callback.on_response(Output("2", b"output"))
    library.callback.on_response(Output("2", b"again"))
    assert client.replies[1:] == [(8, TaskReply(b"output"))]


def test_a_failed_task_has_a_reason(library: Library) -> None:
    client = Client()
    client.session.submit(7, b"x")
    library.callback.on_response(Output("1", None))
    assert client.replies == [(7, TaskReply(None, "no more retries"))]


def test_a_refused_task_leaves_nothing(library: Library) -> None:
    client = Client()
    library.refuses = True
    with pytest.raises(RuntimeError, match="refused"):
        client.session.submit(7, b"x")
    library.refuses = False
    client.session.submit(8, b"early")
    assert client.replies == [(8, TaskReply(b"early"))]


def test_a_killed_task_is_not_heard_of(library: Library) -> None:
    client = Client()
    client.session.submit(7, b"x")
    client.session.kill(7)
    client.session.kill(8)
    library.callback.on_response(Output("1", None))
    assert library.calls == [("kill", "1")] and not client.replies


def test_close_kills_what_is_left_and_hears_no_more(library: Library) -> None:
    client = Client()
    client.session.submit(7, b"x")
    client.session.close(kill=True)
    library.callback.on_exception(RuntimeError("closed"))
    assert library.calls == [("kill", "1"), "close", "close"] and not client.losses


def test_an_exception_is_the_loss_of_the_session(library: Library) -> None:
    client = Client()
    library.callback.on_exception(RuntimeError("gone"))
    assert client.losses == ["gone"]


def test_errors_name_the_service(library: Library) -> None:
    with pytest.raises(ScalerError, match="service Unknown: RuntimeError: there is no Unknown"):
        Client("Unknown")
