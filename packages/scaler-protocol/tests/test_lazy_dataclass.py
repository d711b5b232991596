"""Classes of the lazy `dataclass` behave as those of `dataclasses.dataclass`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from scaler_protocol import lazy_dataclass
from scaler_protocol.messages import Group

lazy: Callable[..., Any] = lazy_dataclass.dataclass
eager: Callable[..., Any] = dataclasses.dataclass
PARAMETERS = [{"frozen": frozen, "slots": slots, "eq": eq} for frozen in (0, 1) for slots in (0, 1) for eq in (0, 1)]


def _class(make: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    class Point:
        """A class with every kind of field."""

        kind: ClassVar[str] = "point"
        x: int
        y: int = 2
        seen: list[int] = dataclasses.field(default_factory=list, compare=False)
        made: list[int] = dataclasses.field(init=False, default_factory=list, repr=False)
        fixed: int = dataclasses.field(init=False, default=7)
        name: str = dataclasses.field(default="", kw_only=True)

        def __post_init__(self) -> None:
            self.made.append(self.x)

    return make(**parameters)(Point)


def _tried(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


def _shown(Point: Any) -> list[Any]:
    point = Point(1, name="a")
    return [
        repr(point),
        point == Point(1, seen=[5], name="a"),
        point == Point(1, 3, name="a"),
        point == "a",
        _tried(lambda: len({Point(1), Point(1)})),
        dataclasses.asdict(point),
        repr(dataclasses.replace(point, y=4)),
        copy.copy(point).seen is point.seen,
        repr(copy.deepcopy(point)),
        _tried(Point),
        _tried(lambda: Point(1, 2, [], "b")),
        _tried(lambda: Point(1, z=1)),
        _tried(lambda: setattr(point, "x", 5)),
        _tried(lambda: delattr(point, "x")),
        point.kind,
        Point.__match_args__,
    ]


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_instances_are_those_of_the_standard_library(parameters: dict[str, Any]) -> None:
    assert _shown(_class(lazy, parameters)) == _shown(_class(eager, parameters))


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_methods_of_the_class_are_kept(parameters: dict[str, Any]) -> None:
    class Own:
        """It has its own methods."""

        x: int

        def __init__(self, y: int) -> None:
            object.__setattr__(self, "x", y + 1)

        def __repr__(self) -> str:
            return f"own {self.x}"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    found = lazy(**parameters)(Own)
    assert (repr(found(1)), found(1) == found(2), hash(found(1))) == ("own 2", True, 7)


def test_fields_are_inherited_and_subclasses_need_no_decorator() -> None:
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Base:
        """It has a slot."""

        x: int

    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Derived(Base):
        """It has two."""

        y: int = 0

    class Plain(Derived):
        """It has no fields of its own."""

    assert repr(Plain(1, y=2)).endswith("Plain(x=1, y=2)")
    assert Plain(1) == Plain(1) and Plain(1) != Derived(1) and hash(Plain(1)) == hash(Derived(1))
    assert (Base(3).x, Derived(3, 4).y) == (3, 4)


def test_a_method_is_compiled_once() -> None:
    Point = _class(lazy, {"frozen": True, "slots": True})
    before = Point.__init__
    Point(1)
    compiled = Point.__init__
    Point(2)
    assert before is not compiled and Point.__init__ is compiled
    assert compiled.__qualname__.endswith("Point.__init__")


def test_a_message_can_be_pickled() -> None:
    group = Group(b"f" * 16, ("gpu",), (1,))
    assert pickle.loads(pickle.dumps(group)) == group


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_fields_are_made_when_they_are_first_read(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noting(**parameters: Any) -> Callable[[Any], Any]:
        def note(cls: Any) -> Any:
            made.append(cls.__name__)
            return dataclasses.dataclass(**parameters)(cls)

        return note

    monkeypatch.setattr(lazy_dataclass, "_with_fields", noting)
    Point = _class(lazy, parameters)
    assert Point.kind == "point" and made == []
    point = Point(1)
    assert [field.name for field in dataclasses.fields(Point)] == [*Point.__match_args__, "made", "fixed", "name"]
    assert dataclasses.is_dataclass(point) and made == ["Point"]


def test_a_class_of_the_standard_library_inherits_the_fields() -> None:
    @lazy_dataclass.dataclass(slots=True)
    class Base:
        """It has a slot."""

        x: int

    @dataclasses.dataclass
    class Derived(Base):
        """It has a field without one."""

        y: int = 1

    assert repr(Derived(1)).endswith("Derived(x=1, y=1)") and Derived.__match_args__ == ("x", "y")
