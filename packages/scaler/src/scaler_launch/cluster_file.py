"""A cluster as one TOML file: which services it names, in which order they start, and with which command lines.

Each table holds the options of one program, which reads the file itself. What a table leaves out and another one tells
is passed on the command line: the address of the scheduler, of object storage, of the monitor.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scaler_io.interpreters import words_of
from scaler_io.service.cli import Command
from scaler_io.service.options import UsageError, field_name
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STARTED: Final = ("object_storage_server", "scheduler", "cluster", "worker_manager", "gui")
"""The tables whose programs are started, in this order."""
KNOWN: Final = (*STARTED, "native_worker_adapter", "profile", "relay", "symphony_cluster", "top", "why")

ANY: Final = Address("127.0.0.1", 1)
"""Stands for the address that a program which is not started may be given later."""


@dataclass(frozen=True, slots=True)
class Service:
    """A program that the file names."""

    name: str
    """For people."""
    words: tuple[str, ...]
    """The arguments of the Python interpreter."""
    reports_ready: bool
    """Whether it writes its address to `--ready-fd` when it can be reached."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The contents of a file."""

    services: tuple[Service, ...]
    """In the order in which they start."""
    scheduler: Address | None
    """Where the file's scheduler is reached from this host."""


def read_cluster(path: Path) -> ClusterFile:
    """Read and check a file; raises UsageError, which names file, table and key."""
    tables = _tables(path)
    unknown = [name for name in tables if name not in KNOWN]
    if unknown:
        near = difflib.get_close_matches(unknown[0], KNOWN, n=1)
        advice = f"did you mean [{near[0]}]?" if near else f"tables are {', '.join(KNOWN)}"
        raise UsageError(f"{path}: unknown table [{unknown[0]}]; {advice}")
    if all(tables.get(name, []) == [] for name in STARTED):
        raise UsageError(f"{path}: no table of a service; `scaler init` writes a file to start from")
    for name, table in tables.items():
        if isinstance(table, dict):
            continue
        if name != "worker_manager":
            raise UsageError(f"{path}: {name} must be one table, [{name}]")
        if not isinstance(table, list) or not all(isinstance(one, dict) for one in table):
            raise UsageError(f"{path}: worker_manager must be tables, each [[worker_manager]]")
    return _Reader(path, tables).read()


