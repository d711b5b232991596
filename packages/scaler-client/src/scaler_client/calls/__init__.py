"""Calls as bytes: how functions and arguments are serialized, and the options of a task. Knows no connection."""
