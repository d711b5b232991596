"""What users import, and what that costs."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import subprocess
import sys

import pytest

import scaler


def test_the_public_names() -> None:
    assert scaler.Client.__module__ == "scaler_client.api.client"
    for name in scaler.__all__:
        assert getattr(scaler, name) is not None
    assert scaler.__version__ == importlib.metadata.version("scaler-client")
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("scaler").handlers)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("scaler.cluster.combo", "SchedulerClusterCombo"),
        ("scaler.client.client", "Client"),
        ("scaler.client.future", "ScalerFuture"),
        ("scaler.client.object_reference", "ObjectReference"),
        ("scaler.client.serializer.mixins", "Serializer"),
    ],
)
def test_old_paths(path: str, name: str) -> None:
    assert getattr(importlib.import_module(path), name) is getattr(scaler, name)


def test_importing_is_light() -> None:
    ours = "'scaler_protocol.codec', 'scaler_client.api.connected_workers'"
    heavy = f"{{'asyncio', 'zmq', 'numpy', 'multiprocessing', 'html', {ours}}}"
    code = f"import sys; before = {{*sys.modules}}; import scaler; print(sorted({heavy} & {{*sys.modules}} - before))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
