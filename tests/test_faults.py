"""Real processes die, stand still, come back and lose their connections while a thousand tasks are in flight."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.errors import SchedulerLostError, WorkerDiedError
from support.fault_tasks import bulky, kill_agent, step, stop_when_next_is_read
from support.faults import Services, template_of
from support.foreign_clients import babbling
from support.gates import SECONDS
from support.processes import command_line, descendants, stopped
from support.relays import Relay
from support.tasks import alone
from support.waiting import wait_until

TASKS = 1000
TASK_SECONDS = 0.003


class Flight:
    """A thousand tasks of one client: what they answer, how often, and how often each ran."""

    def __init__(self, client: Client, folder: Path, seconds: float = TASK_SECONDS, tasks: int = TASKS) -> None:
        self.file = folder / f"runs-{len(list(folder.glob('runs-*')))}"
        self.file.touch()
        self.answers: Counter[int] = Counter()
        self.futures = [client.submit(step, str(self.file), number, seconds) for number in range(tasks)]
        for number, future in enumerate(self.futures):
            future.add_done_callback(partial(self._answered, number))

    def _answered(self, number: int, future: Future[tuple[int, int]]) -> None:
        self.answers[number] += 1

    def done(self) -> int:
        """How many have ended."""
        return sum(future.done() for future in self.futures)

    def wait_for(self, done: int) -> None:
        """Block until so many have ended, and not all of them."""
        wait_until(lambda: self.done() >= done, f"{done} tasks done")
        assert self.done() < len(self.futures), "the fault came too late"

    def land(self, seconds: float = 30) -> Counter[int]:
        """Every future has the right value, once; returns how often each task ran: at least once."""
        deadline = time.monotonic() + seconds
        for number, future in enumerate(self.futures):
            assert future.result(max(0.0, deadline - time.monotonic()))[0] == number
        wait_until(lambda: sum(self.answers.values()) >= len(self.futures), "callbacks")
        assert set(self.answers.values()) == {1}
        runs = Counter(map(int, self.file.read_text("ascii").split()))
        assert set(runs) == set(range(len(self.futures)))
        return runs


def test_a_worker_is_killed(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agent = services.add_agent(2)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            template = template_of(agent.pid)
            os.kill(descendants(template)[0], signal.SIGKILL)
            runs = flight.land()
        assert sum(runs.values()) <= TASKS + 1
        assert "was killed by SIGKILL" in agent.said()


def test_a_worker_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agent = services.add_agent(1)
        with Client(services.address) as client:
            pid = client.submit(os.getpid).result(SECONDS)
            os.kill(pid, signal.SIGSTOP)
            assert client.submit(os.getpid).result(2 * SECONDS) != pid
        assert "is replaced: it has begun no task for" in agent.said()


def test_a_worker_that_stands_still_with_a_task_that_it_has_read_is_replaced(tmp_path: Path) -> None:
    """A process that a signal stops while the kernel reads for it has read, where the processor is busy meanwhile."""
    with Services(tmp_path) as services:
        agent = services.add_agent(1)
        with Client(services.address) as client:
            pid = client.submit(stop_when_next_is_read).result(SECONDS)
            assert client.submit(os.getpid).result(2 * SECONDS) != pid
        assert "is replaced: it has begun no task for" in agent.said()


def test_the_template_is_killed(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agent = services.add_agent(2)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            first = template_of(agent.pid)
            os.kill(first, signal.SIGKILL)
            runs = flight.land()
            assert sum(runs.values()) <= TASKS + 2
            for worker in (pid for pid in agent.family() if "template" not in command_line(pid) and pid != agent.pid):
                os.kill(worker, signal.SIGKILL)
            Flight(client, tmp_path, tasks=20).land()
        assert f"the template (process {first}) has exited; starting another one" in agent.said()


def test_a_host_is_killed(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agents = [services.add_agent(2), services.add_agent(2)]
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            family = agents[0].family()
            agents[0].kill()
            flight.land()
        assert f":{agents[0].pid} is gone: its connection is gone" in services.scheduler.said()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "the workers follow", 5)


@pytest.mark.parametrize("agents", [1, 2])
def test_a_host_stands_still_for_longer_than_its_silence_is_borne(tmp_path: Path, agents: int) -> None:
    with Services(tmp_path, "--worker-timeout-seconds", "2") as services:
        frozen, *others = [services.add_agent(2) for _ in range(agents)]
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            with stopped(frozen.pid):
                wait_until(lambda: f"{frozen.pid} is gone" in services.scheduler.said(), "the silence is noticed", 8)
                if others:
                    flight.land()
            flight.land()
            again = Flight(client, tmp_path, tasks=200, seconds=0.01)
            again.land()
        said = services.scheduler.said()
        assert (said.count(" workers) connected"), said.count(" is gone: ")) == (agents + 1, 1)


def test_the_scheduler_is_killed_and_started_again(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        services.add_agent(2)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            killed = time.monotonic()
            services.scheduler.kill()
            services.start_scheduler()
            runs = flight.land()
            print(f"all landed {time.monotonic() - killed:.2f} s after the kill of the scheduler")
            assert runs == Counter(range(TASKS)), "the agent was there: nothing had to run twice"
            Flight(client, tmp_path, tasks=20).land()


@pytest.mark.parametrize("times", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_the_scheduler_is_killed_and_comes_back_late(tmp_path: Path, times: int) -> None:
    with Services(tmp_path) as services:
        services.add_agent(2)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path, tasks=TASKS * times)
            flight.wait_for(TASKS // 5)
            for _ in range(times):
                done = flight.done()
                services.scheduler.kill()
                time.sleep(1)  # the outage itself
                later = client.submit(step, str(tmp_path / "later"), done, 0)
                services.start_scheduler()
                assert later.result(SECONDS)[0] == done
                assert flight.done() >= done
            assert flight.land() == Counter(range(TASKS * times)), "the agent was there: nothing had to run twice"


def cut_after(relay: Relay, size: int) -> None:
    """Cut all connections once so many bytes more have come, and wait until that has been done."""
    cuts = relay.cuts
    relay.after(size, relay.cut)
    wait_until(lambda: relay.cuts > cuts, "results in the middle of which to cut")


def test_the_connection_of_the_client_drops_in_the_middle_of_results(tmp_path: Path) -> None:
    with Services(tmp_path) as services, services.relay() as relay:
        services.add_agent(2)
        with Client(str(relay.address)) as client:
            flight = Flight(client, tmp_path, seconds=0.001)
            results = [client.submit(bulky, number, 12_000) for number in range(TASKS)]
            for number in range(1, 6):
                cut_after(relay, number * 100_001)
            assert flight.land() == Counter(range(TASKS)), "nothing is lost with a connection, so nothing runs again"
            for number, future in enumerate(results):
                assert future.result(SECONDS) == bulky(number, 12_000)


def test_the_connection_of_a_host_drops_in_the_middle_of_results(tmp_path: Path) -> None:
    with Services(tmp_path) as services, services.relay() as relay:
        services.add_agent(2, address=relay.address)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path)
            for done in (100, 200, 300, 400):
                flight.wait_for(done)
                relay.cut()
            assert flight.land() == Counter(range(TASKS)), "nothing is lost with a connection, so nothing runs again"


@pytest.mark.chaos
@pytest.mark.parametrize("whose", ["client", "agent"])
def test_a_connection_is_dead_and_nobody_is_told(tmp_path: Path, whose: str) -> None:
    """As behind a middlebox that has forgotten it: ZeroMQ's heartbeats find out, after ten seconds."""
    with Services(tmp_path) as services, services.relay() as relay:
        services.add_agent(2, address=relay.address if whose == "agent" else None)
        with Client(str(relay.address) if whose == "client" else services.address) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            relay.swallow()
            swallowed = time.monotonic()
            runs = flight.land()
            print(f"all landed {time.monotonic() - swallowed:.1f} s after the connection of the {whose} died")
            assert runs == Counter(range(TASKS)), "nothing is lost with a connection, so nothing runs again"


