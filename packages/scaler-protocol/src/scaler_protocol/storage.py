"""The messages between the object storage server and its peers.

Peers on the server's host write and map its segments; remote peers put and get parts. Remote hosts keep the large
objects of their workers, and put them when another host reads them. With ListObjects a session finds objects that a
restarted scheduler has forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.payloads import NONE, Payloads

# --- parts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutObject:
    """One part (see `scaler_protocol.objects`) of an object of `size` bytes, at `offset`; answered by ObjectStored.

    `version` is that of a replica on the sender's host, else 0; the server refuses an unknown version. With `keep` the
    host keeps the replica: the server has a further copy.
    """

    object: bytes
    size: int
    parts: Payloads
    offset: int = 0
    session: int = 0
    request: int = 0
    version: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class GetObject:
    """Requests up to `limit` bytes of an object from `offset`, at most one part; answered by ObjectPart.

    Limit 0 only asks whether the object exists.
    """

    object: bytes
    offset: int
    limit: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """These objects, or all of the session if the list is empty, are no longer needed.

    Clients and workers send it to object storage; the scheduler sends it to the process of a session.
    """

    objects: Sequence[bytes] = ()
    session: int = 0


@dataclass(frozen=True, slots=True)
class ObjectStored:
    """A part was stored, or `error` (as a FAILED outcome). An object is complete when all its parts are stored."""

    object: bytes
    request: int = 0
    error: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """The requested bytes of an object of `size` bytes; not `found`, or `error`, if they cannot be sent."""

    object: bytes
    found: bool
    size: int = 0
    parts: Payloads = NONE
    request: int = 0
    error: str = ""
    version: int = 0


# --- segments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostProof:
    """The sender is on the storage's host: it can read the file `token` in the segment directory.

    `proof` answers the challenge of the Welcome (see `scaler_protocol.objects.host_proof`). `lock_file`, if any, is a
    file in `peers` there that the sender keeps locked (flock) while it lives.
    """

    proof: bytes
    lock_file: str = ""


@dataclass(frozen=True, slots=True)
class AllocateObject:
    """Requests a segment to write an object of `size` bytes into; answered by ObjectAllocated."""

    object: bytes
    size: int
    session: int = 0
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectAllocated:
    """The file in the segment directory to write to, empty if the object is stored already; or `error`."""

    object: bytes
    segment: str = ""
    request: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class SealObject:
    """The segment is written and does not change any more; answered by ObjectStored."""

    object: bytes
    segment: str
    request: int = 0


@dataclass(frozen=True, slots=True)
class MapObject:
    """Requests the segment of an object of `size` bytes for reading; answered by ObjectMapped."""

    object: bytes
    size: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectMapped:
    """The file in the segment directory that begins with the object; it does not change until `pin` is released."""

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
    """The sender serves the replicas of its host; `host` is made from a secret in a file there."""

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
class CopyReplicas:
    """Somebody has requested these results of 256 KiB or more: if they are on other hosts, they may be copied."""

    objects: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class FetchReplica:
    """The receiver puts an object whose replica is on its host, with its version: a peer reads it.

    With `keep` the server makes a further copy, and the host keeps the replica.
    """

    object: bytes
    size: int
    session: int
    version: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DropReplicas:
    """To a host: it may delete these replicas. From a host: it no longer has them."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("objects", "sizes", "sessions", "versions"),)

    objects: Sequence[bytes]
    sizes: Sequence[int]
    sessions: Sequence[int]
    versions: Sequence[int]


# --- list -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListObjects:
    """Requests the ids of all complete objects of the sender's session; answered by ObjectLists."""

    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectList:
    """Ids, in no order; about `left` ones follow in further messages, and after the last none do."""

    objects: Sequence[bytes] = ()
    request: int = 0
    left: int = 0


StorageMessage = (
    PutObject | GetObject | DeleteObjects | ObjectStored | ObjectPart
    | HostProof | AllocateObject | ObjectAllocated | SealObject | MapObject | ObjectMapped | UnpinObjects
    | ListObjects | ObjectList | RegisterReplicaServer | RegisterReplica | CopyReplicas | FetchReplica | DropReplicas
)  # fmt: skip
