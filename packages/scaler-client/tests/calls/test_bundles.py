"""Bundles are read from files and imported from memory."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest

from scaler_client.calls.bundles import BundleFinder, read_bundle


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a part, a package within it, data, and what is left out."""
    folder = tmp_path / "bundled"
    (folder / "inner").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    files = {
        "__init__.py": "from .part import VALUE",
        "part.py": "VALUE = 7\ndef fail(): raise KeyError(VALUE)",
        "inner/__init__.py": "from ..part import VALUE as INNER",
        "data.txt": "some text",
        "__pycache__/part.pyc": "nothing",
    }
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def test_a_package_is_imported_from_memory_with_its_parts_and_data(package: Path) -> None:
    bundle = read_bundle(package)
    assert bundle.name == "bundled" and not any("pyc" in file for file in bundle.files)
    for file in sorted(package.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    finder = BundleFinder([bundle], "0123abcd")
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module("bundled.inner")
        assert module.INNER == 7 and sys.modules["bundled"].VALUE == 7
        assert sys.modules["bundled.part"].__file__ == "/uploaded/0123abcd/bundled/part.py"
        assert pkgutil.get_data("bundled", "data.txt") == b"some text"
        with pytest.raises(OSError, match="was not uploaded"):
            pkgutil.get_data("bundled", "other.txt")
        with pytest.raises(ModuleNotFoundError, match=r"bundled\.missing"):
            importlib.import_module("bundled.missing")
        with pytest.raises(KeyError) as failed:
            sys.modules["bundled.part"].fail()
        shown = "".join(traceback.format_exception(failed.type, failed.value, failed.tb))
        assert "def fail(): raise KeyError(VALUE)" in shown, "tracebacks show the lines"
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "bundled"]:
            del sys.modules[name]


def test_a_module_stands_for_its_files(package: Path) -> None:
    module = ModuleType("bundled")
    module.__path__ = [str(package)]
    assert read_bundle(module) == read_bundle(package)
    single = ModuleType("part")
    single.__file__ = str(package / "part.py")
    assert read_bundle(single).files.keys() == {"part.py"}


def test_what_is_no_module_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "no_package").mkdir()
    (tmp_path / "not-a-name.py").touch()
    (tmp_path / "json.py").touch()
    (tmp_path / "zmq.py").touch()
    (tmp_path / "text.txt").touch()
    for given, why in {
        "no_package": "no file __init__.py",
        "not-a-name.py": "'not-a-name' cannot be uploaded",
        "json.py": "'json' cannot be uploaded",
        "zmq.py": "'zmq' cannot be uploaded",
        "text.txt": "give a .py file",
    }.items():
        with pytest.raises(ValueError, match=why):
            read_bundle(tmp_path / given)
    with pytest.raises(FileNotFoundError):
        read_bundle(tmp_path / "missing.py")
    with pytest.raises(FileNotFoundError):
        read_bundle(tmp_path / "missing")
    with pytest.raises(ValueError, match="upload os"):
        read_bundle(sys.modules["os.path"] if sys.modules["os.path"].__name__ == "os.path" else ModuleType("os.path"))
    with pytest.raises(ValueError, match="has no file"):
        read_bundle(sys.modules["sys"])
    (package / "fast.abi3.so").touch()
    with pytest.raises(ValueError, match="is compiled"):
        read_bundle(package)
