"""scaler_top: keys, filter, details, sizes, and the error if no scheduler publishes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from textual.pilot import Pilot
from textual.widgets import Static

from scaler_io.links.streams import HEADER
from scaler_io.transport.publishing import Publisher
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.monitoring import EventKind, StorageStatus, TaskEvents
from scaler_ui.listening import Listening, NoStatusError
from scaler_ui.model import text_view
from scaler_ui.model.tables import fields
from scaler_ui.model.text_view import COLUMNS, View
from scaler_ui.terminal.screen import TopApp
from scaler_ui.terminal.top import TopOptions, once
from support.waiting import wait_until

if TYPE_CHECKING:
    from conftest import Publications

Steps = Callable[[TopApp, Pilot[None]], Awaitable[None]]


class FakeTime:
    """A clock that jumps."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def listening(publications: Publications, clock: FakeTime, tmp_path: Path) -> Iterator[Listening]:
    """A model with a status, at an address without a publisher."""
    made = Listening(Address(path=str(tmp_path / "nobody")), clock)
    made.model = publications.model_of(
        publications.status(),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(0, 9, 1),
        publications.batch(2, 1, 1, first_run=501),
    )
    yield made
    made.close()


def drive(listening: Listening, steps: Steps, size: tuple[int, int] = (120, 40)) -> None:
    async def work() -> None:
        app = TopApp(listening)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)
            # As users do: an app that is taken down without an exit goes on to draw on parts that are gone.
            await pilot.exit(None)

    asyncio.run(work())


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


def names(app: TopApp) -> list[str]:
    """The workers on the screen, from top to bottom."""
    return [line.split()[0] for line in text(app, "body").splitlines() if line.strip().startswith("vm:")]


def test_the_screen_is_that_of_the_fields(listening: Listening) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        summary = text(app, "summary")
        for word in ("scheduler ", "task_manager", "scheduler_sent", "scheduler_received", "53,704", "130.0m", "25.0%"):
            assert word in summary
        assert "worker[n] agt_cpu[C] agt_rss[M] cpu[c] rss[m] free[f] sent[w] queued[d] lag[l]" in text(app, "keys")
        assert "Total 6 worker(s) of 2 agent(s)" in text(app, "total") and "agt_rss 212.7m" in text(app, "total")
        assert text(app, "header").split() == [
            "worker", "agt_cpu", "agt_rss", "[cpu]", "rss", "free", "sent", "queued", "lag", "ITL",
        ]  # fmt: skip
        for word in ("client_manager", "Client|a: 6", "func_to_num_tasks", "math:sqrt: 15"):
            assert word in text(app, "body")
        assert names(app)[0] == "vm:2-105"  # the greatest cpu
        assert "(12s) 1.0ms" in text(app, "body")  # of an agent that is silent

    drive(listening, steps)


def test_every_key_sorts_and_reverses(listening: Listening) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        for column, key in COLUMNS:
            if app.view.order == column:
                continue
            rows = fields(listening.model, listening.now)["workers"]
            await pilot.press(key)
            assert f"[{column}]" in text(app, "header")
            values = {row["worker"]: row[column] for row in rows}
            first = [values[name] for name in names(app)]
            assert first == sorted(values.values(), reverse=column != "worker"), column
            await pilot.press(key)
            assert [values[name] for name in names(app)] == first[::-1], column

    drive(listening, steps)


def test_a_filter_shows_what_fits_and_escape_shows_all(listening: Listening) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"RAM=4", "enter")
        assert sorted(names(app)) == ["vm:2-103", "vm:2-104", "vm:2-105"] and "3 shown" in text(app, "total")
        await pilot.press("n")  # the keys sort again
        assert app.view.order == "worker"
        await pilot.press("escape")
        assert len(names(app)) == 6

    drive(listening, steps)


def test_details_of_the_worker_that_is_pointed_at(listening: Listening) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("n", "enter")
        assert "worker     vm:1-100" in text(app, "details") and "state      running" in text(app, "details")
        assert "task       1 math:sqrt" in text(app, "details")
        assert app.query_one("#details").display
        await pilot.press("down", "down", "down", "down", "down", "down", "down")
        assert "vm:2-105" in text(app, "details") and "linux,ram=4" in text(app, "details")
        await pilot.press("enter")
        assert not app.query_one("#details").display

    drive(listening, steps)


