"""LogOnce: what goes wrong again and again is said once."""

from __future__ import annotations

import logging

from scaler_protocol.errors import ScalerError

_REMEMBERED = 256


class LogOnce:
    """Logs each complaint the first time, with a traceback where the error is a fault of the program."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: set[tuple[str, str]] = set()

    def say(self, what: str, error: Exception) -> None:
        """Log what could not be done, and why, unless that was said before."""
        why = f"{type(error).__name__}: {error}"
        if (what, why) in self._said:
            return
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add((what, why))
        foreseen = isinstance(error, OSError | ScalerError)
        self._logger.error("%s (%s)", what, why, exc_info=None if foreseen else error)
