"""Graphs of calls: planning, ordering, submission. Knows nothing of the public classes."""
