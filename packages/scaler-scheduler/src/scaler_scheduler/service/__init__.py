"""The scheduler's process: sockets, options, the object storage server beside it. Decides nothing about tasks."""
