"""What simulated tasks do, written into their calls, so that it travels as real calls do."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b

from scaler_client.core.resubmissions import RESUBMISSION_LIMIT
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Status
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference

BODIES = {function_id(body): body for body in (b"a simulated function", b"another one")}
FUNCTION, OTHER_FUNCTION = BODIES
LOST_RUNS = 3
"""After which the engine gives a task up."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """One task: it submits its children, waits for them, works, and ends; `seconds` of work, counts of first runs."""

    seconds: float = 0.001
    value: str = "v"
    raises: int = 0
    """So many first runs raise."""
    kills_worker: int = 0
    """So many first runs kill their worker, at their end."""
    kills_host: int = 0
    misses: int = 0
    """So many first runs miss an object, whoever asks for them."""
    children: tuple[Plan, ...] = ()
    tells: bool = True
    """Whether the wait for the children is announced; if not, the agent has to guess."""
    waits: bool = True
    """Whether it waits for its children at all."""
    size: int = 0
    """Bytes that the result has beyond its value."""

    def __repr__(self) -> str:
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: value for name, value in told.items() if value != getattr(_PLAIN, name)}
        return f"Plan({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def call(self) -> bytes:
        """The payload of the call."""
        return pickle.dumps(self)

    def fate(self, retries: int = 0) -> int:
        """The status in which it ends if nothing else goes wrong."""
        if max(self.kills_worker, self.kills_host) >= LOST_RUNS:
            return Status.FAILED
        if self.misses > RESUBMISSION_LIMIT:
            return Status.FAILED
        if self.raises > retries:
            return Status.RAISED
        if self.waits and any(child.fate() != Status.VALUE for child in self.children):
            return Status.RAISED
        return Status.VALUE

    def result(self, inputs: Sequence[bytes] = ()) -> bytes:
        """The payload of the result: it tells what it was made of."""
        parts = [*sorted(inputs), *(child.result() for child in self.children if self.waits)]
        return self.value.encode() + b"(" + b",".join(parts) + b")" + b"." * self.size


_PLAIN = Plan()


def plan_of(call: bytes) -> Plan:
    """The plan that a call holds."""
    plan = pickle.loads(call)
    assert isinstance(plan, Plan)
    return plan


class Values:
    """What tasks have made: if it is `stored`, other tasks can take it until object storage ends."""

    def __init__(self, *, stored: bool) -> None:
        self.stored = stored
        self._there: set[bytes] = set()
        self._known: dict[bytes, bytes] = {}

    def add(self, payload: bytes) -> None:
        """It is made, for the first time or again."""
        if self.stored:
            self._there.add(payload)

    def reference(self, payload: bytes) -> bytes:
        """What names it in messages."""
        reference = Reference(blake2b(payload, digest_size=OBJECT_ID_BYTES).digest(), len(payload)).pack()
        self._known[reference] = payload
        return reference

    def find(self, reference: bytes) -> bytes:
        """What is named."""
        return self._known[reference]

    def has(self, payload: bytes) -> bool:
        """Whether it can be taken."""
        return not self.stored or payload in self._there

    def lose(self) -> None:
        """Object storage ends, and another one starts."""
        self._there.clear()

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        """Clients of the World know what they have without it."""
        raise AssertionError("nothing is fetched")

    def free(self, reference: bytes) -> None:
        """It stays."""


@dataclass(slots=True, eq=False)
class Execution:
    """One run of a task, as it really happened."""

    task: int
    run: int
    attempt: int
    host: str
    worker: int
    began: float
    plan: Plan
    ended: float | None = None
    how: str = ""
    """`value`, `raised`, or how it was cut short."""