def _tables(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None


class _Reader:
    def __init__(self, path: Path, tables: Mapping[str, Any]) -> None:
        self._path, self._tables = path, tables
        self._scheduler: Address | None = None
        self._storage: Address | None = None
        self._monitor: Address | None = None
        self._services: list[Service] = []
        self._ports: dict[int, str] = {}
        """Who listens to each port."""

    def read(self) -> ClusterFile:
        readers: dict[str, Callable[[], None]] = {
            "object_storage_server": self._read_storage,
            "scheduler": self._read_scheduler,
            "cluster": self._read_workers,
            "worker_manager": self._read_managers,
            "gui": self._read_page,
            "native_worker_adapter": self._check_adapter,
            "profile": self._check_profile,
            "relay": self._check_relay,
            "symphony_cluster": self._check_symphony,
            "top": self._check_top,
            "why": self._check_why,
        }
        for name, read in readers.items():
            if name in self._tables:
                read()
        return ClusterFile(tuple(self._services), self._scheduler)

    def _read_storage(self) -> None:
        from scaler_storage.options import COMMAND

        options = self._parse(COMMAND)
        with self._placed(COMMAND.section):
            options.check()
        self._storage = _from_here(options.address)
        self._claim("[object_storage_server]", options.address)
        self._add("object storage server", "scaler_storage", reports_ready=True)

    def _read_scheduler(self) -> None:
        from scaler_scheduler.service.options import COMMAND

        words = []
        if self._storage is not None and not self._has("scheduler", "object_storage_address"):
            words = ["--object-storage-address", str(self._storage)]
        options = self._parse(COMMAND, words)
        with self._placed(COMMAND.section):
            options.check()
            monitor = options.monitor_address or options.address.beside(2)
        if not options.address.path and not options.address.port:
            raise UsageError(f"{self._path} [scheduler]: port 0 is for tests; name a port that the others can be told")
        self._scheduler = _from_here(options.address)
        self._claim("[scheduler]", options.address)
        if options.object_storage_address is None:
            self._claim("the object storage of [scheduler]", options.address.beside(1))
        self._claim("the monitor of [scheduler]", monitor)
        if options.metrics_address is not None:
            self._claim("the metrics of [scheduler]", options.metrics_address)
        self._monitor = _from_here(monitor)
        self._add("scheduler", "scaler_scheduler", words, reports_ready=True)

    def _read_workers(self) -> None:
        from scaler_worker.config import COMMAND

        words = self._scheduler_word(self._tables["cluster"])
        self._parse(COMMAND, words)
        self._add("workers", "scaler_worker", words)

    def _read_managers(self) -> None:
        tables = self._tables["worker_manager"]
        tables = tables if isinstance(tables, list) else [tables]
        ids = [str(id) for table in tables if (id := _value(table, "worker_manager_id")) is not None]
        for id, count in Counter(ids).items():
            if count > 1:
                raise UsageError(f"{self._path} [[worker_manager]]: {count} have the worker_manager_id {id!r}")
        if len(ids) < len(tables) and len(tables) > 1:
            raise UsageError(f"{self._path} [[worker_manager]]: one has no worker_manager_id")
        for table in tables:
            self._read_manager(table)

    def _read_manager(self, table: Mapping[str, object]) -> None:
        from scaler_worker.managers.main import kind_named

        kind, id = table.get("type"), _value(table, "worker_manager_id")
        if not isinstance(kind, str):
            raise UsageError(f'{self._path} [[worker_manager]]: say which kind, like type = "baremetal_native"')
        words = self._scheduler_word(table)
        if id is not None:
            words.append(f"--worker-manager-id={id}")
        try:
            command = kind_named(kind).COMMAND
        except ValueError as error:
            raise UsageError(f"{self._path} [[worker_manager]]: {error}") from None
        self._parse(command, words)
        self._add(f"worker manager {id}", "scaler_worker.managers.main", words, before=(kind,))

    def _read_page(self) -> None:
        from scaler_ui.web.app import COMMAND

        words = []
        if self._monitor is not None and not self._has("gui", "address", "monitor_address"):
            words = [str(self._monitor)]
        options = self._parse(COMMAND, words)
        self._claim("[gui]", Address(options.host, options.port))
        self._add("web page", "scaler_ui", words)

    def _check_adapter(self) -> None:
        from scaler_worker.managers.adapter_server import command

        self._parse(command(), self._scheduler_word(self._tables["native_worker_adapter"], ANY))

    def _check_profile(self) -> None:
        from scaler_ui.terminal.profile import COMMAND

        self._parse(COMMAND, self._scheduler_word(self._tables["profile"], ANY))

    def _check_relay(self) -> None:
        from scaler_scheduler.relay.options import COMMAND

        named = self._has("relay", "scheduler", "scheduler_address")
        options = self._parse(COMMAND, [] if named else ["--scheduler", str(ANY)])
        if named:
            with self._placed(COMMAND.section):
                options.check()

    def _check_symphony(self) -> None:
        from scaler_worker.symphony.proxy_options import CLUSTER

        self._parse(CLUSTER, self._scheduler_word(self._tables["symphony_cluster"], ANY))

    def _check_top(self) -> None:
        from scaler_ui.terminal.top import COMMAND

        self._parse(COMMAND, [] if self._monitor is None else [str(self._monitor)])

    def _check_why(self) -> None:
        from scaler_ui.terminal.why import COMMAND

        self._parse(COMMAND, [str(self._monitor or ANY), "1"])

    def _claim(self, who: str, address: Address) -> None:
        """Raise UsageError if another service of this file listens to the same port."""
        if address.port:
            other = self._ports.setdefault(address.port, who)
            if other != who:
                raise UsageError(f"{self._path}: {who} and {other} have the same port, {address.port}: change one")

    def _parse(self, command: Command[Any], words: Sequence[str] = ()) -> Any:
        with self._placed(command.section):
            return command.parse([*words, self._config])

    @contextmanager
    def _placed(self, section: str) -> Iterator[None]:
        """Have errors name the file."""
        try:
            yield
        except ValueError as error:
            place = "" if str(self._path) in str(error) else f"{self._path} [{section}]: "
            raise UsageError(f"{place}{error}") from error

    @property
    def _config(self) -> str:
        # One word: the name of a file may begin with a dash.
        return f"--config={self._path}"

    def _has(self, section: str, *keys: str) -> bool:
        table = self._tables[section]
        return isinstance(table, dict) and any(_value(table, key) is not None for key in keys)

    def _scheduler_word(self, table: Mapping[str, object], otherwise: Address | None = None) -> list[str]:
        known = any(_value(table, key) is not None for key in ("address", "scheduler_address"))
        scheduler = self._scheduler or otherwise
        return [] if known or scheduler is None else [str(scheduler)]

    def _add(
        self,
        name: str,
        module: str,
        words: Sequence[str] = (),
        *,
        before: Sequence[str] = (),
        reports_ready: bool = False,
    ) -> None:
        command = (*words_of(module), *before, *words, self._config)
        self._services.append(Service(name, command, reports_ready))


def _value(table: Mapping[str, object], key: str) -> object:
    """The value of a key, which may be written with dashes or underscores."""
    return next((value for name, value in table.items() if field_name(name) == key), None)


def _from_here(address: Address) -> Address:
    """The address by which programs of this host reach a service that listens there."""
    if address.path or address.host not in ("0.0.0.0", "::", "*"):
        return address
    return Address("::1" if address.host == "::" else "127.0.0.1", address.port)
