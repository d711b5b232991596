"""A simulated scheduler that only publishes: many workers, many finished tasks. For benchmarks of monitors.

python bench/simulated.py tcp://127.0.0.1:2347 --workers 1000 --tasks 1000000
"""

import argparse
import random
import sys
import time
from itertools import count, islice

from scaler_io.links.streams import HEADER
from scaler_io.transport.publishing import Publisher
from scaler_protocol.addresses import Address
from scaler_protocol.byte_planes import to_planes
from scaler_protocol.codec import encode
from scaler_protocol.messages import Message, Status, WorkerState
from scaler_protocol.monitoring import (
    PACKED_BATCH,
    PACKED_ID,
    EventKind,
    MonitorStatus,
    StorageStatus,
    TaskEvents,
    TaskStep,
)
from scaler_protocol.profiles import PROFILE, Profile
from scaler_scheduler.core.snapshot import WORKERS

WORKERS_PER_AGENT = 20
FUNCTIONS = 60
GRAPHS = 100
BATCH = 100
"""Tasks of one function that are submitted, assigned and ended together."""
EVENT_SECONDS = 0.1
STATUS_SECONDS = 1.0
SESSION = 0x51A7 << 32


class SimulatedScheduler:
    """Publishes what a scheduler would. After the first `tasks`, `rate` tasks end per second."""

    def __init__(self, workers: int, tasks: int, rate: int) -> None:
        self._workers, self._tasks, self._rate = workers, tasks, rate
        self._agents = range(1, 1 + -(-workers // WORKERS_PER_AGENT))
        self._random = random.Random(1)
        self._next = count(1)
        self._group_base = 10_000
        self.ended = 0

    def status(self, *, snapshot: bool = False) -> MonitorStatus:
        """The current status."""
        agents, draw = self._agents, self._random.random
        listed = min(len(agents), WORKERS // WORKERS_PER_AGENT)
        workers, unlisted = range(min(self._workers, listed * WORKERS_PER_AGENT)), agents[listed:]
        return MonitorStatus(
            7, time.time(), address="tcp://127.0.0.1:2345", snapshot=snapshot, uptime=1000.0, cpu=0.5, rss=200 << 20,
            waiting=0, assigned=0, succeeded=self.ended - self.ended // 10, raised=self.ended // 10,
            sent_names=("Run", "Done"), sent_counts=(self.ended, self.ended),
            received_names=("Submit", "Done"), received_counts=(self.ended, self.ended),
            client_sessions=(SESSION >> 32,), client_names=("Client|simulated",), client_hosts=("host",),
            client_tasks=(0,),
            agents=agents, agent_names=[f"host{agent}:{agent}" for agent in agents],
            agent_hosts=[f"host{agent}" for agent in agents], agent_workers=[WORKERS_PER_AGENT] * len(agents),
            agent_queue_sizes=[1000] * len(agents), agent_capabilities=["linux"] * len(agents),
            agent_runtimes=["Python 3.11 with cloudpickle 3.1"] * len(agents), agent_cpus=[draw() for _ in agents],
            agent_rsses=[40 << 20] * len(agents), agent_free=[8 << 30] * len(agents),
            agent_assigned=[WORKERS_PER_AGENT] * len(agents), agent_queued=[0] * len(agents),
            agent_round_trips=[0.001 * draw() for _ in agents], agent_status_ages=[0.5] * len(agents),
            agent_managers=[""] * len(agents), agent_units=[""] * len(agents),
            agent_draining=[False] * len(agents), agent_loads=[draw() for _ in agents],
            agent_disks_free=[1 << 40] * len(agents), agent_shared_free=[1 << 33] * len(agents),
            worker_agents=[1 + worker // WORKERS_PER_AGENT for worker in workers],
            worker_names=[f"Worker[{worker % WORKERS_PER_AGENT}]" for worker in workers],
            worker_pids=[10_000 + worker for worker in workers], worker_states=[WorkerState.RUNNING] * len(workers),
            worker_runs=[2**60 + worker for worker in workers], worker_cpus=[draw() for _ in workers],
            worker_rsses=[int(100e6 * (1 + draw())) for _ in workers], worker_queues=[1] * len(workers),
            worker_seconds=[0.5] * len(workers),
            unlisted_agents=unlisted, unlisted_running=[WORKERS_PER_AGENT] * len(unlisted),
            unlisted_busy=[WORKERS_PER_AGENT] * len(unlisted), unlisted_blocked=[0] * len(unlisted),
            unlisted_cpus=[WORKERS_PER_AGENT * draw() for _ in unlisted],
            unlisted_rsses=[WORKERS_PER_AGENT * 10**8] * len(unlisted),
            function_names=[f"package.module:function_{number}" for number in range(FUNCTIONS)],
            function_counts=[self.ended // FUNCTIONS] * FUNCTIONS, function_seconds=[0.01] * FUNCTIONS,
            function_runs=[self.ended // FUNCTIONS] * FUNCTIONS, function_run_seconds=[1.0] * FUNCTIONS,
            graphs=range(1, 1 + GRAPHS), graph_sessions=[SESSION >> 32] * GRAPHS, graph_nodes=[1000] * GRAPHS,
            graph_succeeded=range(GRAPHS), graph_failed=[0] * GRAPHS, graph_cancelled=[0] * GRAPHS,
            graph_assigned=[20] * GRAPHS, graph_running=[10] * GRAPHS, graph_start_times=[time.time() - 60] * GRAPHS,
            graph_end_times=[0.0] * GRAPHS,
        )  # fmt: skip

    def storage(self) -> StorageStatus:
        """The status of a storage server with few objects."""
        sizes = [1 << 20] * 10
        return StorageStatus(
            10, 0, 1, 1, sum(sizes), 1 << 30, 0, 0, 0, 0, 0, 0, 0, 0, self.ended, 0, 0, 0,
            [f"{number:016x}" for number in range(10)], [SESSION >> 32] * 10, sizes, [True] * 10, [False] * 10,
        )  # fmt: skip

    def groups(self) -> TaskEvents:
        """The groups of the tasks, and a log line."""
        numbers = range(self._group_base, self._group_base + FUNCTIONS)
        names = [f"package.module:function_{number}" for number in range(FUNCTIONS)]
        zeros = [0] * FUNCTIONS
        return TaskEvents(
            numbers, names, [SESSION >> 32] * FUNCTIONS, zeros, [""] * FUNCTIONS, [""] * FUNCTIONS,
            text_numbers=range(1, 101), text_times=[time.time()] * 100, text_levels=[20] * 100,
            text_kinds=[EventKind.AGENT] * 100, text_tasks=[0] * 100,
            text_subjects=[f"host{agent}" for agent in range(100)],
            texts=[f"20 workers of host{agent}:{agent} have come" for agent in range(100)],
            group_clients=[""] * FUNCTIONS,
        )  # fmt: skip

    def events(self, tasks: int) -> TaskEvents:
        """Events of this many tasks, from submission to end."""
        now, draw = time.time(), self._random.random
        packed_batches, runs, ids, statuses, profiles = (bytearray() for _ in range(5))
        batches = -(-tasks // BATCH)
        for _ in range(batches):
            members = list(islice(self._next, BATCH))
            packed = b"".join(PACKED_ID.pack(SESSION + member) for member in members)
            agent = self._random.choice(self._agents)
            group = self._group_base + self._random.randrange(FUNCTIONS)
            packed_batches += PACKED_BATCH.pack(TaskStep.WAITING, group, BATCH, -200_000)
            packed_batches += PACKED_BATCH.pack(TaskStep.ASSIGNED, agent, BATCH, -100_000)
            runs += PACKED_ID.pack(members[0])
            packed_batches += PACKED_BATCH.pack(TaskStep.ENDED, agent, BATCH, 0)
            ids += packed * 3
            for _ in members:
                statuses.append(Status.RAISED if draw() < 0.1 else Status.VALUE)
                worker = self._random.randrange(WORKERS_PER_AGENT)
                pid = 10_000 + (agent - 1) * WORKERS_PER_AGENT + worker
                profiles += Profile(int(1e5 * draw()), int(1e4 * draw()), int(1e8 * draw()), pid, worker, 1).packed()
        self.ended += batches * BATCH
        return TaskEvents(
            since=now,
            batches=to_planes(packed_batches, PACKED_BATCH.size),
            runs=to_planes(runs, PACKED_ID.size),
            tasks=to_planes(ids, PACKED_ID.size),
            statuses=to_planes(statuses, 1),
            profiles=to_planes(profiles, PROFILE.size),
        )


def publish(simulated: SimulatedScheduler, publisher: Publisher, tasks: int, rate: int) -> None:
    """Publish until the process is killed: a burst of tasks first, then a constant rate."""
    numbers, status_at = count(1), 0.0

    def say(message: Message) -> None:
        publisher.send([HEADER.pack(next(numbers), 0), *encode(message)])

    while True:
        if publisher.joined():
            say(simulated.status(snapshot=True))
            say(simulated.groups())
        if publisher.has_subscribers:
            if simulated.ended < tasks:
                say(simulated.events(min(10_000, tasks - simulated.ended)))
                if simulated.ended >= tasks:
                    print(f"{simulated.ended} tasks have ended", flush=True)
            elif rate:
                say(simulated.events(int(rate * EVENT_SECONDS)))
            if time.monotonic() >= status_at:
                say(simulated.status())
                say(simulated.storage())
                status_at = time.monotonic() + STATUS_SECONDS
        time.sleep(EVENT_SECONDS)


def main() -> None:
    """Publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", type=Address.parse)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2000)
    arguments = parser.parse_args()
    publisher = Publisher()
    publisher.bind(arguments.address)
    print("publishes", flush=True)
    try:
        publish(
            SimulatedScheduler(arguments.workers, arguments.tasks, arguments.rate),
            publisher,
            arguments.tasks,
            arguments.rate,
        )
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
