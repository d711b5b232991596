"""What must hold for the repository as a whole: metadata, names, sizes and package contents."""

import ast
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".tools" / "bin" / "uv"
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
NAMES = {package.name for package in PACKAGES}
IMPORTS = {
    "scaler": ["scaler_launch"],
    "scaler-client": ["scaler_client", "scaler"],
}
SERVERS = ["scaler-scheduler", "scaler-storage", "scaler-worker"]
MAX_FUNCTION_LINES = 50


def metadata(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(package: Path) -> list[str]:
    project = metadata(package)["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(line for extra in extras.values() for line in extra)]


def imports_of(package: Path) -> list[Path]:
    names = IMPORTS.get(package.name, [package.name.replace("-", "_")])
    return [package / "src" / name for name in names]


def modules() -> Iterator[tuple[Path, ast.Module, int]]:
    """Every module of the packages: its path in the repository, its tree, its number of lines."""
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        source = path.read_text(encoding="utf-8")
        yield path.relative_to(ROOT), ast.parse(source, str(path)), len(source.splitlines())


def test_there_are_eight_packages() -> None:
    parts = ["client", "io", "protocol", "scheduler", "storage", "ui", "worker"]
    assert sorted(NAMES) == ["scaler", *(f"scaler-{part}" for part in parts)]


@pytest.mark.parametrize("key", ["version", "requires-python", "license"])
def test_packages_agree_with_each_other(key: str) -> None:
    values = {metadata(package)["project"][key] for package in PACKAGES}
    assert len(values) == 1


def test_root_has_the_version_of_the_packages() -> None:
    assert metadata(ROOT)["project"]["version"] == metadata(PACKAGES[0])["project"]["version"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_is_private_and_pins_its_siblings(package: Path) -> None:
    project = metadata(package)["project"]
    assert project["name"] == package.name
    assert "Private :: Do Not Upload" in project["classifiers"]
    for line in requirements(package):
        name, rest = cast("re.Match[str]", re.match(r"([A-Za-z0-9-]+)(?:\[.*?\])?(.*)", line)).groups()
        if name in NAMES:
            assert rest.split(";")[0].strip() == f"=={project['version']}", line
        else:
            assert rest.split(";")[0].strip() == "", f"versions of third parties stand in the root: {line}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_is_complete(package: Path) -> None:
    assert (package / "README.md").stat().st_size > 0
    assert not (package / "LICENSE").is_symlink()
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (package / "tests").is_dir()
    sources = [path for path in (package / "src").iterdir() if path.name != "__pycache__"]
    assert sorted(sources) == sorted(imports_of(package))
    for folder in imports_of(package):
        assert (folder / "__init__.py").is_file()
        assert (folder / "py.typed").is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_server_package_runs_as_a_module(name: str) -> None:
    module = name.replace("-", "_")
    assert (ROOT / "packages" / name / "src" / module / "__main__.py").is_file()
    scripts = metadata(ROOT / "packages" / name)["project"]["scripts"]
    assert list(scripts.values()) == [f"{module}.__main__:main"]


def test_lock_agrees_with_the_metadata() -> None:
    command = [str(UV), "lock", "--check", "--offline"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_constraints_are_what_the_lock_holds() -> None:
    exported = runpy.run_path(str(ROOT / "tools" / "pins.py"))["exported_pins"](str(UV))
    assert exported == metadata(ROOT)["tool"]["uv"]["constraint-dependencies"]


def test_class_names_are_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_functions_are_short() -> None:
    offenders = []
    for path, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = cast(int, node.end_lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    offenders.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
    assert offenders == []
