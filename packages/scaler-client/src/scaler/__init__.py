"""The front door: the public names of the client."""

import logging

from scaler_client.api.client import Client
from scaler_client.api.local_cluster import SchedulerClusterCombo
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.futures.futures import ScalerFuture
from scaler_client.task_context import current_task
from scaler_protocol.serializer import Serializer

__version__ = "3.0.0"

__all__ = [
    "Client",
    "ObjectReference",
    "ScalerFuture",
    "SchedulerClusterCombo",
    "Serializer",
    "__version__",
    "current_task",
]

logging.getLogger("scaler").addHandler(logging.NullHandler())
