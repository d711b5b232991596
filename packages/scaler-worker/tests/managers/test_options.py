"""What managers have in common: ids, sizes, and the command line of their units."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers import native
from scaler_worker.managers.native import NativeOptions

WORDS = ["tcp://127.0.0.1:2345", "--worker-manager-id", "grid"]


def options(*words: str) -> NativeOptions:
    return native.COMMAND.read([*WORDS, *words], {})


def test_a_unit_is_given_what_the_manager_was_given() -> None:
    given = options(
        "-wpu", "3", "-mtc", "9", "-pwc", "gpu=1,linux", "-wtqs", "7", "-dts", "9.5", "--preload", "a:b",
        "-wsa", "tcp://10.0.0.1:2345", "-osa", "tcp://10.0.0.1:2346", "-hc", "license=2",
        "--allow-functions", "math:*", "--allow-functions", "json:dumps",
    )  # fmt: skip
    unit = CLUSTER.read(given.unit_words("grid-1"), {})
    assert (str(unit.address), unit.num_of_workers, unit.worker_manager_id, unit.unit_id) == (
        "tcp://10.0.0.1:2345", 3, "grid", "grid-1",
    )  # fmt: skip
    assert unit.per_worker_capabilities == {"gpu": 1, "linux": -1}
    assert unit.host_capabilities == {"license": 2}
    assert (unit.per_worker_task_queue_size, unit.death_timeout_seconds, unit.preload) == (7, 9.5, "a:b")
    assert str(unit.object_storage_address) == "tcp://10.0.0.1:2346"
    assert unit.allow_functions == ("math:*", "json:dumps")


@pytest.mark.parametrize(("gpus", "quantity"), [("auto", 3), ("0,1", 2), ("0,1,2,3", 3)])
def test_an_offer_says_what_a_unit_has_a_quantity_of(gpus: str, quantity: int) -> None:
    given = options("-wpu", "3", "-mtc", "3", "-pwc", "linux", "-hc", "license=2", "--gpus", gpus)
    assert CLUSTER.read(given.unit_words("grid-1"), {}).gpus == tuple(gpus.split(","))
    [offer] = given.manager_config("test", poll_seconds=1.0).offers
    assert offer.capabilities == "gpu=1,license=2,linux" and offer.quantities == f"gpu={quantity},license=2"


def test_units_of_this_host_log_where_and_as_the_manager_does_and_units_elsewhere_as_it_does() -> None:
    given = options("-lp", "-", "grid.log", "-ll", "ERROR", "-lf", "json", "-el", "uvloop", "-lcf", "log.ini")
    here = CLUSTER.read([*given.unit_words("grid-1"), *given.log_words()], {})
    assert (here.logging_paths, here.logging_config_file) == (("-", "grid.log"), "log.ini")
    there = CLUSTER.read(given.unit_words("grid-1"), {})
    assert (there.logging_paths, there.logging_config_file) == (("/dev/stdout",), None)
    for unit in (here, there):
        assert (unit.logging_level, unit.log_format, unit.event_loop) == ("ERROR", "json", "uvloop")


def test_defaults_are_not_repeated() -> None:
    assert options().log_words() == []
    assert options().unit_words("") == ["tcp://127.0.0.1:2345", "--num-of-workers", "1"]


def test_every_life_of_a_manager_names_its_units_anew() -> None:
    configs = [options("-mtc", "-1").manager_config("test", poll_seconds=1.0) for _ in range(2)]
    assert configs[0].prefix != configs[1].prefix and configs[0].prefix.startswith("grid-")
    assert configs[0].maximum == -1 and configs[0].offers[0].unit_size == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-wmi", "a b"], "'a b' is not an id"),
        (["-wmi", ""], "'' is not an id"),
        (["-wpu", "4", "-mtc", "2"], "--workers-per-unit 4 is more than --max-task-concurrency 2"),
        (["-pwc", "license", "-hc", "license=2"], "license is in --per-worker-capabilities, too"),
        (["-mtc", "2", "--gpus", "auto"], "each unit on this host would give its workers the same GPUs"),
        (["-mtc", str(2**31)], "2147483648 is more than 2147483647"),
        (["--mode", "elastic"], "'elastic' is not one of dynamic, fixed"),
        (["--mode", "fixed", "-mtc", "-1"], "--mode fixed starts --max-task-concurrency workers, and -1 is no number"),
        (["--leave-units"], "--leave-units: units are processes of this host, which end with the program"),
    ],
)
def test_errors_name_value_and_remedy(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*words)
    assert ended.value.code == 2 and fault in capsys.readouterr().err


def test_a_file_may_describe_several_managers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    entry = '[[worker_manager]]\ntype = "baremetal_native"\nscheduler_address = "tcp://h:1"\nworker_manager_id = "a"\n'
    file.write_text(f'[[worker_manager]]\ntype = "slurm"\npartition = "x"\n{entry}')
    read = native.COMMAND.read(["-c", str(file)], {})
    assert (read.worker_manager_id, str(read.address)) == ("a", "tcp://h:1")
    for text, number in ((entry + entry, "2 tables"), ('[[worker_manager]]\ntype = "slurm"\n', "no table")):
        file.write_text(text)
        with pytest.raises(SystemExit):
            native.COMMAND.read(["-c", str(file)], {})
        assert f'{number} [[worker_manager]] with type = "baremetal_native"' in capsys.readouterr().err
