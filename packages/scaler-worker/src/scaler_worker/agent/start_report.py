"""StartReport: whether an agent's workers could be started, awaited by the caller that starts a cluster."""

from __future__ import annotations

import asyncio


class StartReport:
    """Resolved once: the first worker is ready, or the agent ended before. Construct it inside the running loop."""

    def __init__(self) -> None:
        self._reasons: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        """A worker is ready."""
        if not self._reasons.done():
            self._reasons.set_result("")

    def failed(self, reasons: str) -> None:
        """The agent ends for these reasons."""
        if not self._reasons.done():
            self._reasons.set_result(reasons)

    async def wait(self) -> str:
        """Wait; returns the reasons why no worker was started, or an empty string."""
        return await asyncio.shield(self._reasons)
