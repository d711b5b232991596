"""The public classes: Client, SchedulerClusterCombo, executor. Only the front door imports this room."""
