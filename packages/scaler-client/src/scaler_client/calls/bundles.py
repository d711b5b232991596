"""Bundles: the files of uploaded modules, read where the client is, and imported from memory in workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from scaler_protocol.ranges import shown

_PREFIX: Final = "/uploaded"
"""The files have names below this, in tracebacks and as `__file__`; there are none."""

OF_WORKERS: Final = frozenset({"blake3", "cloudpickle", "xxhash", "zmq", "scaler"}).union(
    f"scaler_{part}" for part in ("client", "io", "launch", "protocol", "scheduler", "storage", "ui", "worker")
)
"""What workers themselves import, also later than at their start: another module of that name would end them."""


class Bundle(NamedTuple):
    """A top-level module or package: its name, and its files by their paths, which begin with the name."""

    name: str
    files: Mapping[str, bytes]


def read_bundle(given: str | os.PathLike[str] | ModuleType) -> Bundle:
    """The bundle of a module, or of a path of one: a `.py` file, or the folder of a package.

    Raises ValueError for what is none, TypeError for what names none, and OSError if it cannot be read.
    """
    if not isinstance(given, (str, os.PathLike, ModuleType)):
        raise TypeError(f"{shown(given)} cannot be uploaded: give a module, a .py file, or the folder of a package")
    path = _path_of(given) if isinstance(given, ModuleType) else Path(given).absolute()
    if path.is_dir():
        if not (path / "__init__.py").is_file():
            raise ValueError(f"{shown(str(path))} is no package: it has no file __init__.py")
        files = {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in _files_below(path)}
    elif path.suffix == ".py":
        files = {path.name: path.read_bytes()}
    else:
        path.stat()
        raise ValueError(f"{shown(str(path))} is no module: give a .py file, or the folder of a package")
    name = path.name.removesuffix(".py")
    if not name.isidentifier() or name == "__main__" or name in sys.stdlib_module_names or name in OF_WORKERS:
        raise ValueError(f"{name!r} cannot be uploaded: it is no name of a module of yours")
    return Bundle(name, files)


def _path_of(module: ModuleType) -> Path:
    if "." in module.__name__:
        raise ValueError(f"{module.__name__} is a part of a package: upload {module.__name__.partition('.')[0]}")
    folders, file = list(getattr(module, "__path__", ())), getattr(module, "__file__", None)
    if not folders and not file:
        raise ValueError(f"the module {module.__name__} has no file")
    return Path(folders[0] if folders else str(file)).absolute()


def _files_below(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        if "__pycache__" in file.parts or not file.is_file():
            continue
        if file.name.endswith(tuple(EXTENSION_SUFFIXES)):
            raise ValueError(
                f"{shown(str(file))} is compiled, and cannot be uploaded: install it where the workers run"
            )
        yield file


class BundleFinder(MetaPathFinder):
    """Finds the modules of bundles; `version` is in the names of their files."""

    def __init__(self, bundles: Sequence[Bundle], version: str) -> None:
        self.names = frozenset(bundle.name for bundle in bundles)
        root = f"{_PREFIX}/{version}"
        self._files = {f"{root}/{path}": data for bundle in bundles for path, data in bundle.files.items()}
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a module; None for one that no bundle has."""
        if fullname.partition(".")[0] not in self.names:
            return None
        base = f"{self._root}/{fullname.replace('.', '/')}"
        for file in (f"{base}/__init__.py", f"{base}.py"):
            if file in self._files:
                return spec_from_file_location(fullname, file, loader=_BundleLoader(file, self._files))
        return None


class _BundleLoader(SourceLoader):
    """Loads one module; also reads the other files of its bundle, for `pkgutil.get_data`."""

    def __init__(self, file: str, files: Mapping[str, bytes]) -> None:
        self._file, self._files = file, files

    def get_filename(self, fullname: str) -> str:
        """The name of its file."""
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        """The bytes of a file; raises OSError for one that the bundle lacks."""
        if (found := self._files.get(os.fsdecode(path))) is None:
            raise FileNotFoundError(f"{os.fsdecode(path)} was not uploaded")
        return found
