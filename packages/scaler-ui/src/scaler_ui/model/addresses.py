"""Addresses of pages: each thing has its own, and the query says what of a table is shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from scaler_protocol.lazy_dataclass import dataclass

ROW_COUNTS = (25, 50, 100)
"""How many rows a page of a table may have."""
PAGES = 10**9
"""No page has this number."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for `count` rows from `first` on, sorted by a column, of those that contain `text`.

    The others narrow tasks down, to a state, a function, a client, a host; or events, to a kind.
    """

    first: int = 0
    count: int = 50
    order: str = ""
    descending: bool = True
    text: str = ""
    state: str = ""
    function: str = ""
    client: str = ""
    host: str = ""
    kind: str = ""


FILTERS = ("state", "kind", "function", "client", "host")
_OWN = frozenset({"sort", "text", "page", "rows", *FILTERS})


def address(place: str, *names: str, **query: str) -> str:
    """The address of the page about what has these names, which may hold any character."""
    path = "/".join(["", place, *(quote(_undotted(name), safe=":@") for name in names)])
    said = urlencode({name: value for name, value in query.items() if value}, quote_via=quote, safe=":")
    return f"{path}?{said}" if said else path


def names_in(path: str) -> list[str]:
    """The place and the names of which a path consists."""
    return [name_in(part) for part in urlsplit(path).path.split("/")[1:]]


def name_in(part: str) -> str:
    """The name that a part of a path is, as the browser has sent it."""
    name = unquote(part)
    return name[:-1] if name.endswith(";") and name.rstrip(";") in (".", "..") else name


def _undotted(name: str) -> str:
    """The name with a semicolon behind it if browsers would take it, or what `name_in` makes of it, for a folder."""
    return f"{name};" if name.rstrip(";") in (".", "..") else name


def read_task(name: str) -> int | None:
    """The id of a task; None if the text is none."""
    try:
        number = int(name, 16)
    except ValueError:
        return None
    return number if 0 <= number < 2**64 else None


def read_number(text: str) -> int | None:
    """A number of decimal digits, as browsers and addresses have them; None if the text is none."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def read_worker(name: str) -> tuple[str, int] | None:
    """Agent and process of a worker; None if the text names none."""
    agent, _, digits = name.rpartition("-")
    pid = read_number(digits)
    return (agent, pid) if agent and pid is not None else None


@dataclass(frozen=True, slots=True)
class TableAddress:
    """How the query of an address says what of a table is shown; of several tables each has its own prefix."""

    default: PageRequest
    orders: Collection[str]
    """The columns by which rows may be sorted."""
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The values of filters that have a few only."""
    filters: Collection[str] = ()
    """Those of FILTERS that this table has."""
    prefix: str = ""

    def read(self, query: str) -> tuple[PageRequest, list[str]]:
        """What a query asks for, and sentences about values that mean nothing, which are left out."""
        said = {
            name.removeprefix(self.prefix): value for name, value in parse_qsl(query) if name.startswith(self.prefix)
        }
        asked, faults = self.default, list[str]()
        found: dict[str, Any] = {"text": said.get("text", "")}
        if order := said.get("sort"):
            if order.removeprefix("-") in self.orders:
                asked = replace(asked, order=order.removeprefix("-"), descending=order.startswith("-"))
            else:
                faults.append(f"sort={order}: rows are sorted by {', '.join(self.orders)}")
        if (count := said.get("rows")) is not None:
            if count in map(str, ROW_COUNTS):
                asked = replace(asked, count=int(count))
            else:
                faults.append(f"rows={count}: a page has {', '.join(map(str, ROW_COUNTS))} rows")
        if (page := said.get("page")) is not None:
            if 0 < (number := read_number(page) or 0) < PAGES:
                asked = replace(asked, first=(number - 1) * asked.count)
            else:
                faults.append(f"page={page}: pages are numbered from 1")
        for name in said.keys() & set(FILTERS):
            if name not in self.filters:
                faults.append(f"{name}={said[name]}: this table has no such filter")
            elif name in self.choices and said[name] not in self.choices[name]:
                faults.append(f"{name}={said[name]}: {name}s are {', '.join(self.choices[name])}")
            else:
                found[name] = said[name]
        return replace(asked, **found), faults

    def turned(self, asked: PageRequest, pagination: Mapping[str, Any]) -> PageRequest:
        """`asked`, with the page and order that a browser's table asks for; what means nothing is as by default."""
        count, page, said = (pagination.get(name) for name in ("rowsPerPage", "page", "sortBy"))
        count = count if count in ROW_COUNTS else self.default.count
        first = (page - 1) * count if isinstance(page, int) and 0 < page < PAGES else 0
        order = said if isinstance(said, str) and said in self.orders else self.default.order
        return replace(asked, first=first, count=count, order=order, descending=bool(pagination.get("descending")))

    def write(self, query: str, asked: PageRequest) -> str:
        """The query that asks for this; what else the query says stays."""
        kept = {
            name: value
            for name, value in parse_qsl(query, keep_blank_values=True)
            if not (name.startswith(self.prefix) and name.removeprefix(self.prefix) in _OWN)
        }
        said = {name: getattr(asked, name) for name in ("text", *FILTERS)}
        if (asked.order, asked.descending) != (self.default.order, self.default.descending):
            said["sort"] = f"{'-' * asked.descending}{asked.order}"
        if asked.count != self.default.count:
            said["rows"] = str(asked.count)
        if asked.first:
            said["page"] = str(asked.first // asked.count + 1)
        own = {f"{self.prefix}{name}": value for name, value in said.items() if value}
        return urlencode({**kept, **own}, quote_via=quote, safe=":")
