"""Calls that take results of other tasks: the results are appended to the call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from scaler_protocol.messages import Run
from scaler_worker.ipc.frames import FOLLOWS, PLAIN, STORED, WITH_INPUTS

_INPUTS_HEAD: Final = struct.Struct("=QQ")
_INPUT: Final = struct.Struct("=QBQ")


class Input(NamedTuple):
    """The result of another task that a call takes as an argument; `kind` is PLAIN, STORED or FOLLOWS."""

    task: int
    kind: int
    result: bytes


def join_inputs(call: bytes, inputs: Sequence[Input]) -> bytes:
    """Append inputs to a call, for a task WITH_INPUTS."""
    pieces = [_INPUTS_HEAD.pack(len(call), len(inputs)), call]
    for task, kind, result in inputs:
        pieces += (_INPUT.pack(task, kind, len(result)), result)
    return b"".join(pieces)


def split_inputs(joined: bytes) -> tuple[bytes, list[Input]]:
    """Reverse `join_inputs`: returns call and inputs."""
    length, count = _INPUTS_HEAD.unpack_from(joined)
    at = _INPUTS_HEAD.size + length
    call, inputs = joined[_INPUTS_HEAD.size : at], []
    for _ in range(count):
        task, kind, size = _INPUT.unpack_from(joined, at)
        at += _INPUT.size
        inputs.append(Input(task, kind, joined[at : at + size]))
        at += size
    return call, inputs


def with_inputs(message: Run) -> tuple[list[bytes], list[int]]:
    """The calls and flags of a Run in which some calls are references or take results of other tasks."""
    calls, flags = list(message.calls.parts), [PLAIN] * len(message.tasks)
    for position in message.stored:
        flags[position] |= STORED
    kinds = dict.fromkeys(message.inputs_stored, STORED)
    kinds.update(dict.fromkeys(message.inputs_awaited, FOLLOWS))
    inputs: dict[int, list[Input]] = {}
    pairs = zip(message.dependents, message.needs, message.inputs, strict=True)
    for at, (position, need, result) in enumerate(pairs):
        kind = kinds.get(at, PLAIN)
        inputs.setdefault(position, []).append(Input(need, kind, result))
        flags[position] |= kind & FOLLOWS
    for position, found in inputs.items():
        calls[position] = join_inputs(calls[position], found)
        flags[position] |= WITH_INPUTS
    return calls, flags
