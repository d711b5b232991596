"""The conformance vectors are what our codec writes and reads; clients in other languages test theirs on the file."""

from __future__ import annotations

import json
import runpy

from scaler_protocol import schema
from support.documents import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "conformance.py"))
LINKS = runpy.run_path(str(ROOT / "tools" / "link_vectors.py"))
SERVICES = runpy.run_path(str(ROOT / "tools" / "service_vectors.py"))
VECTORS = TOOL["VECTORS"].read_text("utf-8")


def test_they_are_those_of_this_code() -> None:
    assert TOOL["text"]() == VECTORS, "run `make api`"


def test_every_message_is_there_and_every_field_has_a_value_somewhere() -> None:
    found: dict[str, set[str]] = {}
    for vector in json.loads(VECTORS)["messages"]:
        found.setdefault(vector["type"], set()).update(name for name, value in vector["fields"].items() if value)
    assert list(found) == list(schema.union())
    fields = {name: {each.name.removesuffix("Lengths") for each in schema.struct(name).fields} for name in found}
    missing = {name: sorted(fields[name] - found[name]) for name in found if fields[name] - found[name]}
    assert missing == {}


def test_links_do_what_the_vectors_say() -> None:
    assert LINKS["text"]() == LINKS["VECTORS"].read_text("utf-8"), "run `make api`"


def test_services_do_what_the_vectors_say() -> None:
    assert SERVICES["text"]() == SERVICES["VECTORS"].read_text("utf-8"), "run `make api`"
