"""The Hello of an agent, of either kind."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import cloudpickle

from scaler_io.links.uplink import longest_absence
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.limits import SECONDS


def agent_hello(
    *,
    name: str,
    host: str,
    workers: int,
    queue_size: int,
    death_timeout_seconds: float,
    capabilities: Mapping[str, int],
    consumables: Mapping[str, int] | None = None,
    manager: str = "",
    unit: str = "",
) -> Hello:
    """The Hello of a new agent in this process; `queue_size` is in tasks per worker.

    `capabilities` are what one task may have there, `consumables` what all of its runs have together. The agent ends
    after `death_timeout_seconds` without the scheduler.
    """
    return Hello(
        role=Role.AGENT,
        identity=new_identity(),
        incarnation=new_incarnation(),
        name=name,
        host=host,
        python=platform.python_version(),
        cloudpickle=cloudpickle.__version__,
        workers=workers,
        queue_size=queue_size,
        capability_names=sorted(capabilities),
        capability_values=[capabilities[capability] for capability in sorted(capabilities)],
        consumable_names=sorted(consumables or ()),
        consumable_totals=[total for _, total in sorted((consumables or {}).items())],
        lives_on_seconds=min(longest_absence(death_timeout_seconds), SECONDS.most),
        manager=manager,
        unit=unit,
    )
