"""Publishes status and events to monitors and Prometheus. Reads the core through its snapshot and events only."""
