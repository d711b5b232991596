"""The messages between the object storage server and its peers.

Peers on the server's host write and map its segments; remote peers put and get parts. Remote hosts keep the large
objects of their workers, and put them when another host reads them. With ListObjects a session finds objects that a
restarted scheduler has forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scaler_protocol.payloads import NONE, Payloads

# --- parts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutObject:
    """One part (see `scaler_protocol.objects`) of an object of `size` bytes, at `offset`; answered by ObjectStored.

    A part of an object that the sender's host holds has its `version`; the server refuses an unknown one.
    """

    object: bytes
    size: int
    parts: Payloads
    offset: int = 0
    session: int = 0
    request: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class GetObject:
    """Up to `limit` bytes (0: is it there?) of an object from `offset`; answered by ObjectPart, at most one part."""

    object: bytes
    offset: int
    limit: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """These objects, or all of a session where the list is empty, may be freed.

    Clients and workers say so to the storage; the scheduler to the process of a session, if nobody else knows of it.
    """

    objects: Sequence[bytes] = ()
    session: int = 0


@dataclass(frozen=True, slots=True)
class ObjectStored:
    """A part was taken, or why not: `error` is as a FAILED outcome. With all its parts taken an object is complete."""

    object: bytes
    request: int = 0
    error: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """Bytes of an object of `size` bytes from `offset`; or that there is no such object, or why they can not come."""

    object: bytes
    found: bool
    size: int = 0
    offset: int = 0
    parts: Payloads = NONE
    request: int = 0
    error: str = ""
    version: int = 0


# --- segments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostProof:
    """The content of the file `token` in the storage's segment directory: the sender is on its host.

    `lock_file` is a file in `peers` there, if any, that the sender keeps locked (flock) as long as it lives.
    """

    token: bytes
    lock_file: str = ""


@dataclass(frozen=True, slots=True)
class AllocateObject:
    """A segment is wanted, to write an object of `size` bytes into; answered by ObjectAllocated."""

    object: bytes
    size: int
    session: int = 0
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectAllocated:
    """The file in the segment directory to write to, empty where the object is stored already; or `error`."""

    object: bytes
    segment: str = ""
    request: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class SealObject:
    """The segment is written and will not change: the object is complete; answered by ObjectStored."""

    object: bytes
    segment: str
    request: int = 0


@dataclass(frozen=True, slots=True)
class MapObject:
    """The segment of an object of `size` bytes is wanted, to be read; answered by ObjectMapped."""

    object: bytes
    size: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectMapped:
    """The file in the segment directory that begins with the object and stays until `pin` is given back."""

    object: bytes
    found: bool
    segment: str = ""
    pin: int = 0
    request: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class UnpinObjects:
    """Releases pins; unknown processes may have inherited the mappings of the `inherited` ones."""

    pins: Sequence[int] = ()
    inherited: Sequence[int] = ()


# --- hosts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterReplicaServer:
    """The sender serves the objects that its host holds; `host` is a secret from a file there."""

    host: bytes


@dataclass(frozen=True, slots=True)
class RegisterReplica:
    """The only copy of an object is on `host`, with the writer's `version`; answered by ObjectStored."""

    object: bytes
    size: int
    session: int
    version: int
    host: bytes
    request: int = 0


@dataclass(frozen=True, slots=True)
class FetchReplica:
    """Another host reads an object that the receiver's host holds: the receiver puts it, with its version."""

    object: bytes
    size: int
    session: int
    version: int


@dataclass(frozen=True, slots=True)
class DropReplicas:
    """To a host: it may delete these versions. From a host: it no longer has them."""

    COLUMNS: ClassVar = (("objects", "sizes", "sessions", "versions"),)

    objects: Sequence[bytes]
    sizes: Sequence[int]
    sessions: Sequence[int]
    versions: Sequence[int]


# --- stock ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListObjects:
    """The ids of all complete objects of the sender's session are wanted; answered by ObjectList."""

    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The ids, in no order."""

    objects: Sequence[bytes] = ()
    request: int = 0


StorageMessage = (
    PutObject | GetObject | DeleteObjects | ObjectStored | ObjectPart
    | HostProof | AllocateObject | ObjectAllocated | SealObject | MapObject | ObjectMapped | UnpinObjects
    | ListObjects | ObjectList | RegisterReplicaServer | RegisterReplica | FetchReplica | DropReplicas
)  # fmt: skip