def test_the_scheduler_is_gone_for_good(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agent = services.add_agent(2, "--death-timeout-seconds", "1")
        with Client(services.address, timeout_seconds=2) as client:
            flight = Flight(client, tmp_path)
            flight.wait_for(TASKS // 5)
            killed = time.monotonic()
            services.scheduler.kill()
            errors = [future.exception(10) for future in flight.futures]
            assert 1.5 < time.monotonic() - killed < 6
            lost = [error for error in errors if error is not None]
            assert lost
            for error in lost:
                assert isinstance(error, SchedulerLostError)
                assert services.address in str(error) and "2 s" in str(error)
            with pytest.raises(SchedulerLostError):
                client.submit(step, str(flight.file), 1, 0).result(5)
        assert agent.process.wait(10) == 1
        assert f"the scheduler at {services.address} is lost" in agent.said()
        services.started.remove(agent)


def test_a_scheduler_that_only_babbles_is_gone_too() -> None:
    """Each connection gets its Welcome, and then what is no message."""
    with babbling() as address, Client(address, timeout_seconds=1, insecure=True) as client:
        for _ in range(2):
            for future in [client.submit(abs, -1) for _ in range(3)]:
                with pytest.raises(SchedulerLostError, match=r"no connection for 1 s .*malformed message"):
                    future.result(SECONDS)


def test_a_task_that_kills_its_agents_takes_no_neighbours_along(tmp_path: Path) -> None:
    runs, others = tmp_path / "runs", tmp_path / "others"
    with Services(tmp_path) as services:
        for _ in range(5):
            services.add_agent(4)
        with Client(services.address) as client:
            beside = [client.submit(step, str(others), number, 1.0) for number in range(19)]
            poison = client.submit(kill_agent, str(runs))
            error = poison.exception(SECONDS)
            assert type(error) is WorkerDiedError and error.details["runs"] == 3
            assert [future.result(SECONDS)[0] for future in beside] == list(range(19))
    assert len(runs.read_text("ascii").split()) <= 4


def test_what_the_cluster_has_one_of_is_never_had_twice_while_the_scheduler_is_killed(tmp_path: Path) -> None:
    with Services(tmp_path, "--cluster-capabilities", "license=1") as services, Client(services.address) as client:
        agents = [services.add_agent(2), services.add_agent(2)]
        turns = [
            client.submit_verbose(alone, (tmp_path / "lock", 0.1), {}, capabilities={"license": 1}) for _ in range(12)
        ]
        wait_until(lambda: any(turn.done() for turn in turns), "the first turn")
        services.scheduler.kill()
        services.start_scheduler()
        assert [turn.result(SECONDS) for turn in turns] == [True] * 12, "two ran at once"
        assert all(agent.process.poll() is None for agent in agents)
