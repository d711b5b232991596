"""The client's core: the state of outstanding calls. Pure: imports no IO, clock or thread, and no connection."""
