"""Which workers meet a requirement, and what users are told of the rest."""

from scaler_protocol.capabilities import capabilities
from scaler_protocol.handshake import Hello, Role
from scaler_scheduler.requirements import Requirement, WorkerClass, describe_runtime, runtime_of

PYTHON = ("3.11", "3.1")


def test_a_requirement_names_all_that_workers_lack() -> None:
    requirement = Requirement(capabilities({"gpu": 2, "linux": -1, "ssd": -1}), PYTHON)
    worker_class = WorkerClass(capabilities({"gpu": 1, "ssd": 4}), ("3.12", "3.1"))
    assert requirement.unmet_by(worker_class) == ["gpu=2", "linux", "Python 3.11 with cloudpickle 3.1"]


def test_workers_may_offer_more_than_a_task_requires() -> None:
    worker_class = WorkerClass(capabilities({"gpu": 2, "linux": -1}), PYTHON)
    assert Requirement(capabilities({"gpu": 1}), PYTHON).unmet_by(worker_class) == []
    assert Requirement((), None).unmet_by(worker_class) == []


def test_a_missing_runtime_is_any_python() -> None:
    assert describe_runtime(None) == "any Python"


def test_patch_levels_are_no_part_of_a_runtime() -> None:
    hello = Hello(Role.AGENT, b"agent", 1, python="3.11.9", cloudpickle="3.1.2")
    assert runtime_of(hello) == PYTHON
    assert runtime_of(Hello(Role.AGENT, b"agent", 1)) is None
