"""Stored objects as processes use them: the connection to object storage, segments, and what a host's processes share.

This folder knows no tasks and no services.
"""
