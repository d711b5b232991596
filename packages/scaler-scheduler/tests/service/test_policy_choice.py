"""Options become policies, and wrong ones are refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from scaler_scheduler.requirements import Requirement, WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, Offer, ScalingPolicy, Target
from scaler_scheduler.scaling.policies import NoScaling
from scaler_scheduler.service.options import COMMAND
from scaler_scheduler.service.policy_choice import PolicyChoice

DEFAULT = "write allocate=even_load; scaling=vanilla"
SNAPSHOT = CapacitySnapshot(
    demands=(Demand(requirement=Requirement((), None), tasks=10, seconds=120),),
    managers=tuple(Manager(id=name, offers=(Offer(worker_class=WorkerClass((), None)),)) for name in ("a", "b")),
)


def chosen(*words: str) -> PolicyChoice:
    """The policies of a command line."""
    return COMMAND.read(["tcp://127.0.0.1:2345", *words], {}).policies()


def asked(choice: PolicyChoice) -> list[tuple[int, ...] | None]:
    """What the policy asks of both managers."""
    return [target.workers for target in choice.scaling().decide(SNAPSHOT, 0)]


@pytest.mark.parametrize(
    ("words", "allocate", "workers"),
    [
        ([], "even_load", [(5,), (5,)]),
        (["--policy-content", "allocate=even_load; scaling=vanilla"], "even_load", [(5,), (5,)]),
        (["--policy-content", " scaling = capability ;allocate=capability; "], "capability", [(5,), (5,)]),
        (["-et", "simple", "-pc", "allocate=even;scaling=static:3"], "even_load", [(2,), (1,)]),
        (["-pc", "allocate=even_load; scaling=no"], "even_load", [None, None]),
        (["-et", "waterfall_v1", "-pc", "1,a,3\n2,b"], "capability", [(3,), (7,)]),
        (["--allocate-policy", "capability"], "capability", [(5,), (5,)]),
        (["-ap", "even"], "even_load", [(5,), (5,)]),
        (["--scaling-controller-strategy", "null"], "even_load", [None, None]),
        (["--scaling-controller-strategy", "vanilla"], "even_load", [(5,), (5,)]),
        (["--scaling-controller-strategy", "capability"], "even_load", [(5,), (5,)]),
        (["--scaling-controller-strategy", "static:4", "-ap", "capability"], "capability", [(2,), (2,)]),
    ],
)
def test_options_choose_policies(words: list[str], allocate: str, workers: list[tuple[int, ...] | None]) -> None:
    choice = chosen(*words)
    assert (choice.allocate, asked(choice)) == (allocate, workers)


def test_each_scheduler_has_a_policy_of_its_own() -> None:
    choice = chosen()
    assert choice.scaling() is not choice.scaling()


def test_a_file_may_hold_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "scaler.toml"
    file.write_text(
        '[scheduler]\naddress = "tcp://127.0.0.1:2345"\npolicy_engine_type = "waterfall_v1"\n'
        'policy_content = """\n# ours first\n1,a,3\n2,b,2\n"""\nscale_down_cooldown_seconds = 0\n'
    )
    options = COMMAND.read(["--config", str(file)], {})
    policy = options.policies().scaling()
    assert [target.workers for target in policy.decide(SNAPSHOT, 0)] == [(3,), (2,)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-pc", "scaling=vanilla"], f"--policy-content: allocate is missing in 'scaling=vanilla': {DEFAULT}"),
        (["-pc", "allocate=even_load"], f"--policy-content: scaling is missing in 'allocate=even_load': {DEFAULT}"),
        (["-pc", "scaling"], f"--policy-content: 'scaling' is not of the form key=value: {DEFAULT}"),
        (["-pc", "scaling="], f"--policy-content: 'scaling=' is not of the form key=value: {DEFAULT}"),
        (["-pc", "balance=x"], f"--policy-content: there is no key 'balance', only allocate and scaling: {DEFAULT}"),
        (["-pc", "scaling=no;scaling=no"], f"--policy-content: scaling is given twice: {DEFAULT}"),
        (
            ["-pc", "allocate=odd; scaling=no"],
            "--policy-content: allocate: 'odd' is not one of even_load, capability",
        ),
        (
            ["-pc", "allocate=even_load; scaling=fast"],
            "--policy-content: there is no scaling policy 'fast': write one of no, static:N, vanilla, capability;"
            " no plug-in is installed",
        ),
        (
            ["--scaling-controller-strategy", "fast"],
            "--scaling-controller-strategy: there is no scaling policy 'fast': write one of no, static:N, vanilla,"
            " capability; no plug-in is installed",
        ),
        (
            ["-pc", "allocate=even_load; scaling=static"],
            "--policy-content: static: lacks a number of workers: write static:N, like static:4",
        ),
        (
            ["-pc", "allocate=even_load; scaling=static:" + "9" * 5000],
            "--policy-content: static:N has a number of 5,000 digits: write at most 4294967295",
        ),
        (
            ["-pc", "allocate=even_load; scaling=static:4294967296"],
            "--policy-content: static:N has a number of 10 digits: write at most 4294967295",
        ),
        (
            ["-et", "waterfall_v1"],
            "--policy-content: there is no rule: write at least one line of the form"
            " priority,worker_manager_id[,max_task_concurrency]",
        ),
        (
            ["-et", "waterfall_v1", "-pc", "1,a\n1,a"],
            "--policy-content: line 2, '1,a': worker manager 'a' has a rule already: leave one of both",
        ),
        (
            ["-et", "waterfall_v1", "-pc", "1,a", "-ap", "even_load"],
            "--allocate-policy means nothing beside --policy-engine-type waterfall_v1: leave it out",
        ),
        (
            ["-pc", "allocate=even_load; scaling=no", "-ap", "capability"],
            "--allocate-policy: write allocate=capability into --policy-content instead",
        ),
        (
            ["-pc", "allocate=even_load; scaling=no", "--scaling-controller-strategy", "null"],
            "--scaling-controller-strategy: write scaling=no into --policy-content instead",
        ),
    ],
)
def test_a_wrong_option_is_named_with_the_remedy(words: list[str], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        chosen(*words)
    assert str(raised.value) == message


def test_fixed_elastic_is_refused_with_the_rules_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chosen("--scaling-controller-strategy", "fixed_elastic")
    assert "the lines 1,FIXED_ID and 2,ELASTIC_ID" in capsys.readouterr().err


class _Halving:
    """A plug-in: half a worker for each task."""

    def __init__(self, argument: str, cooldown_seconds: float) -> None:
        assert (argument, cooldown_seconds) == ("2", 7)

    def decide(self, snapshot: CapacitySnapshot, now: float) -> list[Target]:
        workers = snapshot.demands[0].tasks // 2
        return [Target(manager.id, (workers,), "half") for manager in snapshot.managers]


def make_halving(argument: str, cooldown_seconds: float) -> ScalingPolicy:
    """The factory that an entry point names."""
    return _Halving(argument, cooldown_seconds)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make plug-ins visible."""

    def do(*values: str) -> None:
        plugins = EntryPoints(EntryPoint("halving", value, "scaler.scaling_policies") for value in values)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **given: plugins.select(**given))

    return do


def test_a_plug_in_is_chosen_by_its_name(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("somewhere:make_halving")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_halving)
    assert asked(chosen("-pc", "allocate=even_load; scaling=halving:2", "-sdc", "7")) == [(5,), (5,)]
    with pytest.raises(ValueError, match=r"'fast': write one of .*, or a plug-in: halving"):
        chosen("-pc", "allocate=even_load; scaling=fast")


def test_a_plug_in_that_can_not_be_loaded_is_named(install: Callable[..., None]) -> None:
    install("nowhere.to.be.found:make")
    with pytest.raises(
        ValueError, match=r"scaling=halving: nowhere.to.be.found:make of an unknown distribution cannot"
    ):
        chosen("-pc", "allocate=even_load; scaling=halving")


def test_a_plug_in_makes_its_policy_before_the_scheduler_runs(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("somewhere:make_halving")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_halving)
    choice = chosen("-pc", "allocate=even_load; scaling=halving:2", "-sdc", "7")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_nothing)
    assert asked(choice) == [(5,), (5,)]


def make_nothing(argument: str, cooldown_seconds: float) -> ScalingPolicy:
    """A factory with a bug."""
    raise KeyError(argument)


def test_a_plug_in_that_makes_no_policy_is_named(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("somewhere:make_nothing")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_nothing)
    with pytest.raises(ValueError, match=r"scaling=halving: somewhere:make_nothing of .* makes no policy: KeyError"):
        chosen("-pc", "allocate=even_load; scaling=halving:x")


def test_a_plug_in_that_is_installed_twice_is_ambiguous(install: Callable[..., None]) -> None:
    install("one:make", "other:make")
    with pytest.raises(ValueError, match=r"scaling=halving is ambiguous: one:make of .* and other:make of .* have it"):
        chosen("-pc", "allocate=even_load; scaling=halving")


def test_a_built_in_policy_is_not_replaced(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: Any = EntryPoints([EntryPoint("no", "somewhere:make", "scaler.scaling_policies")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **given: replaced.select(**given))
    assert isinstance(chosen("-pc", "allocate=even_load; scaling=no").scaling(), NoScaling)
