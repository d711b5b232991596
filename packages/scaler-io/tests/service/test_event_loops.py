"""Event loops: which one runs, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from scaler_io.service.event_loops import EVENT_LOOP, EventLoopError, run
from scaler_protocol.errors import ScalerError


async def loop_module() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.parametrize(("kind", "module"), [("builtin", "asyncio"), ("uvloop", "uvloop")])
def test_runs_on_it_and_says_so(kind: str, module: str, caplog: pytest.LogCaptureFixture) -> None:
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    caplog.set_level(logging.INFO, logger="scaler")
    assert run(loop_module, kind) == module
    assert caplog.messages == [f"use event loop: {kind}"]


def test_uvloop_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(EventLoopError, match=r'pip install "scaler\[uvloop\]", or use --event-loop builtin') as raised:
        run(loop_module, "uvloop")
    assert isinstance(raised.value, ScalerError)
    assert isinstance(raised.value, ValueError)
    assert caplog.messages == []


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="'trio' is not one of builtin, uvloop"):
        run(loop_module, "trio")


def test_error_of_main_passes_through() -> None:
    async def fail() -> None:
        raise OSError("port in use")

    with pytest.raises(OSError, match="port in use"):
        run(fail)


def test_option() -> None:
    assert (EVENT_LOOP.names, EVENT_LOOP.default) == (("--event-loop", "-el"), "builtin")
    assert EVENT_LOOP.parse("UVLOOP") == "uvloop"
