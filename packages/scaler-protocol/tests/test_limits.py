"""Limits: what is within them comes back, what is not is refused at both ends, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_protocol import limits
from scaler_protocol.byte_planes import to_planes
from scaler_protocol.capabilities import capabilities
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import CapabilityError, InvalidFieldError, MalformedMessageError, ScalerError
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.messages import (
    MESSAGE_GROUPS,
    MESSAGE_IDS,
    Cancel,
    Done,
    Functions,
    Group,
    Inputs,
    Message,
    NeedFunctions,
    Reconcile,
    Run,
    Submit,
)
from scaler_protocol.monitoring import TaskEvents
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import LONGEST_RUN_US, Profile
from scaler_protocol.ranges import Anything, Column, Planes, Profiles, Real, Text
from scaler_protocol.storage import PutObject
from support.examples import examples

if TYPE_CHECKING:
    from conftest import Wire

FEW = settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = sorted(get_args(Message), key=lambda kind: str(kind.__name__))
ID = b"f" * 16
TWO = Done([5, 6], [0, 0], Payloads([b"", b""]))
ENDLESS = Profile(LONGEST_RUN_US + 1, 0, 0, 1, 0, 1).packed()
GROUP = Group(ID)


def wrong_values(wire: Wire, kind: type[Any], *, carried: bool) -> dict[str, st.SearchStrategy[Any]]:
    """Values out of the limit of each field, or entries of each column; only such as the wire can carry, if asked."""
    found = {}
    for field, limit in wire.limits_of(kind).items():
        element = wire.schema_types(kind)[field][0]
        each = limit.each if isinstance(limit, Column) else limit
        if isinstance(each, Anything) or (element == "payloads" and not carried):
            continue
        refused = wire.refused(each, element)
        strategies = [refused] if refused is not None else []
        if strategies or not carried:
            found[field] = st.one_of(*strategies) if carried else st.one_of(*strategies, wire.foreign(each))
    return found


def with_wrong(wire: Wire, kind: type[Any], field: str, value: Any) -> Any:
    """A message whose one field is out of its limit."""
    if isinstance(wire.limits_of(kind)[field], Column):
        value = Payloads([value]) if wire.schema_types(kind)[field][0] == "payloads" else (value,)
    return replace(wire.smallest_of(kind), **{field: value})


@pytest.mark.parametrize("kind", [*KINDS, Group])
@FEW
@given(data=st.data())
def test_what_is_out_of_limits_is_not_written(wire: Wire, kind: type[Any], data: st.DataObject) -> None:
    for field, values in wrong_values(wire, kind, carried=False).items():
        message = with_wrong(wire, kind, field, data.draw(values))
        with pytest.raises(InvalidFieldError, match=rf"^{kind.__name__}\.{field}\W") as caught:
            encode(Submit([message], [1], Payloads([b""])) if kind is Group else message)
        assert caught.value.details == {"field": f"{kind.__name__}.{field}"}


@pytest.mark.parametrize("kind", [*KINDS, Group])
@FEW
@given(data=st.data())
def test_what_is_out_of_limits_is_not_read(wire: Wire, kind: type[Any], data: st.DataObject) -> None:
    for field, values in wrong_values(wire, kind, carried=True).items():
        message = with_wrong(wire, kind, field, data.draw(values))
        frames = wire.unchecked(Submit([message], [1], Payloads([b""])) if kind is Group else message)
        with pytest.raises(MalformedMessageError, match=rf"^{kind.__name__}\.{field}\W") as caught:
            decode(frames)
        assert caught.value.details == {"field": f"{kind.__name__}.{field}"}


SUBMIT = Submit([GROUP], [5, 6], Payloads([b"a", b"b"]))
CONTRADICTIONS: list[tuple[Message, str]] = [
    (replace(SUBMIT, tasks=[5, 5]), "Submit.tasks holds 5 more than once"),
    (replace(SUBMIT, groups=[]), "Submit.tasks is not empty, but groups is"),
    (replace(SUBMIT, task_groups=[0, 1]), "Submit.task_groups names position 1 of groups, which has 1 entries"),
    (replace(SUBMIT, stored=[2]), "Submit.stored names position 2"),
    (replace(SUBMIT, dependents=[7], needs=[1]), "Submit.dependents names position 7"),
    (replace(SUBMIT, dependents=[0], needs=[5]), "Submit.needs names task 0x5, which is not before task 0x5"),
    (
        replace(SUBMIT, dependents=[0, 1], needs=[6, 5], graph=5, graph_size=2),
        "Submit.needs names task 0x6, which is not before task 0x5",
    ),
    (replace(SUBMIT, intermediate=[9]), "Submit.intermediate names position 9"),
    (replace(SUBMIT, bodies_stored=[0]), "Submit.bodies_stored names position 0"),
    (Run(1, [GROUP], [5], Payloads([b""]), task_groups=[1]), "Run.task_groups names position 1"),
    (Run(1, [GROUP], [5], Payloads([b""]), inputs_stored=[0]), "Run.inputs_stored names position 0"),
    (Run(1, [GROUP], [5], Payloads([b""]), inputs_awaited=[0]), "Run.inputs_awaited names position 0"),
    (Done([5], [0], Payloads([b""]), stored=[1]), "Done.stored names position 1"),
    (Done([5], [0], Payloads([b""]), profiles=bytes(31)), "Done.profiles has 31 bytes, not 44 for each of 1 tasks"),
    (Done([5], [0], Payloads([b""]), profiles=ENDLESS), "Done.profiles has a run of more than 72,057,594,037,927,935"),
    (replace(TWO, agents=["a"], agent_ends=[1, 2]), "Done.agent_ends has 2 entries, agents 1"),
    (replace(TWO, agents=["a", "b"], agent_ends=[1, 3]), "Done.agent_ends does not increase from 1 or more to the 2 e"),
    (replace(TWO, agents=["a", "b"], agent_ends=[0, 2]), "Done.agent_ends does not increase from 1 or more to the 2 e"),
    (replace(TWO, agents=["a", "b"], agent_ends=[2, 2]), "Done.agent_ends does not increase from 1 or more to the 2 e"),
    (Functions([ID], ["f"], Payloads([b""]), bodies_stored=[1]), "Functions.bodies_stored names position 1"),
    (Inputs([5], [6], [0], Payloads([b""]), stored=[3]), "Inputs.stored names position 3"),
    (TaskEvents(tasks=bytes(4)), "TaskEvents.tasks has 4 bytes, too few for planes of records of 8 bytes"),
    (TaskEvents(tasks=bytes(30)), "TaskEvents.tasks begins with 0000000000, which is not the head of 1 to 16,777,216"),
    (TaskEvents(tasks=to_planes(bytes(16), 8)[:-1]), "TaskEvents.tasks has 12 bytes, not 13 for 2 records"),
]


@pytest.mark.parametrize(("message", "fault"), CONTRADICTIONS, ids=[fault for _, fault in CONTRADICTIONS])
def test_columns_that_contradict_each_other_are_not_read(wire: Wire, message: Message, fault: str) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        decode(wire.unchecked(message))
    assert str(caught.value).startswith(fault)


def test_a_call_may_need_a_task_with_a_higher_id(wire: Wire) -> None:
    """Blocks of ids are given out from the end of a session's."""
    message = replace(SUBMIT, dependents=[0, 1], needs=[2**32 - 1, 5], graph=5, graph_size=2)
    assert decode(wire.unchecked(message)) and decode(wire.unchecked(replace(message, graph=0, graph_size=0)))


