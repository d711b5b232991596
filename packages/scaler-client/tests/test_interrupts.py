"""Ctrl-C waits for the end of a block."""

from __future__ import annotations

import signal
import sys

import pytest

from scaler_client.interrupts import interrupts_blocked


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal masks")
def test_an_interrupt_is_delivered_at_the_end_of_the_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts_blocked():
        signal.raise_signal(signal.SIGINT)
        steps.append("interrupted")
        steps.append("end of the block")
    assert steps == ["interrupted", "end of the block"]
