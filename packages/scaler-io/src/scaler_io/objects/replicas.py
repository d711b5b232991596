"""Replicas: which files of a host's cache are the only ones of their objects, as the server of an address knows.

A held file has a second name, in a directory below the cache, which says to which session it belongs: as long as it has
that nobody removes it for room or for not being used. Both names are taken away when the object is deleted; the second
one alone when the server has the bytes, too.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from scaler_io.objects.file_locks import try_lock
from scaler_io.objects.host_cache import REPLICAS, TOKEN, CachedFile, cached_name
from scaler_protocol.addresses import Address
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference

_TOKEN_BYTES = 32
_VERSION_BITS = 63
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EIO)
"""What says that bytes are lost; whatever else is wrong may pass."""


@dataclass(frozen=True, slots=True)
class Replica:
    """An object that stands on this host, as this version."""

    reference: Reference
    version: int
    session: int


def new_version() -> int:
    """As a writer numbers what it holds; never 0."""
    return secrets.randbits(_VERSION_BITS) + 1


class Replicas:
    """What is held in a host's cache for the server at an address."""

    def __init__(self, directory: Path, address: Address) -> None:
        self.directory = directory
        self._server = blake2b(str(address).encode(), digest_size=8).digest()
        self._held = directory / REPLICAS / self._server.hex()

    @property
    def host(self) -> bytes:
        """By which the server knows this host, and nobody who can not read the directory; raises OSError."""
        path = self.directory / TOKEN
        if not path.exists():
            making = self.directory / f"{TOKEN}.{secrets.token_hex(8)}"
            making.write_bytes(secrets.token_bytes(_TOKEN_BYTES))
            with contextlib.suppress(FileExistsError):  # somebody else was first
                os.link(making, path)
            making.unlink()
        return path.read_bytes() + self._server

    def add(self, file: CachedFile, held: Replica) -> None:
        """From now on nobody removes a complete file that the caller has locked; raises OSError."""
        self._held.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(self._file(held), self._name(held))
        file.share()

    def release(self, held: Replica) -> None:
        """It need not be held: it may go, as what was fetched may."""
        self._name(held).unlink(missing_ok=True)

    def drop(self, held: Replica) -> None:
        """It is of no use; who has it mapped may go on reading."""
        self._file(held).unlink(missing_ok=True)
        self.release(held)

    def map(self, held: Replica) -> mmap.mmap | None:
        """Its bytes; None where they are lost. Raises OSError for what may pass, as where no descriptors are left."""
        try:
            with open(self._name(held), "rb", buffering=0) as file:
                return mmap.mmap(file.fileno(), held.reference.size, access=mmap.ACCESS_READ)
        except ValueError:  # it is too short
            return None
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def list(self) -> list[tuple[float, Replica]]:
        """All of them and when each was used last, the longest unused first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._held) as entries:
            for entry in entries:
                held = _parse(entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if held is not None:
                        found.append((entry.stat().st_mtime, held))
        return sorted(found, key=lambda each: each[0])

    @contextlib.contextmanager
    def giving(self) -> Iterator[bool]:
        """Whether it is the caller who makes room of what is held: of a host's processes one at a time."""
        try:
            descriptor = os.open(self._held, os.O_RDONLY)
        except OSError:
            yield False
            return
        try:
            yield try_lock(descriptor, exclusively=True)
        finally:
            os.close(descriptor)

    def _file(self, held: Replica) -> Path:
        return self.directory / cached_name(held.reference, held.version)

    def _name(self, held: Replica) -> Path:
        return self._held / f"{cached_name(held.reference, held.version)}-{held.session:x}"


def _parse(name: str) -> Replica | None:
    try:
        object_id, version, size, session = name.split("-")
        reference = Reference(bytes.fromhex(object_id), int(size))
        held = Replica(reference, int(version, 16), int(session, 16))
    except ValueError:
        return None
    return held if len(reference.object) == OBJECT_ID_BYTES else None
