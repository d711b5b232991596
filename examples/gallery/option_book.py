"""The value and the Greeks of a book of options by Monte Carlo, for a ladder of spot prices.

Each task prices some options of the book at one spot price. The paths of an option are the same at every spot, so the
differences between prices are not noise.
"""

from __future__ import annotations

from typing import NamedTuple

import drawing
import numpy as np
import session

from scaler import Client

RATE, VOLATILITY, STEPS = 0.03, 0.25, 12


class Option(NamedTuple):
    """An Asian call (or put) on the mean of monthly prices; negative quantities are sold."""

    seed: int
    strike: float
    years: float
    is_call: bool
    quantity: float


def book_of(size: int) -> list[Option]:
    """A book, made on the spot."""
    draw = np.random.default_rng(1)
    return [
        Option(seed, 60.0 + 80.0 * draw.random(), 0.25 + 2.0 * draw.random(), bool(seed % 2), draw.normal(0.0, 10.0))
        for seed in range(size)
    ]


def price(option: Option, spot: float, paths: int) -> float:
    """The value of one option."""
    normal = np.random.default_rng(option.seed).standard_normal((paths, STEPS))
    step = option.years / STEPS
    returns = (RATE - VOLATILITY**2 / 2) * step + VOLATILITY * np.sqrt(step) * normal
    means = (spot * np.exp(returns.cumsum(axis=1))).mean(axis=1)
    gains = means - option.strike if option.is_call else option.strike - means
    return float(np.exp(-RATE * option.years) * np.maximum(gains, 0.0).mean())


def value(options: list[Option], spot: float, paths: int) -> float:
    """The value of a part of the book."""
    return sum(option.quantity * price(option, spot, paths) for option in options)


def work(client: Client, small: bool) -> str:
    """Price all parts of the book at all spots in one map, then add up."""
    size, paths, steps = (40, 500, 9) if small else (200, 5_000, 25)
    book = book_of(size)
    parts = [book[at : at + 10] for at in range(0, size, 10)]
    spots = [float(spot) for spot in np.linspace(70.0, 130.0, steps)]
    asked = [(part, spot, paths) for spot in spots for part in parts]
    found = client.starmap(value, asked)
    values = [sum(found[at : at + len(parts)]) for at in range(0, len(found), len(parts))]
    bump = spots[1] - spots[0]
    deltas = [(up - down) / (2 * bump) for down, up in zip(values, values[2:], strict=False)]
    gammas = [(up - 2 * at + down) / bump**2 for down, at, up in zip(values, values[1:], values[2:], strict=False)]
    middle = len(spots) // 2
    print(f"{size} options, {len(asked)} tasks")
    greeks = f"delta {deltas[middle - 1]:.2f}, gamma {gammas[middle - 1]:.3f}"
    print(f"at {spots[middle]:.0f}: value {values[middle]:.1f}, {greeks}")
    inner = spots[1:-1]
    series = {
        "value / 10": [(spot, at / 10) for spot, at in zip(spots, values, strict=True)],
        "10 x delta": [(spot, 10 * delta) for spot, delta in zip(inner, deltas, strict=True)],
        "100 x gamma": [(spot, 100 * gamma) for spot, gamma in zip(inner, gammas, strict=True)],
    }
    return drawing.lines("A book of Asian options", "spot price", "value and Greeks", series)


if __name__ == "__main__":
    session.run("The Greeks of an option book by Monte Carlo.", work)
