"""Profiles as flame graph, table, collapsed stacks and speedscope; whatever tasks have written into them."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from scaler_protocol.operations import ProfilePart
from scaler_ui.model.stack_profile import DEPTH, StackProfile


def profile_of(*stacks: tuple[str, int]) -> StackProfile:
    profile = StackProfile()
    names, counts = zip(*stacks, strict=True) if stacks else ((), ())
    profile.add(ProfilePart(1, names, counts, 2))
    return profile


def test_parts_of_hosts_are_added_up() -> None:
    profile = StackProfile()
    profile.add(ProfilePart(1, ["f;a;b", "f;a"], [6, 3], 4, left=1))
    assert not profile.is_complete
    profile.add(ProfilePart(1, ["f;a;b", "f;c"], [1, 10], 4, problem="1 host did not answer"))
    assert profile.is_complete and profile.problems == ["1 host did not answer"]
    assert profile.summary == "20 samples of 8 workers"
    assert profile.hottest() == [("c", 10, 10), ("b", 7, 7), ("a", 3, 10)]
    assert profile.as_text().splitlines()[-1] == " 15.0%   50%  a"
    assert profile.as_collapsed() == "f;a 3\nf;a;b 7\nf;c 10\n"


def test_an_empty_profile_names_the_function_that_was_asked_for() -> None:
    assert StackProfile().summary == "no task was seen running"
    assert StackProfile("Jobs:\x1b").as_text() == "no task of Jobs:\\x1b was seen running\n"


def test_speedscope_reads_frames_by_their_numbers() -> None:
    written = json.loads(profile_of(("f;a;b", 6), ("f;a", 3)).as_speedscope())
    names = [frame["name"] for frame in written["shared"]["frames"]]
    [sampled] = written["profiles"]
    assert [[names[at] for at in stack] for stack in sampled["samples"]] == [["f", "a", "b"], ["f", "a"]]
    assert (sampled["weights"], sampled["startValue"], sampled["endValue"]) == ([6, 3], 0, 9)


def test_frames_are_as_wide_as_their_share_and_below_their_callers() -> None:
    svg = ElementTree.fromstring(profile_of(("f;a;b", 6), ("f;a", 2), ("g", 2)).as_svg())
    frames = {frame.findtext("text"): frame for frame in svg}
    assert [float(frames[name].get("data-width", "")) for name in ("all", "f", "a", "b", "g")] == [
        1,
        0.8,
        0.8,
        0.6,
        0.2,
    ]
    assert [int(frames[name].get("y", "")) for name in ("all", "f", "a", "b")] == [0, 18, 36, 54]
    assert (
        float(frames["g"].get("data-left", "")) == 0.8 and frames["b"].findtext("title") == "b: 6 of 10 samples, 60.0%"
    )


def test_what_tasks_have_written_is_shown_as_text() -> None:
    odd = profile_of(("<script>alert(1)</script>;\x1b[31m\x00;'\"&", 1), (";".join("x" * 400), 5))
    page = odd.as_html("<b>", "zoom()")
    assert page.count("<script>") == 1 and "<b>" not in page and "\x1b" not in page + odd.as_text() + odd.as_collapsed()
    assert re.search(r"&lt;script&gt;alert", page)
    ElementTree.fromstring(odd.as_svg())
    assert max(map(len, odd.counts)) == DEPTH
    json.loads(odd.as_speedscope())


def test_a_profile_without_samples_says_so() -> None:
    empty = profile_of()
    assert empty.as_text() == "no task was seen running\n" and empty.hottest() == []
    ElementTree.fromstring(empty.as_svg())
    json.loads(empty.as_speedscope())
