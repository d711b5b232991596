"""The errors of earlier engines, by their old names; new programs import `scaler_protocol.errors`."""

from scaler_protocol.errors import ClientQuitError as ClientQuitException
from scaler_protocol.errors import DeserializeError as DeserializeObjectError
from scaler_protocol.errors import NoWorkerError, TaskExceptionNotSerializableError, WorkerDiedError
from scaler_protocol.errors import ObjectNotFoundError as MissingObjects
from scaler_protocol.errors import SchedulerLostError as DisconnectedError
from scaler_protocol.errors import StorageLostError as ObjectStorageException
from scaler_protocol.errors import WorkerDiedError as ProcessorDiedError

__all__ = [
    "ClientQuitException",
    "DeserializeObjectError",
    "DisconnectedError",
    "MissingObjects",
    "NoWorkerError",
    "ObjectStorageException",
    "ProcessorDiedError",
    "TaskExceptionNotSerializableError",
    "WorkerDiedError",
]
