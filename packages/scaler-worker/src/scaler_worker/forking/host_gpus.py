"""The GPUs of this host that workers may have."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

from scaler_protocol.gpus import AUTO, VISIBLE, listed_gpus, visible_gpus

LOGGER: Final = logging.getLogger("scaler")
_LISTING_SECONDS: Final = 60.0


def find_gpus(asked: tuple[str, ...], environment: Mapping[str, str], listing: Callable[[], str]) -> tuple[str, ...]:
    """The GPUs that were asked for; with `auto`, those that this process may see, as batch systems say, or all."""
    if asked != (AUTO,):
        return asked
    value = environment.get(VISIBLE)
    found = listed_gpus(listing()) if value is None else visible_gpus(value)
    if not found:
        LOGGER.warning("--gpus auto: this host has no GPU, so workers offer none")
    return found


def nvidia_listing() -> str:
    """What `nvidia-smi -L` prints; empty where it cannot be run."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_SECONDS)
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        LOGGER.warning("--gpus auto: nvidia-smi cannot be run: %s", error)
        return ""
    if listed.returncode:
        said = (listed.stdout + listed.stderr).strip()
        LOGGER.warning("--gpus auto: nvidia-smi ended with code %d: %s", listed.returncode, said)
        return ""
    return listed.stdout