def test_why_a_task_waits_and_what_happened(listening: Listening, publications: Publications) -> None:
    said = TaskEvents(
        text_numbers=(1, 2), text_kinds=(3, 1), text_subjects=("vm", ""),
        text_times=(1000.0, 1001.0), text_levels=(20, 30), text_tasks=(0, 1),
        texts=("agent vm (2 workers) connected", "a run was lost: Worker[0] was killed by SIGKILL; last words:\nFatal"),
    )  # fmt: skip
    listening.model.take(said, 50.0)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("y", *"1", "enter")
        assert "it runs on vm:1-100" in text(app, "details") and "SIGKILL" in text(app, "details")
        await pilot.press("y", *"worker", "enter")
        assert "'worker' is not a task id" in text(app, "details")
        await pilot.press("e")
        newest, first = text(app, "details").splitlines()
        assert newest.endswith("task 1: a run was lost: Worker[0] was killed by SIGKILL; last words: Fatal")
        assert first.endswith("agent vm (2 workers) connected")
        await pilot.press("e")
        assert not app.query_one("#details").display

    drive(listening, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends(listening: Listening, key: str) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert app._exit

    drive(listening, steps)


def test_another_size_of_the_terminal(listening: Listening, publications: Publications) -> None:
    listening.model.take(publications.status(500), 50.0)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert len(text(app, "body").splitlines()) == app.query_one("#body").size.height
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert 1 <= len(text(app, "body").splitlines()) == app.query_one("#body").size.height < 24
        await pilot.press("pagedown")
        assert app.view.pointed == 20
        (pointed,) = [worker for at, worker in enumerate(app.view.rows(fields(listening.model, 50.0))) if at == 20]
        assert pointed["worker"] in names(app)

    drive(listening, steps)


def test_nothing_is_cut_off_in_80_columns(listening: Listening) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        parts = ("summary", "keys", "total", "header", "body")
        assert max(len(line) for part in parts for line in text(app, part).splitlines()) <= 80
        assert text(app, "header").endswith(" ITL") and "quit[q]" in text(app, "keys") and len(names(app)) >= 1
        assert "client_manager" in text(app, "body") and "Client|a: 6" in text(app, "body")

    drive(listening, steps, (80, 24))


def test_a_low_screen_is_for_workers_and_findings(listening: Listening, publications: Publications) -> None:
    listening.model.take(publications.status(500, refusal=f"journal: {'no space left on device ' * 4}"), 50.0)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert len(names(app)) >= 7
        assert len(text(app, "findings").splitlines()) == 2 and "no space left" in text(app, "findings")
        for part in ("keys", "total", "header"):
            assert len(text(app, part).splitlines()) == 1, part
        assert "all keys[?]" in text(app, "keys") and "agt_cpu[C]" not in text(app, "keys")
        await pilot.press("question_mark")
        assert "agt_cpu[C]" in text(app, "details") and "PgDn" in text(app, "details")
        await pilot.press("question_mark")
        assert not app.query_one("#details").display

    drive(listening, steps, (80, 24))


def test_a_wide_screen_has_hosts_and_what_workers_run(listening: Listening, publications: Publications) -> None:
    places: dict[str, Any] = {"agent_hosts": ("red", "blue"), "agent_shared_free": (2**33, 0)}
    listening.model.take(publications.status(at=1090.0, worker_seconds=[90.0, *[0.0] * 5], **places), 50.0)
    died = TaskEvents(
        text_numbers=(1, 2), text_kinds=(EventKind.WORKER, EventKind.AGENT), text_subjects=("blue", "green"),
        text_times=(1001.0, 1002.0), text_levels=(30, 30), text_tasks=(0, 0), texts=("a worker died", "host lost"),
    )  # fmt: skip
    listening.model.take(died, 50.0)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        heading, *lines = [line.rpartition(" | ")[2].split() for line in text(app, "summary").splitlines()]
        assert heading == ["host", "workers", "busy", "cpu", "free", "disk", "shm", "lag", "deaths", "failures"]
        assert lines[:3] == [
            ["blue", "3", "0", "120%", "953.7m", "1024.0g", "1.0ms", "1", "0"],
            ["red", "3", "1", "30%", "953.7m", "1024.0g", "8.0g", "0.7ms", "0", "0"],
            ["green", "gone", "0", "0%", "0us", "0", "0"],
        ]
        assert text(app, "header").split()[-3:] == ["ITL", "for", "function"]
        (running,) = [line for line in text(app, "body").splitlines() if "vm:1-100" in line]
        assert " 90.0 s  math:sqrt" in running and "client_manager" in text(app, "body")
        parts = ("findings", "summary", "keys", "total", "header", "body")
        assert max(len(line) for part in parts for line in text(app, part).splitlines()) <= 200
        await pilot.resize_terminal(159, 50)
        await pilot.pause()
        assert "host " not in text(app, "summary") and "function" not in text(app, "header")

    drive(listening, steps, (200, 50))


def test_old_figures_are_marked(listening: Listening, clock: FakeTime) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert not app.query_one("#note").display
        clock.now += 12
        app.draw()
        assert text(app, "note") == "stale: nothing was heard for 12 s"
        await pilot.pause()
        assert app.query_one("#note").display

    drive(listening, steps)


def test_figures_end_where_nothing_is_heard(listening: Listening, publications: Publications, clock: FakeTime) -> None:
    storage = StorageStatus(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    listening.model.take(storage, clock.now)
    assert listening.figures() == (listening.model.status, storage)
    for _ in range(4):
        clock.now += 4
        listening.model.take(publications.status(), clock.now)
    assert listening.figures() == (listening.model.status, None)
    clock.now += 6
    assert listening.figures() == (None, None)


def test_nobody_publishes_here(clock: FakeTime) -> None:
    listening = Listening(Address.parse("tcp://127.0.0.1:1"), clock)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert text(app, "note") == "connecting"
        clock.now += 2.1
        app.draw()
        assert text(app, "note") == "nothing answers at tcp://127.0.0.1:1: is the scheduler up?"

    drive(listening, steps)
    listening.close()


def looked(listening: Listening) -> Listening:
    listening.look()
    return listening


def told(listening: Listening) -> str:
    return looked(listening).problem


def test_another_service_listens_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        listening = Listening(Address("127.0.0.1", port))
        wait_until(lambda: "no status comes" in told(listening), "the connection")
        listening.close()
    where, monitor = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 2}"
    remedy = f"If this is its own port, the monitor is usually {monitor}"
    assert listening.problem == f"no status comes from {where}: is the scheduler up? {remedy}"


def test_once_prints_the_screen_or_its_fields(listening: Listening, capsys: pytest.CaptureFixture[str]) -> None:
    options = TopOptions(listening.address, True, True, 5.0)
    once(listening, options)
    printed = json.loads(capsys.readouterr().out)
    assert printed == fields(listening.model, listening.now)
    once(listening, replace(options, json=False))
    lines = capsys.readouterr().out.splitlines()
    assert any("Total 6 worker(s)" in line for line in lines)
    assert any("vm:2-105" in line for line in lines)


def test_once_waits_for_all_tasks(publications: Publications, tmp_path: Path) -> None:
    listening = Listening(Address(path=str(tmp_path / "nobody")))
    listening.model = publications.model_of(publications.status(snapshot=True))
    with closing(listening), pytest.raises(NoStatusError):
        once(listening, TopOptions(listening.address, True, False, 0.05))


def test_once_without_a_status_is_an_error(tmp_path: Path) -> None:
    listening = Listening(Address(path=str(tmp_path / "nobody")))
    with pytest.raises(NoStatusError, match=r"nothing answers at ipc://"):
        once(listening, TopOptions(listening.address, True, False, 0.05))
    listening.close()


def test_what_another_version_publishes_is_told_of(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "other"))
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(str(address))
        listening = Listening(address)
        assert publisher.recv()[:1] == b"\x01"
        publisher.send_multipart([b"", bytes(8), b"of another version"])
        with pytest.raises(
            NoStatusError, match=r"cannot be read \(1 malformed message came\): use the scheduler's version of Scaler"
        ):
            once(listening, TopOptions(address, True, False, 30.0))
        listening.close()


