"""What must hold for the repository as a whole: metadata, names, sizes and package contents."""

import ast
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from scaler_protocol.messages import Message

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
MAX_CPP_LINES = 600
SEVERAL = {
    "scaler/tests/test_metadata.py": "metadata of the installed distributions",
    "scaler-client/tests/test_front_door.py": "the package `scaler`",
    "scaler-client/tests/core/test_core_graphs.py": "ClientCore: graphs",
    "scaler-client/tests/core/test_core_rules.py": "ClientCore: a state machine",
    "scaler-client/tests/runtime/test_nested.py": "clients inside tasks: io_thread with another transport",
    "scaler-io/tests/links/test_links.py": "Hub and Uplink together, over memory and over ZeroMQ",
    "scaler-io/tests/objects/test_shared_objects.py": "ObjectConnection on the host of the server: segments, mmaps",
    "scaler-scheduler/tests/core/test_core_any_message.py": "SchedulerCore: any message from any peer",
    "scaler-scheduler/tests/core/test_core_rules.py": "SchedulerCore: a state machine",
    "scaler-scheduler/tests/core/test_cost_laws.py": "SchedulerCore: operations per event do not grow with the cluster",
    "scaler-scheduler/tests/core/test_objects.py": "SchedulerCore: messages about objects",
    "scaler-scheduler/tests/relay/test_dishonest_agents.py": "RelayCore: agents that say what is not so, drains",
    "scaler-scheduler/tests/relay/test_relay_any_message.py": "RelayCore: any message from any agent",
    "scaler-scheduler/tests/core/test_simulation.py": "SchedulerCore: a large simulated cluster",
    "scaler-ui/tests/model/test_model_any_message.py": "MonitorModel: any message that the feed passes on",
}
"""Test modules of no single source module, with what they test."""

COVERED_BY = {
    "scaler": "packages/scaler-client/tests/test_front_door.py",
    "scaler_client/api": "packages/scaler-client/tests/api/test_client.py",
    "scaler_client/calls": "packages/scaler-client/tests/calls/test_encoding.py",
    "scaler_client/core": "packages/scaler-client/tests/core/test_core.py",
    "scaler_client/dask.py": "tests/test_dask.py",
    "scaler_client/joblib.py": "tests/test_joblib.py",
    "scaler_client/futures": "packages/scaler-client/tests/futures/test_futures.py",
    "scaler_client/graphs": "packages/scaler-client/tests/graphs/test_ordering.py",
    "scaler_client/objects": "packages/scaler-client/tests/objects/test_handles.py",
    "scaler_client/payloads": "packages/scaler-client/tests/payloads/test_pickles.py",
    "scaler_client/runtime": "packages/scaler-client/tests/runtime/test_io_thread.py",
    "scaler_client/task_context.py": "packages/scaler-client/tests/runtime/test_nested.py",
    "scaler_io/links": "packages/scaler-io/tests/links/test_links.py",
    "scaler_io/objects": "packages/scaler-io/tests/objects/test_connection.py",
    "scaler_io/provisioning": "packages/scaler-io/tests/provisioning/test_core.py",
    "scaler_io/service": "packages/scaler-io/tests/service/test_server_loop.py",
    "scaler_io/simulation": "packages/scaler-io/tests/simulation/test_network.py",
    "scaler_io/transport": "packages/scaler-io/tests/transport/test_zeromq.py",
    "scaler_launch": "packages/scaler-client/tests/api/test_local_cluster.py",
    "scaler_protocol": "packages/scaler-protocol/tests/test_codec.py",
    "scaler_scheduler/core": "packages/scaler-scheduler/tests/core/test_core.py",
    "scaler_scheduler/journal": "packages/scaler-scheduler/tests/journal/test_replay.py",
    "scaler_scheduler/monitoring": "packages/scaler-scheduler/tests/service/test_shell.py",
    "scaler_scheduler/relay": "tests/world/test_relays.py",
    "scaler_scheduler/scaling": "packages/scaler-scheduler/tests/scaling/test_planner.py",
    "scaler_scheduler/service": "packages/scaler-scheduler/tests/service/test_shell.py",
    "scaler_storage/engine": "packages/scaler-storage/tests/engine/test_engine.py",
    "scaler_storage/options.py": "packages/scaler-storage/tests/test_service.py",
    "scaler_ui": "tests/test_pages.py",
    "scaler_ui/model": "packages/scaler-ui/tests/model/test_views.py",
    "scaler_ui/terminal": "packages/scaler-ui/tests/terminal/test_top.py",
    "scaler_worker/agent": "packages/scaler-worker/tests/agent/test_shell.py",
    "scaler_worker/agent/core": "packages/scaler-worker/tests/agent/core/test_core.py",
    "scaler_worker/forking": "packages/scaler-worker/tests/agent/test_shell.py",
    "scaler_worker/ipc": "packages/scaler-worker/tests/ipc/test_frames.py",
    "scaler_worker/managers": "packages/scaler-worker/tests/managers/test_native.py",
    "scaler_worker/symphony": "packages/scaler-worker/tests/symphony/test_proxy_agent.py",
    "scaler_worker/worker": "packages/scaler-worker/tests/worker/test_runner.py",
}
"""Modules and folders to the test that covers what has no test module of its own there."""


