"""The default serializer of a client."""

from __future__ import annotations

import pickle
from typing import Any

from scaler_protocol.serializer import Serializer


class DefaultSerializer(Serializer):
    """cloudpickle; the only serializer whose clients may pickle a call as a whole."""

    @staticmethod
    def serialize(obj: Any) -> bytes:
        """The bytes of an object; raises as cloudpickle does."""
        from scaler_client.payloads.classes import dumps

        return dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        """The object."""
        return pickle.loads(payload)