def test_columns_have_so_many_entries(wire: Wire) -> None:
    part = bytes(10)
    twice = PutObject(ID, 20, Payloads([part, part]))
    with pytest.raises(InvalidFieldError, match=r"PutObject\.parts has 2 entries, at most 1 are allowed"):
        encode(twice)
    with pytest.raises(MalformedMessageError, match=r"PutObject\.parts has 2 entries, at most 1 are allowed"):
        decode(wire.unchecked(twice))
    many = Group(ID, tuple(f"c{i}" for i in range(257)), (1,) * 257)
    with pytest.raises(InvalidFieldError, match=r"Group\.capability_names has 257 entries, at most 256"):
        encode(Submit([many], [1], Payloads([b""])))


def test_the_table_names_fields_that_are_there(wire: Wire) -> None:
    kinds = {kind.__name__: kind for kind in (*KINDS, Group)}
    for name, fields in limits.FIELDS.items():
        types = wire.schema_types(kinds[name])
        assert fields.keys() <= types.keys(), name
        for field, limit in fields.items():
            assert isinstance(limit, Column) == types[field][1], f"{name}.{field}"
    for name, relations in limits.RELATIONS.items():
        for relation in relations:
            assert wire.schema_types(kinds[name])[relation.column][1] or isinstance(relation, Profiles | Planes)


def test_callers_are_told_what_is_wrong() -> None:
    assert not limits.PRIORITY.fault(np.int64(3)) and not limits.SECONDS.fault(np.float32(3))
    assert limits.PRIORITY.fault(0.5) == "is 0.5, not a whole number from -2,147,483,648 to 2,147,483,647"
    assert limits.RETRIES.fault(-1) == "is -1, not a whole number from 0 to 65,535"
    assert limits.SECONDS.fault(float("nan")) == "is nan, not a number from 0 to 1,000,000,000"
    assert limits.SECONDS.fault(2**2000).endswith("not a number from 0 to 1,000,000,000")
    assert "surrogate" in limits.NAME.fault("\udc80")
    assert "of 70,000 bytes, not a text of at most 4,096 bytes" in limits.NAME.fault("n" * 70_000)
    assert limits.CAPABILITY_NAME.fault("") == (
        "is '' of 0 bytes, not a text of 1 to 256 bytes of UTF-8, printable, without = ,"
    )

    class Wild:
        def __repr__(self) -> str:
            raise OSError

    assert limits.PRIORITY.fault(Wild()).startswith("is <Wild")


