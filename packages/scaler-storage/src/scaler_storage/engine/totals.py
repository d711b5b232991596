"""Totals: the counters of StorageStatus. Pure, no IO."""

from __future__ import annotations

from heapq import nlargest
from itertools import islice

from scaler_protocol.light_crypto import blake2b
from scaler_protocol.monitoring import StorageStatus
from scaler_storage.engine.state import StorageState

_BIGGEST = 10
_MOST = 2**64 - 1
"""The largest value of a status field: the sizes that remote hosts report are not verified."""
_BIGGEST_AMONG = 20_000
"""How many of the newest objects are searched for the biggest, to bound the time of a status request."""


def status_of(state: StorageState, refused_lately: int) -> StorageStatus:
    """The current totals."""
    pager = state.pager
    newest = islice(reversed(state.objects.items()), _BIGGEST_AMONG)
    biggest = nlargest(_BIGGEST, newest, key=lambda item: item[1].size)
    return StorageStatus(
        objects=len(state.objects),
        writing=len(state.uploads),
        sessions=len(state.sessions),
        peers=len(state.peers),
        bytes=pager.pool.used,
        memory_limit=pager.pool.limit,
        refused=state.refused,
        writing_bytes=sum(upload.segment.capacity for upload in state.uploads.values()),
        pinned_bytes=pager.pinned_bytes,
        recyclable_bytes=pager.pool.recyclable,
        spilled=pager.spilled,
        spilled_bytes=pager.spilled_bytes,
        spilled_bytes_total=pager.spilled_bytes_total,
        loaded_bytes_total=pager.loaded_bytes_total,
        hits=state.hits,
        misses=state.misses,
        unknown=state.unknown,
        waiting=len(state.queue),
        biggest_names=[blake2b(name, digest_size=8).hexdigest() for name, _ in biggest],
        biggest_sessions=[record.session for _, record in biggest],
        biggest_sizes=[record.size for _, record in biggest],
        biggest_in_memory=[record.in_memory for _, record in biggest],
        biggest_remote=[bool(record.host) for _, record in biggest],
        hosts=len(state.replica_servers),
        replicas=state.replicas,
        replica_bytes=min(state.replica_bytes, _MOST),
        fetched_bytes_total=state.fetched_bytes_total,
        copies=len(state.copies),
        copy_bytes=state.copies.bytes,
        refused_lately=refused_lately,
    )
