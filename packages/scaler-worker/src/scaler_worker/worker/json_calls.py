"""Calls and results in JSON, as programs in other languages read and write it."""

from __future__ import annotations

import json
from typing import Any, Final

from scaler_protocol.buffers import Buffer

_SHAPE: Final = 'a call is an array of arguments, or {"args": [...], "kwargs": {...}}'


def load_call(call: Buffer) -> tuple[list[Any], dict[str, Any]]:
    """The arguments and keywords of a call; raises ValueError or TypeError for what is no call, or no JSON in UTF-8."""
    loaded = _DECODER.decode(str(call, "utf-8"))
    if isinstance(loaded, list):
        return loaded, {}
    if not isinstance(loaded, dict):
        raise TypeError(f"{_SHAPE}, not {_kind(loaded)}")
    args, kwargs = loaded.pop("args", []), loaded.pop("kwargs", {})
    if loaded:
        raise TypeError(f"{_SHAPE}, without {next(iter(loaded))!r:.100}")
    if not isinstance(args, list):
        raise TypeError(f"{_SHAPE}: args is {_kind(args)}")
    if not isinstance(kwargs, dict):
        raise TypeError(f"{_SHAPE}: kwargs is {_kind(kwargs)}")
    return args, kwargs


def dump_result(value: Any) -> bytes:
    """A result; raises TypeError or ValueError for what JSON lacks, such as NaN, which others cannot read."""
    return json.dumps(value, allow_nan=False).encode()


def _kind(value: object) -> str:
    """What JSON calls a value."""
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else f"{json.dumps(value):.100}"


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; readers disagree about which of two members of a name counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has two members {twice!r:.100}: leave one out")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON: send null, or a text")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse)
