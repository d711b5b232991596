"""An old path to SchedulerClusterCombo; new programs import it from `scaler`."""

from scaler_client.combo import SchedulerClusterCombo

__all__ = ["SchedulerClusterCombo"]
