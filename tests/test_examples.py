"""Every example runs as a program of its own and says what it should."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from support.clusters import LocalCluster
from support.processes import run_script

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LOG_LINE = re.compile(r"\[[A-Z]+\]\d{4}-\d\d-\d\d .*")

EXPECTED = {
    "async_await": r"""
        16
        \[0, 1, 4, 9, 16\]
        25
        cancelled: True
    """,
    "cancel_tasks": r"""
        \[0\.1\]
        \[True, True, True\] within no time
        cancelled
        \[0\.01, 0\.02\]
        False 0\.1
    """,
    "capabilities": r"""
        3
        \[1, 2\]
        done: False
    """,
    "clear_and_disconnect": r"""
        cancelled: True
        still there: 1
        ClientQuitError: .*
        shut down
    """,
    "custom_serializer": r"""
        3
        price +amount
        3\.0 +20
        5\.0 +40
    """,
    "executor": r"""
        True
        \[2, 3, 5, 7, 11, 13, 17, 19, 23, 29\]
        False
    """,
    "futures_as_arguments": r"""
        totals: day 1 6, day 2 9, day 3 12
        ZeroDivisionError\('division by zero'\)
        cancelled with its argument.*
    """,
    "graph_in_a_task": r"""
        21
    """,
    "graphs": r"""
        {'e': 1}
        True {'a': 2, 'b': 2, 'c': 3, 'd': 4, 'e': 1}
        {'d': 4, 'e': 1}
    """,
    "local_cluster": r"""
        True
        3
        True True
        stopped
    """,
    "map_items": r"""
        661\.46
        \[10, 40, 90\]
        \[8, 9\]
        661\.46
        FutureWarning
        ValueError: math domain error|ValueError: expected a nonnegative input.*
        \[2\.0, 3\.0\]
    """,
    "nested_tasks": r"""
        21
        30
    """,
    "profile_tasks": r"""
        took \d+\.\d s \([\d,]+ us\), of which 0\.\d s of CPU
        at most \d+ MB of memory
        attempt 1 on .+
    """,
    "progress": r"""
        25 %
        50 %
        75 %
        100 %
        pi is about 3\.1\d
    """,
    "remote_errors": r"""
        order 7
        raised in check
        TaskExitedError
        ResultNotSerializableError
        WorkerDiedError True
        \[2, 4\]
    """,
    "retries_and_timeouts": r"""
        succeeded at attempt 3
        TaskTimeoutError: .*0\.2 s.*
        \['priority 7', 'priority 0', 'priority -1'\]
    """,
    "send_objects": r"""
        2
        \[1, 2, 3\]
        12
    """,
    "submit_tasks": r"""
        4\.0
        Good morning, world!
        661\.46
        greet\(\) missing 1 required positional argument: 'name'
    """,
}


GALLERY = {
    "event_log": r"""
        [\d,]+ events of 6 files; 95 % of the payments within \d\d\d ms
    """,
    "image_tiles": r"""
        4 tiles of 64 x 64 pixels; mean brightness 135
    """,
    "model_search": r"""
        8 fits; best C=\S+ gamma=\S+: 0\.[89]\d+
    """,
    "option_book": r"""
        40 options, 36 tasks
        at 100: value -53\.3, delta -16\.54, gamma -0\.888
    """,
    "web_service": r"""
        8 requests answered; 1,229 primes below 10,000
    """,
    "yield_curve": r"""
        81 calls; the book is worth -118,123
        it loses 3,233 when all rates rise by a basis point
    """,
}

HEAVY = {"event_log", "model_search"}
"""Imports of pandas and scikit-learn, in each worker, take 20 s of CPU."""


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str) -> None:
    check(run_script(EXAMPLES / f"{name}.py"), EXPECTED[name])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in HEAVY else name for name in GALLERY]
)
def test_gallery(name: str, cluster: LocalCluster, tmp_path: Path) -> None:
    picture = tmp_path / "picture"
    words = ("--small", "--address", cluster.address, "--picture", str(picture))
    check(run_script(EXAMPLES / "gallery" / f"{name}.py", *words), GALLERY[name])
    if name == "image_tiles":
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert fromstring(picture.read_text("utf-8")).tag == "{http://www.w3.org/2000/svg}svg"


def check(output: str, patterns: str) -> None:
    """Each line is as expected."""
    said = [line.strip() for line in output.splitlines() if not LOG_LINE.match(line)]
    expected = [line.strip() for line in patterns.strip().splitlines()]
    assert len(said) == len(expected), said
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line), said


def test_the_demo() -> None:
    said = run_script(EXAMPLES / "demo.py")
    assert re.search(r"cluster of 4 workers at tcp://127\.0\.0\.1:\d+, ready after", said)
    assert re.search(r"killed worker process \d+: its task runs again elsewhere", said)
    assert re.search(r"4,800,000 paths in .* s: 7\.1\d+ \+- 0\.00\d+", said)
    assert said.endswith("cluster stopped, its ports are free\n")


def test_every_example_is_listed_and_tested() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    assert files == {*EXPECTED, "demo"}
    index = (EXAMPLES / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| \[(\w+)\.py\]\((\w+)\.py\)", index, re.MULTILINE)) == {(name, name) for name in files}
    gallery = (EXAMPLES.parent / "docs" / "gallery.md").read_text("utf-8")
    assert set(re.findall(r"\(\.\./examples/gallery/(\w+)\.py\)", gallery)) == {*GALLERY}
    assert {path.stem for path in (EXAMPLES / "gallery").glob("*.py")} == {*GALLERY, "drawing", "session"}
    for path in re.findall(r"!\[.*\]\((pictures/\S+)\)", gallery):
        assert (EXAMPLES.parent / "docs" / path).exists()
