"""The eight wheels, built and installed into fresh environments as a user would have them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".tools" / "bin" / "uv"
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
CLIENT_ONLY = ["scaler-client", "scaler-io", "scaler-protocol"]

CHECK_VERSIONS = """
import sys
from importlib.metadata import distributions, version

import scaler

expected = sorted(sys.argv[1:])
installed = sorted(d.name for d in distributions() if d.name == "scaler" or d.name.startswith("scaler-"))
assert installed == expected, installed
assert {version(name) for name in expected} == {scaler.__version__}
assert scaler.Client.__module__ == "scaler_client.api.client", scaler.Client.__module__
assert scaler.__file__.startswith(sys.prefix), scaler.__file__
"""

CLIENT_ONLY_HAS_NO_CLUSTER = """
from scaler import Client, SchedulerClusterCombo

try:
    SchedulerClusterCombo(n_workers=1)
except Exception as error:
    assert "pip install scaler" in str(error), error
else:
    raise AssertionError("a cluster without server packages")
"""

RUN_A_TASK = """
import math

from scaler import Client, SchedulerClusterCombo

with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    assert client.submit(math.sqrt, 16.0).result(timeout=30) == 4.0
"""


def run(*command: str | Path, cwd: Path) -> None:
    """A command that must succeed, without anything of the environment that runs the tests."""
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=outside,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=90,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The eight wheels by the name of their distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    run(UV, "build", "--all-packages", "--wheel", "--out-dir", folder, "--python", sys.executable, cwd=ROOT)
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def environment(folder: Path, wheels: list[Path]) -> Path:
    """The interpreter of a fresh environment: our wheels by path, third parties as pinned."""
    pins = folder / "pins.txt"
    export = ("export", "--quiet", "--frozen", "--all-packages", "--all-extras", "--no-emit-workspace", "--no-hashes")
    run(UV, *export, "--output-file", pins, cwd=ROOT)
    run(UV, "venv", "--python", sys.executable, folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(UV, "pip", "install", "--python", python, "--constraints", pins, *wheels, cwd=folder)
    run(UV, "pip", "check", "--python", python, cwd=folder)
    return python


@pytest.fixture(scope="module")
def client_only(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with nothing of ours but the client and what it stands on."""
    return environment(tmp_path_factory.mktemp("client"), [wheels[name] for name in CLIENT_ONLY])


@pytest.fixture(scope="module")
def everything(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all eight wheels."""
    return environment(tmp_path_factory.mktemp("everything"), list(wheels.values()))


def test_wheels_hold_every_file_of_the_sources(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == [package.name for package in PACKAGES]
    for package in PACKAGES:
        source = package / "src"
        files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
        with zipfile.ZipFile(wheels[package.name]) as wheel:
            shipped = set(wheel.namelist())
        assert {name for name in files if "__pycache__" not in name} <= shipped
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in shipped)


def test_client_only_installation(client_only: Path, tmp_path: Path) -> None:
    run(client_only, "-c", CHECK_VERSIONS, *CLIENT_ONLY, cwd=tmp_path)
    run(client_only, "-c", CLIENT_ONLY_HAS_NO_CLUSTER, cwd=tmp_path)


def test_installation_of_everything(everything: Path, tmp_path: Path) -> None:
    run(everything, "-c", CHECK_VERSIONS, *(package.name for package in PACKAGES), cwd=tmp_path)


def test_installation_of_everything_runs_a_task(everything: Path, tmp_path: Path) -> None:
    run(everything, "-c", RUN_A_TASK, cwd=tmp_path)
