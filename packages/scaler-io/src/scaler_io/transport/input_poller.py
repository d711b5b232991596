"""InputPoller: one thread waits for input on a few descriptors, again and again.

`selectors` has the same on every system, but makes an object for each descriptor that it reports.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence


class InputPoller:
    """Waits on descriptors that stay open as long as it is used."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors
        if sys.platform != "win32":  # where select() takes any descriptor
            self._poll = select.poll()
            for descriptor in descriptors:
                self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> list[int]:
        """Block until there is input or an error, at most `seconds`; returns the descriptors that have it."""
        if sys.platform == "win32":
            return select.select(self._descriptors, (), (), seconds)[0]
        return [descriptor for descriptor, _ in self._poll.poll(seconds * 1000.0)]
