"""Price an option by Monte Carlo on a local cluster, lose a worker on the way, and check the answer: `make demo`."""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import sys
import time
from concurrent.futures import as_completed

from scaler import Client, SchedulerClusterCombo

SPOT, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.2, 1.0
BATCHES, PATHS = 240, 20_000
WORKERS = 4


def simulate(seed: int, paths: int) -> tuple[float, float]:
    """Sum and sum of squares of the discounted payoffs of so many paths."""
    draw = random.Random(seed).gauss
    drift, spread = (RATE - VOLATILITY**2 / 2) * YEARS, VOLATILITY * math.sqrt(YEARS)
    discount = math.exp(-RATE * YEARS)
    total = squares = 0.0
    for _ in range(paths):
        payoff = discount * max(SPOT * math.exp(drift + spread * draw(0.0, 1.0)) - STRIKE, 0.0)
        total += payoff
        squares += payoff * payoff
    return total, squares


def black_scholes() -> float:
    """The closed form (Black and Scholes, 1973)."""
    spread = VOLATILITY * math.sqrt(YEARS)
    d1 = (math.log(SPOT / STRIKE) + (RATE + VOLATILITY**2 / 2) * YEARS) / spread
    return SPOT * _normal(d1) - STRIKE * math.exp(-RATE * YEARS) * _normal(d1 - spread)


def _normal(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def price(client: Client) -> tuple[float, float]:
    """Price and standard error; one worker is killed after a third of the work."""
    futures = [client.submit(simulate, seed, PATHS) for seed in range(BATCHES)]
    total = squares = 0.0
    for done, future in enumerate(as_completed(futures), 1):
        batch_total, batch_squares = future.result()
        total += batch_total
        squares += batch_squares
        _progress(done)
        if done == BATCHES // 3:
            victim = client.submit_verbose(os.getpid, (), {}, priority=1).result()
            os.kill(victim, signal.SIGKILL)
            print(f"\n  killed worker process {victim}: its task runs again elsewhere")
    paths = BATCHES * PATHS
    mean = total / paths
    return mean, math.sqrt((squares / paths - mean * mean) / paths)


def _progress(done: int) -> None:
    if sys.stdout.isatty() or done % (BATCHES // 6) == 0:
        bar = "#" * (40 * done // BATCHES)
        print(f"\r  [{bar:<40}] {done}/{BATCHES} batches", end="" if sys.stdout.isatty() else "\n", flush=True)


def main() -> None:
    """Run the demo; exits with an error where anything is not as it should be."""
    started = time.perf_counter()
    with SchedulerClusterCombo(n_workers=WORKERS, logging_paths=("/dev/stdout",)) as cluster:
        address = cluster.get_address()
        print(f"cluster of {WORKERS} workers at {address}, ready after {time.perf_counter() - started:.2f} s")
        with Client(address=address) as client:
            started = time.perf_counter()
            value, error = price(client)
    exact = black_scholes()
    print(f"\n  {BATCHES * PATHS:,} paths in {time.perf_counter() - started:.1f} s: {value:.4f} +- {error:.4f}")
    print(f"  closed form: {exact:.4f}, difference {abs(value - exact) / error:.1f} standard errors")
    port = int(address.rpartition(":")[2])
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise SystemExit(f"something still listens on port {port}")
    if abs(value - exact) > 4 * error:
        raise SystemExit("the price is wrong")
    print("cluster stopped, its ports are free")


if __name__ == "__main__":
    main()
