"""A model of `soamapi`, the client and service library of IBM Spectrum Symphony. It is not the product.

It has the names that public documents and public programs use, as far as Scaler and a service need them, and it talks
to the session manager beside it, at $SOAM_MODEL_ADDRESS. As in the product, callbacks come on a thread of the library,
and a response may come before `send_task_input` has returned. What is only assumed: how exceptions are wrapped, that a
killed task is reported as failed, and how often a task is run again.
"""

from __future__ import annotations

import array
import os
import struct
import threading
from multiprocessing.connection import Client, Connection
from typing import Any

KEY = b"model of soamapi"


class SoamException(Exception):
    """What the library raises."""

    def get_embedded_exception(self) -> BaseException:
        return self.__cause__ or self


class FailureException(SoamException):
    """Raised by a service: run the task again."""


class FatalException(SoamException):
    """Raised by a service: the session is over."""


class SessionFlags:
    """How a session delivers responses."""

    RECEIVE_SYNC = 1
    RECEIVE_ASYNC = 2


class OutputStream:
    """What messages are written to."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write_byte_array(self, data: array.array[int], offset: int, length: int) -> None:
        if not isinstance(data, array.array) or data.typecode != "b":
            raise TypeError("write_byte_array takes an array of type 'b'")
        self._write(data[offset : offset + length].tobytes())

    def write_string(self, text: str) -> None:
        self._write(text.encode())

    def _write(self, data: bytes) -> None:
        self.pieces += (struct.pack("<Q", len(data)), data)


class InputStream:
    """What messages are read from."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read_byte_array(self, typecode: str) -> bytes:
        assert typecode == "b"
        return self._read()

    def read_string(self) -> str:
        return self._read().decode()

    def _read(self) -> bytes:
        (length,) = struct.unpack_from("<Q", self._data, self._at)
        self._at += 8 + length
        return self._data[self._at - length : self._at]


class Message:
    """The base of inputs and outputs of tasks."""

    def on_serialize(self, stream: OutputStream) -> None:
        raise NotImplementedError

    def on_deserialize(self, stream: InputStream) -> None:
        raise NotImplementedError


def _written(message: Message) -> bytes:
    stream = OutputStream()
    message.on_serialize(stream)
    return b"".join(stream.pieces)


class DefaultSecurityCallback:
    """A user and a password."""

    def __init__(self, user: str, password: str) -> None:
        self.user, self.password = user, password


class SessionCallback:
    """What a session calls, on its own thread."""

    def on_response(self, task_output_handle: TaskOutputHandle) -> None: ...

    def on_exception(self, exception: SoamException) -> None: ...


class SessionCreationAttributes:
    """The attributes of a session."""

    name = kind = ""
    flags = 0
    callback: SessionCallback | None = None

    def set_session_name(self, name: str) -> None:
        self.name = name

    def set_session_type(self, kind: str) -> None:
        self.kind = kind

    def set_session_flags(self, flags: int) -> None:
        self.flags = flags

    def set_session_callback(self, callback: SessionCallback) -> None:
        self.callback = callback


class TaskSubmissionAttributes:
    """The attributes of a task."""

    message: Message

    def set_task_input(self, message: Message) -> None:
        self.message = message


class TaskInputHandle:
    """A submitted task."""

    def __init__(self, task: str) -> None:
        self._task = task

    def get_id(self) -> str:
        return self._task


class TaskOutputHandle:
    """A task that has ended."""

    def __init__(self, task: str, fault: str | None, data: bytes) -> None:
        self._task, self._fault, self._data = task, fault, data

    def get_id(self) -> str:
        return self._task

    def is_successful(self) -> bool:
        return self._fault is None

    def populate_task_output(self, message: Message) -> None:
        message.on_deserialize(InputStream(self._data))

    def get_exception(self) -> SoamException:
        error = SoamException(f"task {self._task} has failed")
        error.__cause__ = RuntimeError(self._fault)
        return error


