"""A `scaler_cluster` whose shell fails: `failing_agent.py <effect> <times> <words of scaler_cluster>`."""

from __future__ import annotations

import sys
from typing import Any

from scaler_worker import __main__ as program
from scaler_worker.agent import shell
from scaler_worker.agent.core import events


def _fail(kind: type, times: int) -> None:
    """Have the first effects of this type raise an exception instead of being performed."""
    make = shell.Agent.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        perform, left = self._perform[kind], times

        def raising(effect: Any) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                raise OSError(24, "Too many open files")
            perform(effect)

        self._perform[kind] = raising

    shell.Agent.__init__ = initialize  # type: ignore[method-assign]


if __name__ == "__main__":
    _fail(getattr(events, sys.argv[1]), int(sys.argv[2]))
    del sys.argv[1:3]
    sys.exit(program.main())
