"""Every public name of the front door has a docstring; its examples run against one cluster."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import scaler
from scaler import Client
from support.clusters import LocalCluster

NAMES = [name for name in scaler.__all__ if name != "__version__"]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines; of a future those of concurrent.futures."""
    for name, member in vars(kind).items():
        internal = issubclass(kind, Future) and not hasattr(Future, name) and name != "profiling_info"
        if not name.startswith("_") and not internal and (inspect.isroutine(member) or isinstance(member, property)):
            yield f"{kind.__name__}.{name}", member


def documented() -> Iterator[tuple[str, Any]]:
    """All public objects by name."""
    for name in NAMES:
        value = getattr(scaler, name)
        yield name, value
        if isinstance(value, type):
            yield from members(value)


DOCUMENTED = dict(documented())
EXAMPLES = [
    test for name, value in DOCUMENTED.items() for test in doctest.DocTestFinder(recurse=False).find(value, name)
]


def of(*classes: str) -> list[str]:
    """The names of these classes and of their members."""
    return [name for name in DOCUMENTED if name.split(".")[0] in classes]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_it_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(DOCUMENTED[name])
    assert text is not None and len(text.split()) >= 3


@pytest.mark.parametrize("name", of("Client", "SchedulerClusterCombo"))
def test_it_names_its_parameters(name: str) -> None:
    if not callable(value := DOCUMENTED[name]):
        return
    words = set(re.findall(r"\w+", inspect.getdoc(value) or ""))
    assert words.issuperset(inspect.signature(value).parameters.keys() - {"self"})


@pytest.mark.parametrize("name", of("Client", "ObjectReference", "SchedulerClusterCombo"))
def test_it_has_an_example(name: str) -> None:
    assert any(test.name == name and test.examples for test in EXAMPLES)


@pytest.mark.parametrize("test", [test for test in EXAMPLES if test.examples], ids=lambda test: str(test.name))
def test_its_example_runs(test: doctest.DocTest, client: Client, cluster: LocalCluster) -> None:
    names = {name: getattr(scaler, name) for name in NAMES}
    test.globs = {**names, "client": client, "cluster": cluster.combo, "address": cluster.address}
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert failed == 0, "".join(told)
