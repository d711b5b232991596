"""A web service that answers with results of the cluster: the calls of all visitors share its workers.

A request awaits its call, so one thread serves them all; one whose visitor has gone is cancelled, and one that takes
too long is stopped on its worker. Here the program visits itself with some requests at once (needs aiohttp).
"""

from __future__ import annotations

import asyncio
import time

import aiohttp
import drawing
import session
from aiohttp import web

from scaler import Client
from scaler_protocol.errors import TaskTimeoutError

CLIENT: web.AppKey[Client] = web.AppKey("client", Client)


def primes_below(number: int) -> int:
    """How many primes there are below a number."""
    sieve = bytearray([1]) * number
    sieve[:2] = bytes(min(2, number))
    for factor in range(2, int(number**0.5) + 1):
        if sieve[factor]:
            sieve[factor * factor :: factor] = bytes(len(range(factor * factor, number, factor)))
    return sum(sieve)


async def primes(request: web.Request) -> web.Response:
    """GET /primes/100: 25."""
    number = int(request.match_info["number"])
    future = request.app[CLIENT].options(timeout=10.0).submit(primes_below, number)
    try:
        return web.json_response({"below": number, "primes": await future})
    except TaskTimeoutError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from None
    except asyncio.CancelledError:
        future.cancel()  # nobody waits for the answer
        raise


async def visit(client: Client, numbers: list[int]) -> list[tuple[float, int]]:
    """Serve, and ask for all numbers at once; when each answer came, and what it was."""
    app = web.Application(handler_args={"handler_cancellation": True})
    app[CLIENT] = client
    app.router.add_get(r"/primes/{number:\d{1,8}}", primes)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    began = time.monotonic()

    async def ask(visitor: aiohttp.ClientSession, number: int) -> tuple[float, int]:
        async with visitor.get(f"{site.name}/primes/{number}") as answer:
            found = await answer.json()
            return time.monotonic() - began, found["primes"]

    async with aiohttp.ClientSession() as visitor:
        answers = await asyncio.gather(*(ask(visitor, number) for number in numbers))
    await runner.cleanup()
    return answers


def work(client: Client, small: bool) -> str:
    """Visit the service."""
    numbers = [(10_000 if small else 300_000) + number for number in range(8 if small else 200)]
    answers = asyncio.run(visit(client, numbers))
    print(f"{len(answers)} requests answered; {answers[0][1]:,} primes below {numbers[0]:,}")
    done = sorted(seconds for seconds, _ in answers)
    series = {"answers": [(0.0, 0.0), *((seconds, float(count)) for count, seconds in enumerate(done, 1))]}
    return drawing.lines("Requests that came at once are answered in turn", "seconds", "answers", series)


if __name__ == "__main__":
    session.run("A web service whose work is done by the cluster.", work)