@given(text=st.text(max_size=40), most=st.integers(3, 60))
def test_texts_for_people_are_made_to_fit(text: str, most: int) -> None:
    limit = Text(most)
    short = limits.shortened(text + "\udc80", limit)
    assert not limit.fault(short)
    if len((text + "\\udc80").encode()) <= most:
        assert short == text.encode(errors="backslashreplace").decode() + "\\udc80"


@pytest.mark.parametrize("name", ["x=y", "a,b", " gpu", "gpu\n", "gpu\x1b[2J", "\u202egpu", "g" * 257])
def test_names_of_capabilities_that_monitors_could_not_read_are_refused(name: str) -> None:
    assert name[:5].strip().encode("unicode_escape").decode() in limits.CAPABILITY_NAME.fault(name)
    with pytest.raises(InvalidFieldError, match=r"Group\.capability_names \[0\] is"):
        encode(Submit([Group(ID, (name,), (1,))], [1], Payloads([b""])))
    with pytest.raises(InvalidFieldError, match=r"Hello\.capability_names \[0\] is"):
        encode(Hello(Role.AGENT, ID, 1, capability_names=(name,), capability_values=(1,)))
    with pytest.raises(CapabilityError, match="the name of a capability is"):
        capabilities({name: 1})


@pytest.mark.parametrize("function", [b"", b"abc", b"f" * 17])
def test_function_ids_of_another_length_are_refused_at_the_door(wire: Wire, function: bytes) -> None:
    submit = Submit([Group(ID)], [1], Payloads([b""]), functions=[function], names=["n"], bodies=Payloads([b"b"]))
    with pytest.raises(MalformedMessageError, match=r"Submit\.functions"):
        decode(wire.unchecked(submit))
    with pytest.raises(MalformedMessageError, match=r"NeedFunctions\.functions"):
        decode(wire.unchecked(NeedFunctions([function])))
    with pytest.raises(InvalidFieldError, match=r"Group\.function is"):
        encode(Submit([Group(function)], [1], Payloads([b""])))


def test_a_name_of_20_megabytes_is_refused_at_the_door(wire: Wire) -> None:
    hello = Hello(Role.CLIENT, ID, 1, name="n" * 20_000_000)
    with pytest.raises(MalformedMessageError, match=r"Hello\.name is 'n.*of 20,000,000 bytes, not a text of at most"):
        decode(wire.unchecked(hello))


def test_a_reference_names_a_size_that_a_file_can_have() -> None:
    assert Reference.unpack(Reference(ID, 2**63 - 1).pack()).size == 2**63 - 1
    with pytest.raises(MalformedMessageError, match="the size of a reference is 9223372036854775808, not"):
        Reference.unpack(Reference(ID, 2**63).pack())


def test_the_error_is_a_value_error() -> None:
    assert issubclass(InvalidFieldError, ScalerError) and issubclass(InvalidFieldError, ValueError)


@pytest.mark.parametrize(
    "message",
    [
        Submit([GROUP] * (MESSAGE_GROUPS + 1), [1], Payloads([b""])),
        Submit([GROUP], range(MESSAGE_IDS + 1), Payloads([b""] * (MESSAGE_IDS + 1))),
        Cancel(range(MESSAGE_IDS + 1)),
        Reconcile(wanted=range(MESSAGE_IDS + 1)),
        Functions([ID] * (limits.DEFINED + 1), ["n"] * (limits.DEFINED + 1), Payloads([b""] * (limits.DEFINED + 1))),
    ],
    ids=["groups", "tasks", "cancelled", "wanted", "functions"],
)
def test_what_would_take_the_scheduler_long_in_one_message_is_refused(wire: Wire, message: Message) -> None:
    with pytest.raises(InvalidFieldError, match="entries, at most"):
        encode(message)
    with pytest.raises(MalformedMessageError, match="entries, at most"):
        decode(wire.unchecked(message))


@pytest.mark.parametrize("limit", [Real(), Real(0.0, 1e9)])
@given(column=st.lists(st.floats() | st.sampled_from([1e308, -1e308, 0.0, 1e9, 10**400]), min_size=1))
def test_columns_of_numbers_fit_if_each_of_them_does(limit: Real, column: list[float]) -> None:
    assert limit.all_fit(column) == all(map(limit.fits, column))
