"""Whether the workers of an agent could be started, for whoever starts a cluster and waits for that."""

from __future__ import annotations

import asyncio


class StartReport:
    """Decided once: the first worker is ready, or the agent ended before that. To be made inside the running loop."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        """A worker is ready."""
        if not self._outcome.done():
            self._outcome.set_result("")

    def failed(self, reasons: str) -> None:
        """The agent ends."""
        if not self._outcome.done():
            self._outcome.set_result(reasons)

    async def outcome(self) -> str:
        """Wait for the decision; returns why no worker was started, empty where one was."""
        return await asyncio.shield(self._outcome)
