"""Loads for scaling policies: recorded and adversarial ones, each with the providers that it meets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from scaler_protocol.capabilities import capabilities
from scaler_scheduler.requirements import Requirement, WorkerClass
from support.virtual_fleet import Arrival, Provider

RECORDED = Path(__file__).parent / "recorded_load.json"
CPU, GPU = WorkerClass((), None), WorkerClass(capabilities({"gpu": 1}), None)
ON_GPU = Requirement(capabilities({"gpu": 1}), None)


@dataclass(frozen=True, slots=True)
class LoadCase:
    """A load and where it runs."""

    name: str
    load: tuple[Arrival, ...]
    providers: tuple[Provider, ...]

    @property
    def startup(self) -> float:
        """The longest start-up of a unit, in seconds."""
        return max(provider.startup(Random(1)) for provider in self.providers)


def takes(seconds: float) -> Callable[[Random], float]:
    """A start-up time that varies by a fifth."""
    return lambda random: seconds * random.uniform(0.9, 1.1)


def at_once(tasks: int, seconds: float, at: float = 0.0, function: str = "f") -> list[Arrival]:
    """Equal tasks that come together."""
    return [Arrival(at, seconds, function)] * tasks


def poisson(rate: float, seconds: float, until: float) -> Iterator[Arrival]:
    """Tasks that come at random, so many per second, of random length."""
    random, at = Random(2), 0.0
    while at < until:
        yield Arrival(at, random.expovariate(1 / seconds))
        at += random.expovariate(rate)


def bimodal(tasks: int) -> Iterator[Arrival]:
    """Calls of one function of which one in ten takes 300 times as long."""
    random = Random(3)
    for _ in range(tasks):
        yield Arrival(0.0, 30.0 if random.random() < 0.1 else 0.1)


def mixed() -> Iterator[Arrival]:
    """Long tasks that need a GPU come among short ones that need nothing."""
    for number in range(600):
        yield Arrival(number * 0.1, 2.0, "short")
        if number % 30 == 0:
            yield Arrival(number * 0.1, 10.0, "long", ON_GPU)


def recorded() -> Iterator[Arrival]:
    """The tests of this project's scheduler, one task each, as `pytest --durations=0` reported them."""
    for module, seconds in json.loads(RECORDED.read_text("utf-8")):
        yield Arrival(0.0, seconds, module)


def cases() -> list[LoadCase]:
    """All loads."""
    slow, cloud = Provider(maximum=40, startup=takes(60)), Provider(maximum=40, startup=takes(5))
    gpus = Provider(maximum=40, classes=(CPU, GPU), startup=takes(5))
    failing = (Provider("failing", 20, startup=takes(5), fails=(0, 300)), Provider("sound", 20, startup=takes(5)))
    phases = [arrival for phase in range(9) for arrival in at_once(200, 2.0, 40.0 * phase)]
    eights = Provider(maximum=40, unit_size=8, startup=takes(5))
    return [
        LoadCase("15 tasks of 6 s, at most 10 workers", tuple(at_once(15, 6.0)), (Provider(startup=takes(0.5)),)),
        LoadCase("burst: 2,000 tasks of 0.5 s", tuple(at_once(2000, 0.5)), (cloud,)),
        LoadCase("10,000 tasks of 1 ms", tuple(at_once(10_000, 0.001)), (cloud,)),
        LoadCase("40 tasks of 5 minutes", tuple(at_once(40, 300.0)), (cloud,)),
        LoadCase("phases: 200 tasks of 2 s every 40 s", tuple(phases), (cloud,)),
        LoadCase("bimodal: 0.1 s, one in ten 30 s", tuple(bimodal(500)), (cloud,)),
        LoadCase("trickle: 1 s of work every 10 s", tuple(Arrival(10.0 * n, 1.0) for n in range(60)), (cloud,)),
        LoadCase("constant: 8 workers' worth, 20 minutes", tuple(poisson(4.0, 2.0, 1200)), (cloud,)),
        LoadCase("constant, units start in 60 s", tuple(poisson(4.0, 2.0, 1200)), (slow,)),
        LoadCase("slow start: 400 tasks of 3 s, 60 s", tuple(at_once(400, 3.0)), (slow,)),
        LoadCase("mixed: short tasks, some need a GPU", tuple(mixed()), (gpus,)),
        LoadCase("one of two providers fails for 5 minutes", tuple(at_once(1000, 2.0)), failing),
        LoadCase(
            "units of 8 workers: 500 tasks of 2 s",
            tuple(at_once(500, 2.0)),
            (eights,),
        ),
        LoadCase("recorded: the tests of the scheduler", tuple(recorded()), (cloud,)),
    ]
