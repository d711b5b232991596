"""Performing effects: in order, and each failure by itself."""

from __future__ import annotations

import pytest

from scaler_io.links.effects import Log, Stop, perform_each


def test_an_effect_that_fails_does_not_stop_the_others() -> None:
    done: list[object] = []
    failed: list[tuple[object, str]] = []

    def log(effect: Log) -> None:
        if effect.text == "bad":
            raise ValueError("on purpose")
        done.append(effect)

    effects = [Log(10, "first"), Log(10, "bad"), Stop("last")]
    perform_each(effects, {Log: log, Stop: done.append}, lambda effect, error: failed.append((effect, str(error))))
    assert done == [effects[0], effects[2]] and failed == [(effects[1], "on purpose")]


def test_an_effect_without_a_handler_fails() -> None:
    failed: list[str] = []
    perform_each([Stop("now")], {}, lambda effect, error: failed.append(type(error).__name__))
    assert failed == ["KeyError"]


def test_interrupts_are_not_failures() -> None:
    def interrupt(effect: Stop) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform_each([Stop("now")], {Stop: interrupt}, lambda effect, error: None)
