"""The scheduler: routes tasks from clients to workers."""
