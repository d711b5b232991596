"""The exceptions of Scaler.

ScalerError
├── ProtocolError
│   └── MalformedMessageError (ValueError)
├── InvalidFieldError (ValueError)
├── AddressError (ValueError)
├── CapabilityError (ValueError)
├── HandshakeRefusedError (ConnectionError)
│   └── SessionInUseError
├── SchedulerLostError (ConnectionError)
├── StorageLostError (ConnectionError)
├── ClientQuitError (RuntimeError)
├── ClientForkedError (RuntimeError)
├── SessionExhaustedError (OverflowError)
├── ResultDroppedError
├── SubmitLimitError
├── SubmitRefusedError
├── TaskTimeoutError (TimeoutError)
├── WorkerDiedError
├── MemoryLimitError (MemoryError)
├── NestingLimitError
├── NoWorkerError
├── ObjectNotFoundError (KeyError)
├── ObjectRefusedError
│   └── StorageFullError
├── DeserializeError
├── InitializerError
├── ResultNotSerializableError (TypeError)
├── TaskExceptionNotSerializableError
└── TaskExitedError
"""

from __future__ import annotations

import json
from typing import Any


class ScalerError(Exception):
    """Something went wrong in Scaler."""

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message or type(self).__doc__ or "")
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self.args[0]), self.details)


def _rebuild(kind: type[ScalerError], message: str, details: dict[str, Any]) -> ScalerError:
    error = kind(message)
    error.details = details
    return error


class ProtocolError(ScalerError):
    """A peer sent a message that the protocol does not allow."""


class MalformedMessageError(ProtocolError, ValueError):
    """Bytes that are not a message of the protocol."""


class InvalidFieldError(ScalerError, ValueError):
    """A value is not allowed in its field of a message."""


class AddressError(ScalerError, ValueError):
    """An address is not of the form tcp://host:port or ipc://path."""


class CapabilityError(ScalerError, ValueError):
    """Capabilities are not of the form name or name=number, separated by commas."""


class HandshakeRefusedError(ScalerError, ConnectionError):
    """The peer refused the connection."""


class SessionInUseError(HandshakeRefusedError):
    """Another client has the session."""


class SchedulerLostError(ScalerError, ConnectionError):
    """The scheduler did not come back in time."""


class StorageLostError(ScalerError, ConnectionError):
    """The object storage server did not come back in time."""


class ClientQuitError(ScalerError, RuntimeError):
    """The client is disconnected; make another one."""


class ClientForkedError(ScalerError, RuntimeError):
    """The client was inherited by a forked process; make another one there."""


class SessionExhaustedError(ScalerError, OverflowError):
    """The client has numbered as many tasks as one session can; make another one."""


class ResultDroppedError(ScalerError):
    """The result of a task of a named session is not kept any more."""


class SubmitLimitError(ScalerError):
    """The client has as many unfinished tasks as the scheduler allows."""


class SubmitRefusedError(ScalerError):
    """The scheduler has no room for more work now: its journal cannot be written, or a limit is reached."""


class TaskTimeoutError(ScalerError, TimeoutError):
    """The task ran longer than its timeout and was stopped."""


class WorkerDiedError(ScalerError):
    """The task's worker died, and the task has had all its repetitions."""


class MemoryLimitError(ScalerError, MemoryError):
    """The task used more memory than it may, even alone on its host, and was stopped."""


class NestingLimitError(ScalerError):
    """Too many tasks of this host wait for tasks of their own."""


class NoWorkerError(ScalerError):
    """No worker can ever take the task."""


class ObjectNotFoundError(ScalerError, KeyError):
    """The object was never stored, is deleted, or was lost with the host or server that held it."""

    __str__ = Exception.__str__


class ObjectRefusedError(ScalerError):
    """The object storage server refused the object."""


class StorageFullError(ObjectRefusedError):
    """The object storage server has no room for the object."""


class DeserializeError(ScalerError):
    """The function or its arguments could not be loaded where the task was to run."""


class InitializerError(ScalerError):
    """The initializer of the client has failed."""


class ResultNotSerializableError(ScalerError, TypeError):
    """The result of the task cannot be serialized."""


class TaskExceptionNotSerializableError(ScalerError):
    """The exception of the task cannot be serialized."""


class TaskExitedError(ScalerError):
    """The task called sys.exit or raised another exception that ends a process."""


_BY_NAME: dict[str, type[ScalerError]] = {}


def _register(kind: type[ScalerError]) -> None:
    _BY_NAME[kind.__name__] = kind
    for derived in kind.__subclasses__():
        _register(derived)


_register(ScalerError)


def describe(error: ScalerError) -> bytes:
    """The payload of a FAILED outcome: a JSON object with `error`, `message` and `details`."""
    described = {"error": type(error).__name__, "message": str(error), "details": error.details}
    return json.dumps(described, default=str).encode()


def is_loss(error: ScalerError) -> bool:
    """Whether the task has failed because an object was lost, or the server that holds it."""
    return isinstance(error, ObjectNotFoundError | StorageLostError)


def of_run(payload: bytes, run: int) -> bytes:
    """The payload of the FAILED outcome of a run: a loss names the run, by which its client recognizes it."""
    error = restore(payload)
    if not is_loss(error):
        return payload
    error.details["run"] = run
    return describe(error)


def restore(payload: bytes) -> ScalerError:
    """The error that `describe` wrote; a ScalerError if its name is unknown or the payload is malformed."""
    try:
        described = json.loads(payload)
        name, message, details = described["error"], described["message"], described["details"]
        error = _BY_NAME.get(str(name), ScalerError)(str(message))
        error.details = {key: value for key, value in details.items() if key != "message"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ScalerError(f"an error that cannot be read: {payload[:200]!r}")
    return error
