"""An old path to ScalerFuture; new programs import it from `scaler`."""

from scaler_client.futures.futures import ScalerFuture

__all__ = ["ScalerFuture"]
