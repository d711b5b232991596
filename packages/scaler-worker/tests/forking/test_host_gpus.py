"""The GPUs of a host: what was asked for, what a batch system lets see, what nvidia-smi lists."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scaler_worker.forking.host_gpus import find_gpus, nvidia_listing

LISTING = "GPU 0: Tesla T4 (UUID: GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c)\n"


def test_auto_is_what_this_process_may_see() -> None:
    assert find_gpus(("auto",), {"CUDA_VISIBLE_DEVICES": "3"}, lambda: LISTING) == ("3",)
    assert find_gpus(("auto",), {}, lambda: LISTING) == ("GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c",)
    assert find_gpus(("0", "1"), {"CUDA_VISIBLE_DEVICES": "3"}, lambda: LISTING) == ("0", "1")


def test_a_host_without_gpus_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_gpus(("auto",), {}, str) == ()
    assert caplog.messages == ["--gpus auto: this host has no GPU, so workers offer none"]


def test_an_nvidia_smi_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_listing() == "" and not caplog.messages, "without a driver there is no such program"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Driver/library version mismatch' >&2\nexit 18\n", "utf-8")
    program.chmod(0o755)
    assert nvidia_listing() == ""
    assert caplog.messages == ["--gpus auto: nvidia-smi ended with code 18: Driver/library version mismatch"]
