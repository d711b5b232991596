"""An old path to Client; new programs import it from `scaler`."""

from scaler_client.api.client import Client

__all__ = ["Client"]
