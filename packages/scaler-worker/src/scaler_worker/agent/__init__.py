"""The agent process: its link to the scheduler, channels to workers, and clock. `core` makes the decisions."""
