"""GPUs: which worker sees which one, and where tasks run that require one. There is none: CUDA is not asked."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from support.gates import SECONDS
from support.gpu_tasks import seen, through_child, with_gpu_alone

GPUS = ("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c")
NVIDIA_SMI = f"""#!/bin/sh
[ "$*" = -L ] || exit 1
echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: {GPUS[0]})"
echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: {GPUS[1]})"
"""


def test_each_worker_sees_its_own_and_tasks_that_require_one_have_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI, "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    log = str(tmp_path / "log")
    with (
        SchedulerClusterCombo(n_workers=3, gpus="auto", logging_paths=(log,)) as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        assert Counter(client.run(seen, timeout=SECONDS).values()) == Counter(["", *GPUS])
        assert client.submit(os.getenv, "CUDA_DEVICE_ORDER").result(SECONDS) == "PCI_BUS_ID"
        found = client.starmap(with_gpu_alone, [(tmp_path,)] * 20, capabilities={"gpu": 1})
        assert {gpu for gpu, _ in found} == set(GPUS) and all(alone for _, alone in found)
        nested = [client.submit(through_child, client, tmp_path) for _ in range(6)]
        assert all(future.result(SECONDS)[0] in GPUS and future.result()[1] for future in nested)
        [host] = client.workers().hosts
        assert dict(host.capabilities) == {"gpu": 1}