def metadata(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(package: Path) -> list[str]:
    project = metadata(package)["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(line for extra in extras.values() for line in extra)]


SLOW = {"argparse", "capnp", "nicegui", "numpy", "psutil", "textual", "zmq"}
"""Modules that take long to import, or that import such ones."""
LOCAL_CLUSTER = (
    "scaler_launch.local, scaler_scheduler.service.shell, scaler_storage.options, scaler_storage.__main__, "
    "scaler_worker.agent.main"
)
"""What the process of scheduler and agent imports."""
NOT_IN_LOCAL_CLUSTER = {"datetime", "difflib", "scaler_storage.engine", "scaler_client", "scaler_worker.worker.runner"}
"""What other processes import at the same time, and what few programs need."""


def imports_of(package: Path) -> list[Path]:
    names = IMPORTS.get(package.name, [package.name.replace("-", "_")])
    return [package / "src" / name for name in names]


class Source:
    """What a module of the packages contains; `path` is that in the repository."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT)
        self.name = ".".join(self.path.with_suffix("").parts[3:]).removesuffix(".__init__")
        self.classes: list[ast.ClassDef] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.read: set[str] = set()
        """The names of the attributes that it reads."""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Load):
                    self.read.add(node.attr)
            elif isinstance(node, ast.ClassDef):
                self.classes.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.append(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(node)
        for definition in (*self.classes, *self.functions):
            definition.body.clear()


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the packages."""
    return tuple(map(Source, sorted(ROOT.glob("packages/*/src/**/*.py"))))


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
    assert f"{module}.__main__:main" in scripts.values()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_programs_catch_signals_before_they_import_what_is_slow(package: Path) -> None:
    for script in metadata(package)["project"].get("scripts", {}).values():
        module = script.partition(":")[0]
        code = f"import sys, {module}; print(*sorted({SLOW} & sys.modules.keys()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
        assert done.stdout == "\n", f"{module} imports them before its main function"


def test_a_local_cluster_imports_nothing_for_others() -> None:
    code = f"import sys, {LOCAL_CLUSTER}; print(*sorted({NOT_IN_LOCAL_CLUSTER} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "\n"


def test_lock_agrees_with_the_metadata() -> None:
    command = [str(UV), "lock", "--check", "--offline"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_constraints_are_what_the_lock_holds() -> None:
    exported = runpy.run_path(str(ROOT / "tools" / "pins.py"))["exported_pins"](str(UV))
    assert exported == metadata(ROOT)["tool"]["uv"]["constraint-dependencies"]


def test_class_names_are_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for definition in source.classes:
            places[definition.name].append(f"{source.path}:{definition.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_functions_are_short() -> None:
    offenders = []
    for source in sources():
        for function in source.functions:
            lines = cast(int, function.end_lineno) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                offenders.append(f"{source.path}:{function.lineno} {function.name}: {lines} lines")
    assert offenders == []


def test_the_client_for_cpp_is_small() -> None:
    """Lines of code, without comments."""
    texts = [(ROOT / "clients" / "cpp" / name).read_text() for name in ("link.hpp", "scaler.hpp")]
    code = [line for text in texts for line in text.splitlines() if line.partition("//")[0].strip()]
    assert len(code) <= MAX_CPP_LINES


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports within functions, and those for annotations only, count too."""
    imports: dict[str, set[str]] = {source.name: set() for source in sources()}
    for source in sources():
        for node in source.imports:
            if isinstance(node, ast.Import):
                imports[source.name].update(alias.name for alias in node.names)
            else:
                assert node.level == 0, f"{source.path}:{node.lineno} is a relative import"
                found = [f"{node.module}.{alias.name}" for alias in node.names]
                imports[source.name].update(one if one in imports else str(node.module) for one in found)
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a circle


def test_every_field_of_a_message_is_read() -> None:
    read = set().union(*(source.read for source in sources()))
    unread = {f"{kind.__name__}.{field.name}" for kind in get_args(Message) for field in fields(kind)}
    unread = {name for name in unread if name.partition(".")[2] not in read}
    assert unread == set()


def own_test(path: Path) -> Path:
    """Where the test module of a source module stands."""
    _, package, _, _, *folders, name = path.parts
    return Path("packages", package, "tests", *folders, f"test_{name}")


def test_every_test_module_stands_where_its_source_module_stands() -> None:
    expected = {own_test(source.path) for source in sources()}
    tests = {path.relative_to(ROOT) for path in ROOT.glob("packages/*/tests/**/test_*.py")}
    assert {str(path.relative_to("packages")) for path in tests - expected} == SEVERAL.keys()


def test_every_source_module_has_a_test_module_or_one_that_covers_it() -> None:
    used: set[str] = set()
    for path in (source.path for source in sources()):
        if path.name.startswith("__") or (ROOT / own_test(path)).is_file():
            continue
        module = Path(*path.parts[3:])
        keys = [key for key in map(str, (module, *module.parents)) if key in COVERED_BY]
        assert keys, f"{path} has no {own_test(path)}, and COVERED_BY names no test for it"
        used.add(keys[0])
    assert used == COVERED_BY.keys(), "every other module there has a test module of its own"
    assert [name for name in COVERED_BY.values() if not (ROOT / name).is_file()] == []
