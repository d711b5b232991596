"""An old path to ObjectReference; new programs import it from `scaler`."""

from scaler_client.calls.object_reference import ObjectReference

__all__ = ["ObjectReference"]
