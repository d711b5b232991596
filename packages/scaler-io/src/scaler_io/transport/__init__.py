"""Connections over ZeroMQ and within one process. Only `zeromq.py` imports zmq."""
