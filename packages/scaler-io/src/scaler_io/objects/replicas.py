"""Replicas: the files of a host's cache that are the only copies of their objects, as registered with a server.

A replica has a second name in a directory below the cache, which contains its session. While it has this name, it is
not removed to make room or because it is unused. Both names are removed when the object is deleted; only the second
one is removed when the server has the bytes, too.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from scaler_io.objects.file_locks import try_lock
from scaler_io.objects.host_cache import REPLICAS, TOKEN, CachedFile, cached_name
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.light_crypto import blake2b, random_below
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference

_TOKEN_BYTES = 32
_VERSION_BITS = 63
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EIO)
"""Error numbers that mean that the bytes are lost; other errors may be temporary."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A version of an object that this host keeps for the server."""

    reference: Reference
    version: int
    session: int


def new_version() -> int:
    """A random version number for a replica, never 0."""
    return random_below(2**_VERSION_BITS) + 1


class Replicas:
    """The replicas in a host's cache for the server at an address."""

    def __init__(self, directory: Path, address: Address) -> None:
        self.directory = directory
        self._server = blake2b(str(address).encode(), digest_size=8).digest()
        self._held = directory / REPLICAS / self._server.hex()

    @property
    def host(self) -> bytes:
        """A secret that identifies this host to the server: only readers of the directory know it. Raises OSError."""
        path = self.directory / TOKEN
        if not path.exists():
            making = self.directory / f"{TOKEN}.{os.urandom(8).hex()}"
            making.write_bytes(os.urandom(_TOKEN_BYTES))
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(making, path)
            making.unlink()
        return path.read_bytes() + self._server

    def add(self, file: CachedFile, replica: Replica) -> None:
        """Make a complete file, which the caller has locked, a replica; raises OSError."""
        self._held.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(self._file(replica), self._name(replica))
        file.share_lock()

    def release(self, replica: Replica) -> None:
        """Make the file an ordinary one of the cache, which may be removed."""
        self._name(replica).unlink(missing_ok=True)

    def drop(self, replica: Replica) -> None:
        """Remove the file; processes that have mapped it can go on reading."""
        self._file(replica).unlink(missing_ok=True)
        self.release(replica)

    def map(self, replica: Replica) -> mmap.mmap | None:
        """Map the bytes of a replica; None if they are lost. Raises OSError for temporary errors."""
        try:
            with open(self._name(replica), "rb", buffering=0) as file:
                return mmap.mmap(file.fileno(), replica.reference.size, access=mmap.ACCESS_READ)
        except ValueError:  # the file is too short
            return None
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def list(self) -> list[tuple[float, Replica]]:
        """All replicas, each with the time of its last use (as time.time), the longest unused one first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._held) as entries:
            for entry in entries:
                replica = _parse(entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if replica is not None:
                        found.append((entry.stat().st_mtime, replica))
        return sorted(found, key=lambda each: each[0])

    @contextlib.contextmanager
    def upload_lock(self) -> Iterator[bool]:
        """Whether the caller may upload replicas to make room: one process of a host at a time may."""
        try:
            descriptor = os.open(self._held, os.O_RDONLY)
        except OSError:
            yield False
            return
        try:
            yield try_lock(descriptor, exclusively=True)
        finally:
            os.close(descriptor)

    def _file(self, replica: Replica) -> Path:
        return self.directory / cached_name(replica.reference, replica.version)

    def _name(self, replica: Replica) -> Path:
        return self._held / f"{cached_name(replica.reference, replica.version)}-{replica.session:x}"


def _parse(name: str) -> Replica | None:
    try:
        object_id, version, size, session = name.split("-")
        reference = Reference(bytes.fromhex(object_id), int(size))
        replica = Replica(reference, int(version, 16), int(session, 16))
    except ValueError:
        return None
    return replica if len(reference.object) == OBJECT_ID_BYTES else None
