"""The rules of the waterfall: which manager is used first, and how far. Pure, no IO."""

from __future__ import annotations

from scaler_protocol.capacity import NO_LIMIT
from scaler_protocol.lazy_dataclass import dataclass

FORM = "priority,worker_manager_id[,max_task_concurrency]"


@dataclass(frozen=True, slots=True)
class Rule:
    """One manager's rule; the lower priority number is used first, equal ones share."""

    priority: int
    manager: str
    maximum: int = NO_LIMIT
    """The most workers that it may have, in addition to its own limit; -1 for no limit."""


def parse_rules(text: str) -> dict[str, Rule]:
    """Read one rule per line, by manager; `#` begins a comment. Raises ValueError naming line, value and remedy."""
    rules: dict[str, Rule] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            rule = _rule(words)
            if rule.manager in rules:
                raise ValueError(f"worker manager {rule.manager!r} has a rule already: leave one of both")
        except ValueError as error:
            raise ValueError(f"line {number}, {words!r}: {error}") from None
        rules[rule.manager] = rule
    if not rules:
        raise ValueError(f"there is no rule: write at least one line of the form {FORM}")
    return rules


def _rule(words: str) -> Rule:
    fields = [field.strip() for field in words.split(",")]
    if len(fields) not in (2, 3):
        raise ValueError(f"{len(fields)} fields: write {FORM}")
    if not fields[1]:
        raise ValueError(f"the worker manager id is empty: write {FORM}")
    priority = _whole_number(fields[0], "priority")
    maximum = _whole_number(fields[2], "max_task_concurrency") if len(fields) == 3 else NO_LIMIT
    if maximum < NO_LIMIT:
        raise ValueError(f"max_task_concurrency {maximum} is negative: write a number of workers, or -1 for no limit")
    return Rule(priority, fields[1], maximum)


def _whole_number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a whole number") from None
