"""GPUs by the names that NVIDIA's own programs give them."""

from __future__ import annotations

import pytest

from scaler_protocol.gpus import gpu_names, listed_gpus, visible_gpus

TWO = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c)
"""
DIVIDED = """\
GPU 0: NVIDIA H100 PCIe (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-a22a23d5-7d2c-5f2b-9a3c-66bf7a52a1ab)
  MIG 1g.5gb      Device  1: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
GPU 1: Tesla T4 (UUID: GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c)
"""


def test_what_nvidia_smi_lists() -> None:
    assert listed_gpus(TWO) == (
        "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
        "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c",
    )
    assert listed_gpus(DIVIDED) == (
        "MIG-a22a23d5-7d2c-5f2b-9a3c-66bf7a52a1ab",
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c",
    )
    assert listed_gpus("") == listed_gpus("No devices found.\n") == ()


@pytest.mark.parametrize(
    ("value", "seen"), [("0,2", ("0", "2")), ("", ()), ("-1", ()), ("1,-1,0", ("1",)), ("NoDevFiles", ())]
)
def test_what_a_batch_system_lets_see(value: str, seen: tuple[str, ...]) -> None:
    assert visible_gpus(value) == seen


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("2,x", "'x' is no GPU: give auto, or numbers and UUIDs as nvidia-smi shows them, like 0,1"),
        ("auto,1", "'auto' is no GPU"),
        ("1,0,1", "GPU 1 is given twice"),
        ("", "'' is no GPU"),
    ],
)
def test_what_names_no_gpus_is_refused(text: str, what: str) -> None:
    assert gpu_names(" 0, 1") == ("0", "1")
    with pytest.raises(ValueError, match=what):
        gpu_names(text)
