"""An old path to ObjectReference; new programs import it from `scaler`."""

from scaler_client.objects import ObjectReference

__all__ = ["ObjectReference"]
