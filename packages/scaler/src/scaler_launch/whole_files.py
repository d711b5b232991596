"""Files that are written wholly or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file, or leave what there was; raises OSError, FileExistsError if it may not `replace` a file.

    A pipe or a device is written to as it is.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    if not replace and path.exists():
        raise FileExistsError(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # nobody knows the other name
    finally:
        part.unlink(missing_ok=True)
