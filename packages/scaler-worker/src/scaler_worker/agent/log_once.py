"""LogOnce: repeated errors are logged once."""

from __future__ import annotations

import logging

from scaler_protocol.errors import ScalerError

_REMEMBERED = 256


class LogOnce:
    """Logs each distinct error once, with a traceback if it is neither an OSError nor a ScalerError."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: set[tuple[str, str]] = set()

    def log(self, what: str, error: Exception) -> None:
        """Log `what` with the error, unless the same was logged before."""
        why = f"{type(error).__name__}: {error}"
        if (what, why) in self._logged:
            return
        if len(self._logged) >= _REMEMBERED:
            self._logged.clear()
        self._logged.add((what, why))
        foreseen = isinstance(error, OSError | ScalerError)
        self._logger.error("%s (%s)", what, why, exc_info=None if foreseen else error)
