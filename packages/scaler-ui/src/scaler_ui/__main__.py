"""The program `scaler_ui`."""

from __future__ import annotations

import sys

from scaler_ui.programs import ui

if __name__ == "__main__":
    sys.exit(ui())
