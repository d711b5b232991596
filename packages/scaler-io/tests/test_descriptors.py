"""Descriptors: the limit and the reserve."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")


def run(program: str) -> str:
    """What a program says on standard output."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60).stdout.strip()


def test_the_limit_is_raised_and_restored() -> None:
    said = run("""
        import resource
        from scaler_io import descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        descriptors.raise_limit()
        print(descriptors.limit(), descriptors.connection_limit())
        descriptors.restore_limit(100)
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    """)
    assert said.split("\n") == ["200 136", "100 200"]


def test_what_is_needed_is_there_or_not() -> None:
    said = run("""
        import errno, resource, os
        from scaler_io import descriptors
        descriptors.require(16)
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        try:
            descriptors.require(16)
        except OSError as error:
            print(error.errno == errno.EMFILE, error, len(os.listdir("/proc/self/fd")) == before)
    """)
    assert said.startswith("True [Errno 24] Too many open files: 16 more are needed, and 16 is the limit")
    assert said.endswith("True") and errno.EMFILE == 24


def test_zeromq_without_descriptors_raises_an_os_error() -> None:
    said = run("""
        import os, resource
        from scaler_io.transport.publishing import Publisher
        from scaler_io.transport.zeromq import Dialer
        from scaler_protocol.addresses import Address
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                os.open(os.devnull, os.O_RDONLY)
        except OSError:
            pass
        for kind, arguments in ((Dialer, (Address.parse("tcp://127.0.0.1:1"), None)), (Publisher, ())):
            try:
                kind(*arguments)
            except OSError as error:
                print(error.errno)
    """)
    assert said.split("\n") == ["24", "24"]


def test_whoever_has_none_to_connect_says_so_once() -> None:
    said = run("""
        import logging, resource, sys
        from scaler_io.links.uplink import Uplink
        from scaler_io.transport.zeromq import Dialer
        from scaler_protocol.addresses import Address
        from scaler_protocol.handshake import Hello, Role
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        uplink = Uplink(Hello(Role.CLIENT, b"i" * 16, 1, session=1), 0.0, timeout_seconds=1000.0)
        dialer = Dialer(Address.parse("tcp://127.0.0.1:1"), uplink)
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        for second in range(100):
            dialer.turn(float(second))
        print(uplink.epoch > 1)
    """)
    [line, several] = said.split("\n")
    assert line.startswith("cannot connect, will try again: [Errno 24] Too many open files")
    assert several == "True"
