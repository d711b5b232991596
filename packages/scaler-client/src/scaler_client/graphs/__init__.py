"""Graphs of calls: planning, ordering and submission. Knows nothing of the public classes."""
