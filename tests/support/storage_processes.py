"""An object storage server in its own process, which tests kill and restart."""

from __future__ import annotations

import os
import random
import select
import signal
from pathlib import Path

from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus
from support.gates import SECONDS
from support.waiting import wait_until
from support.warm_programs import WarmProgram

ANY_PORT = "tcp://127.0.0.1:0"
MIB = 1024 * 1024
INVERTED = bytes(range(255, -1, -1))
"""For `bytes.translate`: what InvertingCopies makes of a byte."""


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from part to part, and from seed to seed."""
    return random.Random(seed).randbytes(size)


class InvertingCopies:
    """A Copying whose copies differ from the buffers; `size` bytes were copied since it was restarted last."""

    def __init__(self) -> None:
        self.size = -1

    def restart(self) -> None:
        self.size = 0

    def copy(self, piece: memoryview) -> bytes:
        self.size += len(piece)
        return bytes(piece).translate(INVERTED)


def figures(address: str) -> StorageStatus:
    """The status that the server at this address reports."""
    link = OperatorLink(Address.parse(address), "test", ServiceKind.STORAGE)
    try:
        link.send(NeedStorageStatus())
        answers: list[Message] = []

        def answered() -> int:
            answers.extend(link.turn())
            return len(answers)

        wait_until(answered, "figures of the storage")
        [status] = answers
        assert isinstance(status, StorageStatus)
        return status
    finally:
        link.close()


class StorageProcess:
    """A server process. It accepts connections when the constructor, `start` and `restart` return."""

    def __init__(self, *words: str, address: str = ANY_PORT, segments: Path | None = None) -> None:
        self._words = [*words, "--segment-directory", str(segments)] if segments else [*words]
        self._segments = segments
        self.address = Address.parse(address)
        self.start()

    def start(self) -> None:
        """Start on the address of before; on a free port the first time, where the port is 0."""
        source, ready = os.pipe()
        words = [str(self.address), "--ready-fd", str(ready), "--insecure", "-lp", "/dev/null", *self._words]
        self.process = WarmProgram("scaler_storage", words, os.environ, 2, ready)
        os.close(ready)
        with open(source, encoding="utf-8") as reader:
            assert select.select([reader], [], [], SECONDS)[0]
            self.address = Address.parse(reader.read().strip())

    def status(self) -> StorageStatus:
        """Its status."""
        return figures(str(self.address))

    @property
    def directory(self) -> Path:
        """Its directory of segments."""
        assert self._segments is not None
        [directory] = self._segments.iterdir()
        return directory

    @property
    def segments(self) -> set[str]:
        """The names of its segments, the free ones included."""
        return {path.name for path in self.directory.iterdir()} - {"lock", "token", "peers"}

    def restart(self) -> None:
        """Kill it and start it on the same address."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """SIGKILL, and wait for the end of the process."""
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self) -> None:
        """SIGTERM, and wait for the end of the process, stopped or not."""
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(SECONDS)
