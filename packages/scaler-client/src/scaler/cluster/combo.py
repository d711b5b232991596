"""An old path to SchedulerClusterCombo; new programs import it from `scaler`."""

from scaler_client.api.local_cluster import SchedulerClusterCombo

__all__ = ["SchedulerClusterCombo"]
