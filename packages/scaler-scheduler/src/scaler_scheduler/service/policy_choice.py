"""The policies that the options of a scheduler ask for, plug-ins included.

The modules of policies are imported when one is made, because most clusters have no worker manager and make none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from scaler_io.service.options import ALLOCATE_POLICY
from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.scaling.rules import Rule, parse_rules

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from scaler_scheduler.scaling.capacity import ScalingPolicy
    from scaler_scheduler.scaling.policies import PolicyFactory

ENTRY_POINTS: Final = "scaler.scaling_policies"
"""Group of entry points: the name is a policy's, the object a PolicyFactory."""
SIMPLE: Final = "simple"
WATERFALL: Final = "waterfall_v1"
DEFAULT_SCALING: Final = "vanilla"
DEFAULT_CONTENT: Final = f"allocate=even_load; scaling={DEFAULT_SCALING}"
_WORDS: Final = "no, static:N, vanilla, capability"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """How work is balanced, and what makes the policy that scales."""

    allocate: str
    scaling: Callable[[], ScalingPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The options that choose policies; None for those that were not given."""

    engine_type: str
    content: str | None
    allocate: str | None
    strategy: str | None
    cooldown_seconds: float

    def choose(self) -> PolicyChoice:
        """The policies; raises ValueError naming option, value and remedy."""
        self._refuse_contradictions()
        if self.engine_type == WATERFALL:
            with _named("--policy-content"):
                rules = parse_rules(self.content or "")
            return PolicyChoice("capability", partial(_make_waterfall, rules, self.cooldown_seconds))
        with _named("--policy-content"):
            given = _content(self.content or DEFAULT_CONTENT)
        option = "--policy-content" if self.strategy is None else "--scaling-controller-strategy"
        words = self.strategy or given["scaling"]
        allocate = self.allocate or given["allocate"]
        if words == DEFAULT_SCALING:
            return PolicyChoice(allocate, partial(_make, words, self.cooldown_seconds))
        with _named(option):
            policy = _make(words, self.cooldown_seconds)  # now: a wrong one is refused before the scheduler runs
        return PolicyChoice(allocate, lambda: policy)

    def _refuse_contradictions(self) -> None:
        for name, value, key in (
            ("--allocate-policy", self.allocate, "allocate"),
            ("--scaling-controller-strategy", self.strategy, "scaling"),
        ):
            if value is not None and self.engine_type == WATERFALL:
                raise ValueError(f"{name} means nothing beside --policy-engine-type {WATERFALL}: leave it out")
            if value is not None and self.content is not None:
                raise ValueError(f"{name}: write {key}={value} into --policy-content instead")


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Put the option in front of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def strategy(text: str) -> str:
    """The policy that `--scaling-controller-strategy` means; raises ValueError for one that needs more to be said."""
    if text == "fixed_elastic":
        raise ValueError(
            "fixed_elastic needs the ids of the fixed and of the elastic worker manager: write "
            f"--policy-engine-type {WATERFALL}, and in --policy-content the lines 1,FIXED_ID and 2,ELASTIC_ID"
        )
    return "no" if text == "null" else text


def _content(text: str) -> dict[str, str]:
    """The values of `allocate` and `scaling`."""
    form = f"write {DEFAULT_CONTENT}"
    found: dict[str, str] = {}
    for item in text.split(";"):
        key, equals, value = (word.strip() for word in item.partition("="))
        if not key and not equals:
            continue
        if not equals or not value:
            raise ValueError(f"{item.strip()!r} is not of the form key=value: {form}")
        if key not in ("allocate", "scaling"):
            raise ValueError(f"there is no key {key!r}, only allocate and scaling: {form}")
        if key in found:
            raise ValueError(f"{key} is given twice: {form}")
        found[key] = value
    for key in ("allocate", "scaling"):
        if key not in found:
            raise ValueError(f"{key} is missing in {text!r}: {form}")
    with _named("allocate"):
        found["allocate"] = ALLOCATE_POLICY(found["allocate"])
    return found


def _make(words: str, cooldown_seconds: float) -> ScalingPolicy:
    """The policy `name` or `name:argument`; raises ValueError if there is none."""
    from scaler_scheduler.scaling.policies import POLICIES

    name, _, argument = words.partition(":")
    return (POLICIES.get(name) or _plugin(name))(argument, cooldown_seconds)


def _make_waterfall(rules: Mapping[str, Rule], cooldown_seconds: float) -> ScalingPolicy:
    from scaler_scheduler.scaling.policies import waterfall

    return waterfall(rules, cooldown_seconds)


def _plugin(name: str) -> PolicyFactory:
    """The factory of the policy with this name; raises ValueError if no plug-in has it."""
    from importlib.metadata import entry_points

    plugins = entry_points(group=ENTRY_POINTS)
    found = [plugin for plugin in plugins if plugin.name == name]
    if not found:
        others = sorted({plugin.name for plugin in plugins})
        known = f"{_WORDS}, or a plug-in: {', '.join(others)}" if others else f"{_WORDS}; no plug-in is installed"
        raise ValueError(f"there is no scaling policy {name!r}: write one of {known}")
    if len(found) > 1:
        raise ValueError(f"scaling={name} is ambiguous: {' and '.join(map(_origin, found))} have it; uninstall one")
    return _guarded(found[0])


def _guarded(plugin: EntryPoint) -> PolicyFactory:
    try:
        make: PolicyFactory = plugin.load()
    except Exception as error:
        raise ValueError(f"scaling={plugin.name}: {_origin(plugin)} cannot be loaded: {error!r}") from error

    from scaler_scheduler.service.guarded_policy import GuardedPolicy

    def guarded(argument: str, cooldown_seconds: float) -> ScalingPolicy:
        try:
            policy = make(argument, cooldown_seconds)
        except Exception as error:
            raise ValueError(f"scaling={plugin.name}: {_origin(plugin)} makes no policy: {error!r}") from error
        return GuardedPolicy(plugin.name, policy)

    return guarded


def _origin(plugin: EntryPoint) -> str:
    distribution = plugin.dist.name if plugin.dist else "an unknown distribution"
    return f"{plugin.value} of {distribution}"