def test_a_scheduler_of_another_version_that_takes_the_place_of_one_is_not_called_silent_alone(
    publications: Publications, clock: FakeTime, tmp_path: Path
) -> None:
    address = Address(path=str(tmp_path / "upgraded"))
    with closing(Publisher()) as publisher, closing(Listening(address, clock)) as listening:
        publisher.bind(address)
        wait_until(publisher.joined, "it listens")
        known = [HEADER.pack(1, 0), *encode(replace(publications.status(), snapshot=True))]
        publisher.send(known)
        wait_until(lambda: looked(listening).model.status, "a status is heard")
        publisher.send([bytes(8), b"of another version"])
        clock.now += 12
        wait_until(lambda: looked(listening).misfit, "what cannot be read is noticed")
        assert listening.findings()[0].text == (
            f"The scheduler tcp://127.0.0.1:2345 has been silent for 12.0 s: what {address} publishes cannot be read "
            "(1 malformed message came): use the scheduler's version of Scaler, and the address of its monitor; "
            "before that:"
        )
        publisher.send(known)
        wait_until(lambda: not looked(listening).misfit, "a status is heard again")
        clock.now += 1
        assert "silent" not in listening.findings()[0].text


@pytest.mark.parametrize(
    ("count", "written"),
    [(0, "0b"), (999, "999b"), (136_419_738, "130.1m"), (10**6, "976.6k"), (5 * 1024**4, "5120.0g")],
)
def test_bytes(count: int, written: str) -> None:
    assert text_view.size(count) == written


@pytest.mark.parametrize(("seconds", "written"), [(5e-5, "50us"), (0.0007, "0.7ms"), (2.5, "2.5s")])
def test_durations(seconds: float, written: str) -> None:
    assert text_view.duration(seconds) == written


def test_equal_figures_are_in_the_order_of_names() -> None:
    workers: list[dict[str, Any]] = [
        {"worker": name, "cpu": 1.0, "name": "", "state": "", "capabilities": ""} for name in "bca"
    ]
    assert [row["worker"] for row in View().rows({"workers": workers})] == ["a", "b", "c"]
