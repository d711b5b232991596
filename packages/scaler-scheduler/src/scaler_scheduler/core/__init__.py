"""SchedulerCore and its parts: which task runs where. Pure: events in, effects out; no IO, no clock."""
