"""Bytes move: ZeroMQ, links, security, timers and object transfer."""
