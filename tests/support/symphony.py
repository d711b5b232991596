"""A model of IBM Spectrum Symphony: a session manager and service instances as processes (see symphony_model)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import TracebackType

from support.processes import Terminal, descendants
from support.snippets import SYMPHONY_SERVICE

FOLDER = Path(__file__).with_name("symphony_model")
TESTS = FOLDER.parents[1]
SERVICE_NAME = "ScalerService"


class SymphonyModel:
    """A session manager with one application, whose service has this code; the promised one by default."""

    def __init__(self, folder: Path, *, code: str = SYMPHONY_SERVICE, instances: int = 2, retries: int = 1) -> None:
        service = folder / "service.py"
        service.write_text(code, "utf-8")
        self._socket = folder / "symphony"
        self._profile = json.dumps(
            {
                "name": SERVICE_NAME,
                "command": [sys.executable, str(service)],
                "instances": instances,
                "retries": retries,
            }
        )
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(FOLDER), str(TESTS))),
            "SOAM_MODEL_ADDRESS": str(self._socket),
        }
        self._manager: Terminal | None = None
        self.start()

    def start(self) -> None:
        """Start the session manager."""
        self._manager = self.terminal(sys.executable, FOLDER / "session_manager.py", self._profile)
        self._manager.read_until("the model of Symphony is ready")

    def terminal(self, *words: str | Path) -> Terminal:
        """A program on a host where Symphony is installed."""
        return Terminal("env", *(f"{name}={value}" for name, value in self.environment.items()), *words)

    def instances(self) -> list[int]:
        """The process ids of the service instances."""
        assert self._manager is not None
        return descendants(self._manager.process.pid)

    def kill(self) -> None:
        """Kill the session manager; its service instances end with it."""
        if self._manager is not None:
            self._manager.process.kill()
            self._manager.__exit__(None, None, None)
            self._manager = None
            self._socket.unlink()

    def __enter__(self) -> SymphonyModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
