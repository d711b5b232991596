"""The public classes: Client, SchedulerClusterCombo and the executor. Only `scaler` and `dask` import this package."""
