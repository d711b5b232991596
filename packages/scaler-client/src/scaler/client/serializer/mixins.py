"""An old path to Serializer; new programs import it from `scaler`."""

from scaler_protocol.serializer import Serializer

__all__ = ["Serializer"]
