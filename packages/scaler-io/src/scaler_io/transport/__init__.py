"""Connections over ZeroMQ and within one process. Only `zeromq.py` and `curve.py` import zmq."""
