"""Calls as bytes: functions, arguments and the options of a task. Knows no connection."""
