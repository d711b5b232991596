"""Connections over ZeroMQ and within one process. The only room that imports zmq."""
