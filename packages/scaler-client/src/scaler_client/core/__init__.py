"""ClientCore and its parts: which calls are under way. Pure: no IO, no clock, no user code of its own."""
