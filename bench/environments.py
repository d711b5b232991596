"""One environment per peer under bench/.environments, with pinned versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parent
FOLDER = HERE / ".environments"

PYTHON_VERSION = "3.11"
PINS: dict[str, tuple[str, ...]] = {
    "ray": ("ray==2.60.0", "numpy==2.4.6"),
    "dask": ("distributed==2026.8.0", "dask==2026.8.0", "numpy==2.4.6"),
    "opengris": ("opengris-scaler==2.9.0", "numpy==2.4.6"),
}
"""Peers that are not named here run with the workspace's own Python."""


class EnvironmentMissingError(RuntimeError):
    """A peer's environment cannot be made."""


def _find_uv(given: str | None) -> str:
    """The uv that was named, or the workspace's own."""
    if given is not None:
        return str(Path(given).resolve())
    for path in sorted((WORKSPACE / ".tools").glob("**/uv")):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise EnvironmentMissingError("no uv under .tools: run `make sync`, or name one with --uv")


def _version_of(python: str) -> str:
    """The version like "3.11" of an interpreter; empty where it does not run, as may happen with shims."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _find_python() -> str:
    """An interpreter of the version that all peers run on, else the version for uv to look for."""
    candidates = [str(WORKSPACE / ".venv/bin/python"), sys.executable, shutil.which(f"python{PYTHON_VERSION}")]
    return next((each for each in candidates if each and _version_of(each) == PYTHON_VERSION), PYTHON_VERSION)


def _make(peer: str, uv: str) -> None:
    """Recreate a peer's environment. Modules are compiled now, so that the first start does not include it."""
    folder = FOLDER / peer
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin/python")
    for words in (
        [uv, "venv", "--quiet", "--no-project", "--python", _find_python(), str(folder)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *PINS[peer]],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=HERE)
        if done.returncode:
            raise EnvironmentMissingError(f"{' '.join(words[1:3])} failed: {done.stderr.strip()[-500:]}")
    (folder / "pins").write_text("\n".join(PINS[peer]), encoding="utf-8")


def python_for(peer: str, uv: str | None) -> Path:
    """The interpreter a peer runs with; its environment is made where it is missing or its pins have changed."""
    if peer not in PINS:
        own = WORKSPACE / ".venv/bin/python"
        if own.exists():
            return own
        if peer == "scaler":
            raise EnvironmentMissingError("the workspace has no .venv: run `make sync`")
        return Path(sys.executable)
    pins = FOLDER / peer / "pins"
    if not pins.exists() or pins.read_text(encoding="utf-8") != "\n".join(PINS[peer]):
        print(f"making the environment of {peer}: {', '.join(PINS[peer])}", file=sys.stderr, flush=True)
        _make(peer, _find_uv(uv))
    return FOLDER / peer / "bin/python"
