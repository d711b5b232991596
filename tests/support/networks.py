"""Two hosts in namespaces of their own, and a wire between them that delays, loses and breaks.

Each host is a process that holds a network namespace, a `/dev/shm` and a name of its own; the wire is a veth pair on
either side, whose far end nobody but a raw socket uses, and a thread that carries frames from one to the other.
(netem would do it in the kernel, but is not everywhere.) Nothing has a name outside, so nothing is left, however the
test ends.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faults import TESTS
from support.gates import SECONDS
from support.waiting import wait_until

_PACKET_BYTES = 16_000
_QUEUE_SECONDS = 0.2
"""What would wait for longer at the beginning of a slow wire is lost."""
_OPEN_END = """
import array, fcntl, socket, struct, sys
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
SIOCETHTOOL, ETHTOOL_STXCSUM, SO_RCVBUFFORCE, SOL_PACKET, PACKET_IGNORE_OUTGOING = 0x8946, 0x17, 33, 263, 23
# What nobody computes for a veth is to be right when it comes out of the other one: checksums, and segments.
value = array.array("I", [ETHTOOL_STXCSUM, 0])
fcntl.ioctl(end, SIOCETHTOOL, struct.pack("16sP", b"wire", value.buffer_info()[0]))
end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
end.bind(("end", 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"1"], [end.fileno()])
"""


class Host:
    """A host with its own network, `/dev/shm` and name."""

    def __init__(self, address: str) -> None:
        self.address, self.wire = address, -1
        named = f"hostname {address.replace('.', '-')}"
        script = f"{named} && mount -t tmpfs -o size=100% tmpfs /dev/shm && ip link set lo up && echo ready && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._holder.stdout is not None
        if (said := self._holder.stdout.readline()) != "ready\n":
            self._skip(f"a namespace can not be made here: {said.strip()}")
        self._inside = ("nsenter", f"--target={self._holder.pid}", "--net", "--mount", "--uts")
        made = self.ip("link", "add", "wire", "type", "veth", "peer", "name", "end", check=False)
        if made.returncode:
            self._skip(f"a veth pair can not be made here: {made.stderr.strip()}")
        for name in ("wire", "end"):
            self.ip("link", "set", name, "mtu", str(_PACKET_BYTES), "up")
        self.ip("addr", "add", f"{address}/24", "dev", "wire")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            words = (*self._inside, sys.executable, "-c", _OPEN_END, str(theirs.fileno()))
            done = subprocess.run(words, pass_fds=(theirs.fileno(),), capture_output=True, text=True)
            if done.returncode:
                self._skip(f"the end of a veth pair can not be used here: {done.stderr.strip().splitlines()[-1]}")
            _, [self.wire], _, _ = socket.recv_fds(ours, 1, 1)

    def _skip(self, why: str) -> None:
        self.close()
        pytest.skip(why)

    def ip(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `ip` on this host."""
        return self.run("ip", *words, check=check)

    def run(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program on this host; return when it has ended."""
        return subprocess.run([*self._inside, *words], check=check, capture_output=True, text=True)

    def start(self, log: Path, *words: str) -> subprocess.Popen[str]:
        """Run a Python program here; what it says goes to the log."""
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._inside, sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=os.sep,
                start_new_session=True,
                text=True,
            )

    @property
    def memory(self) -> dict[str, int]:
        """The files in its `/dev/shm` and their bytes."""
        root = Path(f"/proc/{self._holder.pid}/root/dev/shm")
        found = {}
        for path in root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[str(path.relative_to(root))] = path.stat().st_size
        return found

    def close(self) -> None:
        """End it; processes that still run here keep it until they end."""
        self._holder.kill()
        self._holder.communicate()
        if self.wire >= 0:
            os.close(self.wire)


class Wire:
    """Carries packets between two hosts: `delay` in seconds each way, `loss` as a share, `rate` in bytes per second."""

    def __init__(
        self, ends: tuple[Host, Host], *, delay: float = 0.0, loss: float = 0.0, rate: float = math.inf
    ) -> None:
        self.delay, self.loss, self.rate = delay, loss, rate
        self.carried = {end.address: 0 for end in ends}
        """Bytes that each host has sent."""
        self._ends = {ends[0].wire: (ends[1].wire, ends[0].address), ends[1].wire: (ends[0].wire, ends[1].address)}
        self._free_at = dict.fromkeys(self._ends, 0.0)
        self._cut, self._lost = False, 0
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._random = random.Random(1)
        self._closing = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="wire")
        self._thread.start()

    def cut(self) -> None:
        """Drop all packets; neither host is notified."""
        self._cut = True

    def mend(self) -> None:
        """Deliver all packets again."""
        self._cut = False

    def wait_for(self, host: Host, size: int, seconds: float = SECONDS) -> None:
        """Wait until a host has sent this many bytes."""
        wait_until(lambda: self.carried[host.address] >= size, f"{size:,} bytes from {host.address}", seconds)

    def wait_lost(self, packets: int) -> None:
        """Wait until a cut has dropped this many more packets."""
        goal = self._lost + packets
        wait_until(lambda: self._lost >= goal, f"{packets} packets are lost")

    def _run(self) -> None:
        for end in self._ends:
            os.set_blocking(end, False)
        while not self._closing:
            now = time.monotonic()
            wait = min(self._under_way[0][0] - now, 1.0) if self._under_way else 1.0
            readable, _, _ = select.select([*self._ends, self._woken], [], [], max(0.0, wait))
            for end in readable:
                if end != self._woken:
                    self._take(end)
            now = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now:
                _, _, sink, packet = heapq.heappop(self._under_way)
                with contextlib.suppress(OSError):  # as on any wire: it is lost
                    os.write(sink, packet)

    def _take(self, end: int) -> None:
        sink, sender = self._ends[end]
        for _ in range(64):
            try:
                packet = os.read(end, 65536)
            except OSError:
                return
            now = time.monotonic()
            at = max(now, self._free_at[end])
            self._lost += self._cut
            if self._cut or at - now > _QUEUE_SECONDS or self._random.random() < self.loss:
                continue
            self._free_at[end] = at + len(packet) / self.rate
            self.carried[sender] += len(packet)
            self._count += 1
            heapq.heappush(self._under_way, (self._free_at[end] + self.delay, self._count, sink, packet))

    def close(self) -> None:
        """Stop forwarding packets."""
        self._closing = True
        os.write(self._wake, b"1")
        self._thread.join(SECONDS)
        os.close(self._wake)
        os.close(self._woken)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host, Wire]]:
    """Two hosts and the wire between them; skips the test where there can be none."""
    if os.geteuid():
        pytest.skip("only root may make network namespaces")
    for needed in ("unshare", "nsenter", "ip", "mount", "hostname"):
        if shutil.which(needed) is None:
            pytest.skip(f"network namespaces need the program {needed}")
    with contextlib.ExitStack() as stack:
        hosts = []
        for address in ("10.77.0.1", "10.77.0.2"):
            hosts.append(Host(address))
            stack.callback(hosts[-1].close)
        one, other = hosts
        wire = Wire((one, other))
        stack.callback(wire.close)
        yield one, other, wire
