"""The keyboard of a terminal, which may send anything. Not for Windows."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class TolerantDriver(LinuxDriver):
    """Bytes that are no UTF-8 are no keys, nor is what comes with them: textual would end with a traceback."""

    def run_input_thread(self) -> None:
        """Read keys until the program ends."""
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except UnicodeDecodeError:
                continue
