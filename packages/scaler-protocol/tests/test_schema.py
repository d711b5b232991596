"""The layout of structs, compared with pycapnp's."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from scaler_protocol import schema
from scaler_protocol.messages import Group, Message

if TYPE_CHECKING:
    from conftest import Wire


@pytest.mark.parametrize("name", [kind.__name__ for kind in (*get_args(Message), Group)])
def test_every_field_is_where_cap_n_proto_puts_it(wire: Wire, name: str) -> None:
    found = schema.struct(name)
    words, pointers, places = wire.layout_of(name)
    assert (found.words, found.pointers) == (words, pointers)
    assert {field.name: field.place for field in found.fields} == places


@pytest.mark.parametrize("name", [kind.__name__ for kind in (*get_args(Message), Group)])
def test_every_field_has_its_type(wire: Wire, name: str) -> None:
    kinds = {kind.__name__: kind for kind in (*get_args(Message), Group)}
    fields = {field.attribute: (field.kind, field.is_list) for field in schema.struct(name).fields}
    assert fields == wire.schema_types(kinds[name])


def test_the_union_has_the_numbers_of_cap_n_proto(wire: Wire) -> None:
    assert [name[0].lower() + name[1:] for name in schema.union()] == wire.union()
