"""The names of GPUs, as CUDA_VISIBLE_DEVICES takes them: numbers or UUIDs. Pure."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Final

AUTO: Final = "auto"
GPU: Final = "gpu"
"""The capability that workers with a GPU offer."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""So numbers of GPUs are those that nvidia-smi shows; CUDA would count the fastest one first."""
_NAME: Final = re.compile(r"[0-9]+|(GPU|MIG)-[-0-9A-Za-z/]+")
_LISTED: Final = re.compile(r"(?P<part> *)(GPU|MIG) .*\(UUID: (?P<uuid>[^)]+)\)")


def gpu_names(text: str) -> tuple[str, ...]:
    """Parse `auto`, or numbers and UUIDs of GPUs; raises ValueError."""
    names = tuple(name.strip() for name in text.split(","))
    if names == (AUTO,):
        return names
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no GPU: give auto, or numbers and UUIDs as nvidia-smi shows them, like 0,1")
        if names.count(name) > 1:
            raise ValueError(f"GPU {name} is given twice")
    return names


def listed_gpus(listing: str) -> tuple[str, ...]:
    """The UUIDs in what `nvidia-smi -L` prints: of a GPU that is divided (MIG) those of its parts, else its own."""
    found: list[list[str]] = []
    for match in filter(None, map(_LISTED.match, listing.splitlines())):
        if not match["part"]:
            found.append([])
        if found:
            found[-1].append(match["uuid"])
    return tuple(uuid for whole, *parts in found for uuid in parts or [whole])


def visible_gpus(value: str) -> tuple[str, ...]:
    """The GPUs in a value of CUDA_VISIBLE_DEVICES; CUDA ignores all after the first one that is none."""
    return tuple(takewhile(_NAME.fullmatch, (name.strip() for name in value.split(","))))
