"""A cluster where a program expects a `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

from scaler import Client, SchedulerClusterCombo


def is_prime(n: int) -> bool:
    """By trial division."""
    return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))


def primes(executor: Executor, up_to: int) -> Iterator[int]:
    """Works with any executor; results come in order, each as soon as it is there."""
    numbers = range(up_to)
    for number, prime in zip(numbers, executor.map(is_prime, numbers), strict=True):
        if prime:
            yield number


def main() -> None:
    """Leaving the block waits for the executor's calls; the client stays open."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        with client.executor() as executor:
            print(executor.submit(is_prime, 7919).result())
            print(list(primes(executor, 30)))
        print(client.submit(is_prime, 91).result())


if __name__ == "__main__":
    main()
