"""Environments keep versions of modules apart, whatever their code does to the table of modules."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from scaler_client.calls import environments
from scaler_client.calls.bundles import Bundle
from scaler_client.calls.environments import ClientEnvironment, Environment, WrappedFunction, entered_key, environment
from scaler_protocol.errors import InitializerError

NAME = "environment_of_a_test"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No version of the module stays, nor an environment."""
    yield
    sys.modules.pop(NAME, None)
    environments._kept.clear()


def made(value: int) -> Environment:
    """The environment with one version of the module, as a worker makes it."""
    files = {f"{NAME}/__init__.py": f"VALUE = {value}".encode(), f"{NAME}/part.py": b""}
    client = ClientEnvironment({}, None, b"").with_bundle(Bundle(NAME, files))
    wrapped = pickle.loads(client.key(bytes).wrap(b"function"))
    assert isinstance(wrapped, WrappedFunction) and wrapped.function == b"function"
    return environment(wrapped.environment)


def test_versions_stay_apart_with_their_state() -> None:
    installed = sys.modules[NAME] = ModuleType(NAME)
    one, two = made(1), made(2)
    assert made(1) is one
    for _ in range(2):
        for version, expected in ((one, 1), (two, 2)):
            with version:
                module: Any = importlib.import_module(NAME)
                assert expected == module.VALUE and entered_key() == version.key
                module.seen = getattr(module, "seen", 0) + 1
            assert sys.modules[NAME] is installed and entered_key() is None
    with one:
        sys.modules["another_of_a_test"] = ModuleType("another")
    with one:
        importlib.import_module(f"{NAME}.part")
        del sys.modules["another_of_a_test"]
    assert f"{NAME}.part" not in sys.modules, "as many modules as before, and another one"
    with one:
        assert importlib.import_module(NAME).seen == 2 and f"{NAME}.part" in sys.modules
        replaced = sys.modules[NAME] = ModuleType(NAME)
    with one:
        assert sys.modules[NAME] is replaced
    assert not any(type(finder).__name__ == "BundleFinder" for finder in sys.meta_path)


def test_an_initializer_that_exits_is_a_failure_and_is_tried_again() -> None:
    found = environment(ClientEnvironment({}, sys.exit, b"client").key(bytes))
    for _ in range(2):
        with pytest.raises(InitializerError) as raised:
            found.initialize(asyncio.run)
        assert isinstance(raised.value.__cause__, SystemExit)


async def fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("awaited")


def test_an_initializer_may_be_a_coroutine() -> None:
    with pytest.raises(InitializerError, match="awaited"):
        environment(ClientEnvironment({}, fail, b"client").key(bytes)).initialize(asyncio.run)


def test_old_environments_are_forgotten() -> None:
    kept = [made(value) for value in range(environments.KEPT + 1)]
    assert made(1) is kept[1] and made(0) is not kept[0]
