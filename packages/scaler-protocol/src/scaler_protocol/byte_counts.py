"""Numbers of bytes as people write them: 4000000000, 4GB, 512MiB. Pure."""

from __future__ import annotations

import re
from typing import Final

_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE | re.ASCII)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """The number of bytes; raises ValueError.

    Prefixes are those of the SI (kB is 1,000 bytes) and of IEC 80000-13 (KiB is 1,024 bytes), in any case of letters,
    and the B may be left out.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a number of bytes, like 4000000000, 4GB or 512MiB")
    number, prefix, binary = found.groups()
    unit = (1024 if binary else 1000) ** _POWERS[prefix.lower()] if prefix else 1
    return int(number) * unit if number.isdigit() else round(float(number) * unit)
