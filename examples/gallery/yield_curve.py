"""A yield curve is bootstrapped from swap rates as a graph, once for each bumped rate, and a book is valued on each.

A discount factor needs those of all earlier years: such chains of small calls go to one worker together. The valuation
of each scenario needs its whole curve. One call of `get` returns the values of all scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drawing
import session

from scaler import Client

BASIS_POINT = 0.0001


def rates_of(years: int) -> list[float]:
    """Rates of par swaps of 1, 2, … years."""
    return [0.02 + 0.02 * (1 - 0.85**year) for year in range(1, years + 1)]


def extend(rate: float, curve: Sequence[float]) -> tuple[float, ...]:
    """A curve of discount factors, and that of the next year, at which a swap with this rate is worth nothing."""
    return (*curve, (1.0 - rate * sum(curve)) / (1.0 + rate))


def value(curve: Sequence[float], book: Sequence[tuple[int, float, float]]) -> float:
    """What a book of swaps (years, fixed rate, notional) is worth to who receives the fixed rates."""
    return sum(notional * (rate * sum(curve[:years]) + curve[years - 1] - 1.0) for years, rate, notional in book)


def graph_of(rates: Sequence[float], book: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    """The graph; the scenario `base` is without a bump, `1`, `2`, … are with a higher rate of that year."""
    graph: dict[str, Any] = {"book": list(book), "empty": ()}
    for scenario in ("base", *map(str, range(1, len(rates) + 1))):
        before = "empty"
        for year, rate in enumerate(rates, 1):
            name = f"{scenario}: {year}"
            graph[name] = (extend, rate + BASIS_POINT * (scenario == str(year)), before)
            before = name
        graph[scenario] = (value, before, "book")
    return graph


def work(client: Client, small: bool) -> str:
    """One graph for all scenarios."""
    years = 8 if small else 30
    rates = rates_of(years)
    book = [(year, 0.025 + 0.0005 * year, 1e6 * (1 + year % 4)) for year in range(2, years + 1, 2)]
    graph = graph_of(rates, book)
    scenarios = ["base", *map(str, range(1, years + 1))]
    found: dict[str, float] = client.get(graph, scenarios)
    risks = [(float(year), found[str(year)] - found["base"]) for year in range(1, years + 1)]
    parallel = sum(risk for _, risk in risks)
    print(f"{len(graph) - 2} calls; the book is worth {found['base']:,.0f}")
    print(f"it loses {-parallel:,.0f} when all rates rise by a basis point")
    return drawing.bars("What a basis point of each rate costs", "years", "value", risks)


if __name__ == "__main__":
    session.run("The risk of a book of swaps, from a yield curve bootstrapped as a graph.", work)