class Session:
    """A session with the application of this connection."""

    def __init__(self, connection: Connection[Any, Any], callback: SessionCallback) -> None:
        self._connection, self._callback = connection, callback
        self._lock = threading.Lock()
        self._tasks = 0
        self._closed = False
        threading.Thread(target=self._receive, daemon=True).start()

    def send_task_input(self, attributes: TaskSubmissionAttributes) -> TaskInputHandle:
        with self._lock:
            self._tasks += 1
            task = str(self._tasks)
            self._say("task", task, _written(attributes.message))
        return TaskInputHandle(task)

    def kill_task(self, task: str) -> None:
        with self._lock:
            self._say("kill", task, b"")

    def close(self) -> None:
        self._closed = True
        self._connection.close()

    def _say(self, what: str, task: str, data: bytes) -> None:
        try:
            self._connection.send((what, task, data))
        except OSError as error:
            raise SoamException(f"the session manager does not answer: {error}") from error

    def _receive(self) -> None:
        try:
            while True:
                self._callback.on_response(TaskOutputHandle(*self._connection.recv()))
        except (EOFError, OSError, TypeError) as error:  # TypeError: closed by another thread while it receives
            if not self._closed:
                self._callback.on_exception(SoamException(f"the session manager is gone: {error!r}"))


class ApplicationConnection:
    """A connection to an application."""

    def __init__(self, application: str) -> None:
        self._application = application

    def create_session(self, attributes: SessionCreationAttributes) -> Session:
        assert attributes.flags == SessionFlags.RECEIVE_ASYNC and attributes.callback is not None
        connection = _connected("session", self._application)
        if fault := connection.recv():
            connection.close()
            raise SoamException(fault)
        return Session(connection, attributes.callback)

    def close(self) -> None: ...


def initialize() -> None:
    """Begin to use the library."""


def uninitialize() -> None:
    """Stop using the library."""


def connect(application: str, security: DefaultSecurityCallback) -> ApplicationConnection:
    """Connect to an application."""
    assert (security.user, security.password) == ("Guest", "Guest")
    return ApplicationConnection(application)


def _connected(what: str, application: str) -> Connection[Any, Any]:
    try:
        connection = Client(os.environ["SOAM_MODEL_ADDRESS"], authkey=KEY)
    except OSError as error:
        raise SoamException(f"there is no session manager: {error}") from error
    connection.send((what, application, os.getpid()))
    return connection


class TaskContext:
    """A task, for the service that runs it."""

    def __init__(self, task: str, data: bytes) -> None:
        self._task, self._data = task, data
        self.output = b""

    def get_task_id(self) -> str:
        return self._task

    def populate_task_input(self, message: Message) -> None:
        message.on_deserialize(InputStream(self._data))

    def set_task_output(self, message: Message) -> None:
        self.output = _written(message)


class ServiceContainer:
    """The base of services: runs one task at a time."""

    def on_create_service(self, service_context: Any) -> None: ...

    def on_session_enter(self, session_context: Any) -> None: ...

    def on_invoke(self, task_context: TaskContext) -> None:
        raise NotImplementedError

    def on_session_leave(self) -> None: ...

    def on_destroy_service(self) -> None: ...

    def run(self) -> None:
        """Serve until the session manager ends."""
        connection = _connected("service", os.environ["SOAM_MODEL_APPLICATION"])
        self.on_create_service(None)
        self.on_session_enter(None)
        tasks: list[tuple[str, bytes]] = []
        arrived = threading.Semaphore(0)

        def receive() -> None:
            try:
                while True:
                    tasks.append(connection.recv())
                    arrived.release()
            except (EOFError, OSError):
                os._exit(0)  # in the middle of a task, too

        threading.Thread(target=receive, daemon=True).start()
        while arrived.acquire():
            task, data = tasks.pop()
            context = TaskContext(task, data)
            try:
                self.on_invoke(context)
            except FailureException as error:
                connection.send(("again", repr(error).encode()))
            except Exception as error:
                connection.send(("failed", repr(error).encode()))
            else:
                connection.send(("done", context.output))
