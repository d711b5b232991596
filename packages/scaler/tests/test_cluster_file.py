"""Cluster files: what they start, and the errors that name file, table and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_launch import __main__ as program
from scaler_launch.cluster_file import read_cluster

SCHEDULER = '[scheduler]\naddress = "tcp://127.0.0.1:2345"\n'
MANAGER = '[[worker_manager]]\ntype = "baremetal_native"\nworker_manager_id = "{id}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.toml"


def test_the_starter_file_is_right(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["init", str(file)]) == 0
    assert program.run(["check", str(file)]) == 0
    names = "object storage server, scheduler, worker manager local, web page"
    assert names in capsys.readouterr().out
    with pytest.raises(ValueError, match="exists already"):
        program.run(["init", str(file)])


def test_services_start_in_order_and_are_told_of_each_other(file: Path) -> None:
    gui = "[gui]\nport = 0\n"
    storage = '[object_storage_server]\nbind_address = "tcp://0.0.0.0:9000"\ninsecure = true\n'
    managers = MANAGER.format(id="a") + MANAGER.format(id="b")
    file.write_text(gui + managers + SCHEDULER + storage + "[top]\nonce = true\n", encoding="utf-8")
    cluster = read_cluster(file)
    assert [service.name for service in cluster.services] == [
        "object storage server", "scheduler", "worker manager a", "worker manager b", "web page",
    ]  # fmt: skip
    _, scheduler, first, _, page = (service.words for service in cluster.services)
    assert scheduler[3:5] == ("--object-storage-address", "tcp://127.0.0.1:9000")
    assert first[3:5] == ("baremetal_native", "tcp://127.0.0.1:2345")
    assert page[3] == "tcp://127.0.0.1:2347"


def test_tables_of_programs_that_are_not_started_may_stand_beside_the_others(file: Path) -> None:
    adapter, symphony = "[native_worker_adapter]\nport = 8080\n", '[symphony_cluster]\nservice_name = "S"\n'
    file.write_text(SCHEDULER + adapter + symphony, encoding="utf-8")
    assert [service.name for service in read_cluster(file).services] == ["scheduler"]


def test_what_a_table_says_itself_wins(file: Path) -> None:
    file.write_text(
        SCHEDULER + 'object-storage-address = "tcp://h:1"\n' + MANAGER.format(id="a") + 'address = "tcp://h:2"\n',
        encoding="utf-8",
    )
    scheduler, manager = read_cluster(file).services
    assert "--object-storage-address" not in scheduler.words and "tcp://127.0.0.1:2345" not in manager.words


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no table of a service"),
        ("[top]\n", "no table of a service"),
        ("[shceduler]\n", r"unknown table \[shceduler\]; did you mean \[scheduler\]"),
        (SCHEDULER + "protcted = true\n", r"\[scheduler\]: unknown key protcted; did you mean protected"),
        (SCHEDULER + "[gui]\nprot = 1\n", r"\[gui\]: unknown key prot; did you mean port"),
        (SCHEDULER + "[native_worker_adapter]\nprot = 1\n", r"unknown key prot; did you mean port"),
        (SCHEDULER + '[symphony_cluster]\nservice_nam = "S"\n', r"unknown key service_nam"),
        (SCHEDULER + "[gui]\nport = 2346\n", r"\[gui\] and the object storage of \[scheduler\] have the same port"),
        ("[scheduler]\n", "missing ADDRESS"),
        ('[scheduler]\naddress = "tcp://127.0.0.1:0"\n', "port 0 is for tests"),
        (SCHEDULER + '[[worker_manager]]\nworker_manager_id = "a"\n', "say which kind"),
        (SCHEDULER + '[[worker_manager]]\ntype = "slrm"\n', "unknown kind"),
        (SCHEDULER + MANAGER.format(id="a") + MANAGER.format(id="a"), "2 have the worker_manager_id 'a'"),
        (SCHEDULER + MANAGER.format(id="a") + "mode = 3\n", "'3' is not one of dynamic, fixed"),
        ("[scheduler\n", "not TOML"),
        (SCHEDULER + "[[cluster]]\n", r"cluster must be one table, \[cluster\]"),
        (SCHEDULER + "worker_manager = 4\n", r"unknown key worker_manager"),
        ("worker_manager = 4\n" + SCHEDULER, r"worker_manager must be tables"),
        ("why = 3\n" + SCHEDULER, r"why must be one table"),
        (SCHEDULER + "[why]\nbogus = 1\n", r"\[why\]: unknown key bogus"),
        (SCHEDULER + "[profile]\nbogus = 1\n", r"\[profile\]: unknown key bogus"),
        (SCHEDULER + "parent_pid = 1\n", r"unknown key parent_pid"),
        ("x = " + "[" * 3000 + "\n", "nested too deeply|not TOML"),
        (SCHEDULER + '[object_storage_server]\naddress = "tcp://127.0.0.1:2347"\n', "have the same port, 2347"),
        (SCHEDULER + "[gui]\nport = 2345\n", "have the same port, 2345"),
        (
            SCHEDULER + 'metrics_address = "127.0.0.1:8081"\n[gui]\nport = 8081\n',
            r"\[gui\] and the metrics of \[scheduler\] have the same port",
        ),
        ("worker_manager = []\n", "no table of a service"),
        (
            SCHEDULER + 'policy_content = "x"\n',
            r"cluster\.toml \[scheduler\]: --policy-content: 'x' is not of the form",
        ),
        ('[scheduler]\naddress = "tcp://127.0.0.1:65534"\n', r"cluster\.toml \[scheduler\]: .* no port 65536"),
        (SCHEDULER + "[gui]\nport = 99999\n", "99999 is more than 65535"),
        (
            SCHEDULER + MANAGER.format(id="a") + MANAGER.format(id="a").replace('worker_manager_id = "a"', ""),
            "has no worker_",
        ),
        (SCHEDULER + MANAGER.format(id="-x"), "'-x' is not an id"),
    ],
)
def test_errors_name_file_table_and_key(file: Path, text: str, fault: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        program.run(["check", str(file)])


def test_ids_may_be_numbers_and_names_of_files_may_begin_with_a_dash(file: Path) -> None:
    file = file.with_name("-m.toml")
    ids = [MANAGER.format(id="x").replace('"x"', number) for number in ("1", "2")]
    file.write_text(SCHEDULER + "".join(ids), "utf-8")
    assert [service.name for service in read_cluster(file).services[1:]] == ["worker manager 1", "worker manager 2"]


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--help"]) == 0 and "scaler init" in capsys.readouterr().out
    assert program.run([]) == 2
    assert program.run(["check", "-h"]) == 0
    with pytest.raises(ValueError, match="did you mean `scaler status`"):
        program.run(["statsu"])
    with pytest.raises(ValueError, match="give one TOML file"):
        program.run(["a", "b"])
    with pytest.raises(ValueError, match="No such file"):
        program.run([str(tmp_path / "missing.toml")])
