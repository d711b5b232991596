"""SymphonySession: one session of Symphony, through the product's module `soamapi`.

`soamapi` is part of IBM Spectrum Symphony and not of Scaler. It is imported when a session is opened. It calls back in
threads of its own, possibly before `send_task_input` has returned the id of the task.
"""

from __future__ import annotations

import array
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from scaler_protocol.errors import ScalerError
from scaler_protocol.lazy_dataclass import dataclass

SESSION_TYPE: Final = "RecoverableAllHistoricalData"


@dataclass(frozen=True, slots=True)
class TaskReply:
    """How a Symphony task ended: its output, or the reason why there is none."""

    output: bytes | None
    reason: str = ""


class SymphonySession:
    """Submits tasks. The constructor connects, and raises ScalerError with the reason if it cannot.

    `replied(run, reply)` and `lost(reason)` are called in any thread, and not after `close` has begun.
    """

    def __init__(
        self, service: str, name: str, replied: Callable[[int, TaskReply], object], lost: Callable[[str], object]
    ) -> None:
        self._replied, self._lost = replied, lost
        self._lock = threading.Lock()
        self._runs: dict[str, int] = {}
        """Runs by the id of their task."""
        self._submitting = self._closed = False
        self._early: dict[str, TaskReply] = {}
        """Replies that came while a task was being submitted, and may be its own."""
        self._soam = soam = _soamapi()
        self._message = _message_class(soam)
        try:
            soam.initialize()
            self._connection = soam.connect(service, soam.DefaultSecurityCallback("Guest", "Guest"))
            attributes = soam.SessionCreationAttributes()
            attributes.set_session_name(name)
            attributes.set_session_type(SESSION_TYPE)
            attributes.set_session_flags(soam.SessionFlags.RECEIVE_ASYNC)
            attributes.set_session_callback(_callback_class(soam)(self._on_response, self._on_exception))
            self._session = self._connection.create_session(attributes)
        except Exception as error:
            raise ScalerError(f"service {service}: {type(error).__name__}: {error}") from error

    def submit(self, run: int, payload: bytes) -> None:
        """Send the input of a task, for this run; raises what `soamapi` raises. Called in one thread."""
        attributes = self._soam.TaskSubmissionAttributes()
        attributes.set_task_input(self._message(payload))
        with self._lock:
            self._submitting = True
        task = ""
        try:
            task = str(self._session.send_task_input(attributes).get_id())
        finally:
            with self._lock:
                self._submitting = False
                reply = self._early.pop(task, None)
                self._early.clear()
                if task and reply is None:
                    self._runs[task] = run
        if reply is not None:
            self._replied(run, reply)

    def kill(self, run: int) -> None:
        """Kill the task of a run, if it has one; raises what `soamapi` raises."""
        with self._lock:
            tasks = [task for task, known in self._runs.items() if known == run]
            for task in tasks:
                del self._runs[task]
        for task in tasks:
            self._session.kill_task(task)

    def close(self, *, kill: bool) -> None:
        """Close the session, with `kill` after its tasks have been killed; raises what `soamapi` raises."""
        with self._lock:
            self._closed = True
            left, self._runs = list(self._runs), {}
        try:
            for task in left if kill else ():
                self._session.kill_task(task)
        finally:
            self._session.close()
            self._connection.close()
            self._soam.uninitialize()

    def _on_response(self, handle: Any) -> None:
        reply = self._reply(handle)
        task = str(handle.get_id())
        with self._lock:
            run = self._runs.pop(task, None)
            if run is None and self._submitting:
                self._early[task] = reply
        if run is not None and not self._closed:
            self._replied(run, reply)

    def _reply(self, handle: Any) -> TaskReply:
        if not handle.is_successful():
            return TaskReply(None, str(handle.get_exception().get_embedded_exception()))
        message = self._message()
        try:
            handle.populate_task_output(message)
        except Exception as error:
            return TaskReply(None, f"its output cannot be read: {error}")
        return TaskReply(message.payload)

    def _on_exception(self, exception: Any) -> None:
        if not self._closed:
            self._lost(str(exception))


def _soamapi() -> Any:
    try:
        return import_module("soamapi")
    except ImportError as error:
        raise ScalerError(
            f"the module soamapi cannot be imported ({error}): it comes with IBM Spectrum Symphony; "
            "set PYTHONPATH to the folder of the product's client library for this version of Python"
        ) from error


def _message_class(soam: Any) -> Any:
    class PayloadMessage(soam.Message):  # type: ignore[misc]
        """Bytes, as the service in docs/worker-managers.md reads and writes them."""

        def __init__(self, payload: bytes = b"") -> None:
            super().__init__()
            self.payload = payload

        def on_serialize(self, stream: Any) -> None:
            data = array.array("b", self.payload)
            stream.write_byte_array(data, 0, len(data))

        def on_deserialize(self, stream: Any) -> None:
            self.payload = bytes(stream.read_byte_array("b"))

    return PayloadMessage


def _callback_class(soam: Any) -> Any:
    class ReplyCallback(soam.SessionCallback):  # type: ignore[misc]
        """Passes on what Symphony reports."""

        def __init__(self, responded: Callable[[Any], object], failed: Callable[[Any], object]) -> None:
            super().__init__()
            self._responded, self._failed = responded, failed

        def on_response(self, task_output_handle: Any) -> None:
            self._responded(task_output_handle)

        def on_exception(self, exception: Any) -> None:
            self._failed(exception)

    return ReplyCallback
