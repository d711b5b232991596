"""Write docs/api.md, the reference of the public Python API, from signatures and docstrings: `make api`."""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scaler import Client, ObjectReference, ScalerFuture, SchedulerClusterCombo, Serializer, current_task
from scaler_client.api.client_session import ClientSession
from scaler_client.api.connected_workers import ConnectedWorkers, WorkerHost
from scaler_client.api.executor import ClientExecutor
from scaler_client.api.optioned_calls import OptionedCalls
from scaler_client.dask import dask_scheduler
from scaler_client.futures.results import ProfilingInfo
from scaler_client.task_context import CurrentTask

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
GUIDES: dict[Any, str] = {
    Client: "client.md",
    ScalerFuture: "client.md#futures",
    ObjectReference: "client.md#objects",
    Serializer: "client.md#a-serializer-of-your-own",
    current_task: "client.md#calls-inside-calls",
    SchedulerClusterCombo: "cluster.md",
    ClientSession: "sessions.md",
    ConnectedWorkers: "client.md#workers",
    WorkerHost: "client.md#workers",
    ClientExecutor: "client.md#as-an-executor",
    OptionedCalls: "client.md#many-calls",
    ProfilingInfo: "client.md#futures",
    CurrentTask: "client.md#calls-inside-calls",
    dask_scheduler: "graphs.md#dask",
}
"""The public classes and functions, and where the guides explain them."""
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
ENTRY = re.compile(r"^    (\w[\w.]*(?:, \w[\w.]*)*): (.*(?:\n     .*)*)", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?:    .*\n?)+)", re.MULTILINE)
HEAD = """# API reference

This page is generated from the docstrings by `make api`; `help(Client.submit)` shows the same. [client.md](client.md)
explains how to use the client. Import `Client` to `SchedulerClusterCombo` from `scaler`, and `dask_scheduler` from
`scaler_client.dask`; calls return the other classes. The errors are in `scaler_protocol.errors`, and
[a table](client.md#errors) says when they are raised.

The examples run with a connected `client`; `cluster` is its local cluster, and `address` the address of that.
"""


class Described:
    """A docstring in parts: prose, tables by title, example."""

    def __init__(self, text: str) -> None:
        prose, self.example = [], ""
        for part in doctest.DocTestParser().parse(text):
            if isinstance(part, str):
                prose.append(part)
            else:
                first, *others = part.source.rstrip("\n").split("\n")
                lines = [f">>> {first}", *(f"... {line}".rstrip() for line in others)]
                self.example += "\n".join(lines) + f"\n{part.want}"
        rest = "".join(prose)
        self.tables = {title: entries(body) for title, body in SECTION.findall(rest)}
        self.prose = re.sub(r"\n{3,}", "\n\n", SECTION.sub("", rest)).strip()

    @property
    def summary(self) -> str:
        """The first sentence."""
        first = self.prose.partition("\n\n")[0].replace("\n", " ")
        return re.split(r"(?<=[a-z`)])[.] ", first)[0].rstrip(".")


def entries(body: str) -> dict[str, str]:
    """The entries of a section: a name, or several with the same meaning, and their text in one line."""
    return {names: " ".join(text.split()) for names, text in ENTRY.findall(body)}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The documented methods and properties of a class, in the order of the source; those of our bases come first."""
    ours = [base for base in kind.__mro__[1:] if base.__module__.startswith("scaler_")]
    for base in (*ours, kind):
        for name, member in vars(base).items():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                yield name, member.__func__ if isinstance(member, staticmethod) else member


def cell(text: str) -> str:
    """Text in a table."""
    return text.replace("|", "\\|")


def parameters(value: Callable[..., Any], described: dict[str, str]) -> Iterator[str]:
    """The rows of a table of parameters, with types and defaults of the signature."""
    known = inspect.signature(value).parameters
    for names, meaning in described.items():
        for name in names.split(", "):
            kind, default = known[name].annotation, known[name].default
            shown = "" if default is inspect.Parameter.empty else getattr(default, "__name__", repr(default))
            stars = STARS.get(known[name].kind, "")
            yield f"| `{stars}{name}` | `{cell(str(kind))}` | {shown and f'`{shown}`'} | {cell(meaning)} |"


def section(heading: str, value: Any) -> Iterator[str]:
    """What the page says about one class, method, property or function."""
    described = Described(inspect.getdoc(value) or "")
    yield f"\n{heading}\n\n{described.prose}\n"
    if args := described.tables.get("Args"):
        yield (
            "| parameter | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(parameters(value, args)) + "\n"
        )
    if attributes := described.tables.get("Attributes"):
        kinds = inspect.get_annotations(value)
        rows = "\n".join(f"| `{name}` | `{kinds[name]}` | {cell(meaning)} |" for name, meaning in attributes.items())
        yield f"| attribute | type | meaning |\n|---|---|---|\n{rows}\n"
    if returns := returned(value):
        yield f"Returns `{returns}`.\n"
    if errors := described.tables.get("Raises"):
        rows = "\n".join(f"| `{name.replace(', ', '`, `')}` | {cell(when)} |" for name, when in errors.items())
        yield f"| raises | when |\n|---|---|\n{rows}\n"
    if described.example:
        yield f"```pycon\n{described.example}```\n"


def returned(value: Any) -> str:
    """The type of what a method or function returns, or of the value of a property; empty if there is none."""
    if isinstance(value, type):
        return ""
    function: Any = value.fget if isinstance(value, property) else value
    found = inspect.signature(function).return_annotation
    return "" if found == "None" else str(found)


def signature(value: Any) -> str:
    """The parameters of a method in short: those without a default, and dots for others."""
    if isinstance(value, property):
        return ""
    shown = []
    for name, parameter in inspect.signature(value).parameters.items():
        if stars := STARS.get(parameter.kind):
            shown.append(f"{stars}{name}")
        elif parameter.default is not inspect.Parameter.empty:
            shown.append("…")
            break
        elif name != "self":
            shown.append(name)
    return f"({', '.join(shown)})"


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page() -> str:
    """docs/api.md."""
    index: list[str] = []
    details: list[str] = []
    for value, guide in GUIDES.items():
        name, summary = value.__name__, Described(inspect.getdoc(value) or "").summary
        heading = f"{'class' if isinstance(value, type) else 'function'} {name}"
        index.append(f"| [`{name}`](#{anchor(heading)}) | {cell(summary)} | [{guide.partition('#')[0]}]({guide}) |")
        details += section(f"## {heading}", value)
        if not isinstance(value, type):
            continue
        rows = [(f"{name}.{member}", found) for member, found in members(value)]
        details += ["| method or property | does |\n|---|---|"] if rows else []
        for title, found in rows:
            text = Described(inspect.getdoc(found) or "").summary
            details.append(f"| [`{title.partition('.')[2]}{signature(found)}`](#{anchor(title)}) | {cell(text)} |")
        details.append("")
        for title, found in rows:
            details += section(f"### {title}", found)
    text = "\n".join([HEAD, "| name | is | guide |\n|---|---|---|", *index, *details])
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
