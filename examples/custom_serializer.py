"""Decide how arguments and results become bytes: data frames as Parquet, integers in four bytes, the rest as usual.

Needs pandas and pyarrow, here and on the workers.
"""

from __future__ import annotations

import enum
import pickle
import struct
from io import BytesIO
from typing import Any

import cloudpickle
import pandas as pd
import pyarrow as pa

from scaler import Client, SchedulerClusterCombo, Serializer


class Tag(enum.Enum):
    """The first byte of everything this serializer writes."""

    GENERAL = b"G"
    INTEGER = b"I"
    FRAME = b"D"


class FrameSerializer(Serializer):
    """The class travels to the workers once; functions, arguments and results go through it, exceptions do not."""

    @staticmethod
    def serialize(obj: Any) -> bytes:
        """A tag, then the bytes."""
        if isinstance(obj, pd.DataFrame):
            buffer = BytesIO()
            obj.to_parquet(buffer)
            return bytes(Tag.FRAME.value + buffer.getvalue())
        if isinstance(obj, int) and 0 <= obj < 2**32:
            return bytes(Tag.INTEGER.value + struct.pack("I", obj))
        return bytes(Tag.GENERAL.value + cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        """By the tag. A slice of bytes is bytes, while payload[0] would be a number and equal to no tag."""
        tag, body = Tag(payload[:1]), payload[1:]
        if tag is Tag.FRAME:
            # pyarrow may abort the program while Python ends if it has read Parquet from an object of Python.
            return pd.read_parquet(pa.BufferReader(body))
        if tag is Tag.INTEGER:
            return struct.unpack("I", body)[0]
        return cloudpickle.loads(body)


def add(a: int, b: int) -> int:
    """Four calls of serialize: the function, 1, 2, and the result."""
    return a + b


def scale(frame: pd.DataFrame, factor: int) -> pd.DataFrame:
    """A data frame goes in and comes out."""
    return frame * factor


def main() -> None:
    """Hand the class to the client, and go on as usual."""
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address(), serializer=FrameSerializer) as client,
    ):
        print(client.submit(add, 1, 2).result())
        frame = pd.DataFrame({"price": [1.5, 2.5], "amount": [10, 20]})
        print(client.submit(scale, frame, 2).result().to_string(index=False))


if __name__ == "__main__":
    main()
