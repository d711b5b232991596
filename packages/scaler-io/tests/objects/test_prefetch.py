"""Prefetch: what is begun before it is asked for, and what is given up."""

from __future__ import annotations

from scaler_io.objects.operations import Deletion, Download
from scaler_io.objects.prefetch import COPIED_BYTES, MAPPED_BYTES, Prefetch
from scaler_protocol.limits import DELETED_TOGETHER
from scaler_protocol.objects import SHARED_BYTES, Reference
from scaler_protocol.storage import DeleteObjects


def references(count: int, size: int) -> list[Reference]:
    return [Reference(bytes([number]) * 16, size) for number in range(count)]


def begun(downloads: list[Download]) -> list[Reference]:
    return [download.reference for download in downloads]


def test_nothing_new_is_begun_before_half_is_taken() -> None:
    ahead, objects = Prefetch(), references(20, 1000)
    assert begun(ahead.begin(objects[:8], near=True, may_map=True)) == objects[:8]
    for number in range(3):
        taken = ahead.take(objects[number])
        assert taken is not None and taken.reference == objects[number] and ahead.take(objects[number]) is None
        assert not ahead.begin(objects[number + 1 : number + 9], near=True, may_map=True)
    assert ahead.take(objects[3]) is not None
    assert begun(ahead.begin(objects[4:12], near=True, may_map=True)) == objects[8:12]


def test_as_much_is_begun_as_fits() -> None:
    big, small = references(10, MAPPED_BYTES // 4), references(40, COPIED_BYTES // 10)
    assert begun(Prefetch().begin(big, near=True, may_map=True)) == big[:4]
    assert not Prefetch().begin(big, near=False, may_map=True)
    assert not Prefetch().begin(big, near=True, may_map=False)  # there are too many mappings: it would be a copy
    assert begun(Prefetch().begin(small, near=False, may_map=True)) == small[:10]


def test_what_a_host_fetches_together_is_not_copied_by_each_process() -> None:
    big, small = references(4, SHARED_BYTES), [Reference(bytes([100 + number]) * 16, 1000) for number in range(4)]
    following = [each for pair in zip(big, small, strict=True) for each in pair]
    assert begun(Prefetch(shared=True).begin(following, near=False, may_map=True)) == small
    assert begun(Prefetch(shared=True).begin(following, near=True, may_map=True)) == following
    assert begun(Prefetch().begin(following, near=False, may_map=True)) == following


def test_what_was_passed_over_stays_as_long_as_there_is_room() -> None:
    ahead, objects = Prefetch(), references(24, COPIED_BYTES // 12)
    first = ahead.begin(objects[:4], near=False, may_map=True)
    assert begun(ahead.begin(objects[3:9], near=False, may_map=True)) == objects[4:9]
    assert not any(download.over.is_set() for download in first)
    assert begun(ahead.begin(objects[12:20], near=False, may_map=True)) == objects[12:20]
    assert all(download.over.is_set() for download in first) and ahead.take(objects[0]) is None


def test_what_will_not_be_asked_for_is_given_up() -> None:
    ahead, objects = Prefetch(), references(4, 1000)
    downloads = ahead.begin(objects, near=True, may_map=True)
    ahead.give_up([objects[1].object, b"unknown"])
    assert [download.over.is_set() for download in downloads] == [False, True, False, False]
    assert ahead.take(objects[1]) is None and ahead.take(objects[3]) is downloads[3]


def test_deletions_of_a_session_are_said_together() -> None:
    first = Deletion([b"a"], 1)
    assert first.join(Deletion([b"b", b"c"], 1))
    assert not first.join(Deletion([b"d"], 2)) and not first.join(Deletion([], 1))
    assert not Deletion([], 1).join(Deletion([b"e"], 1))
    assert not first.join(Deletion([bytes([each % 256]) for each in range(DELETED_TOGETHER)], 1))
    assert first.request(0, 1) == DeleteObjects([b"a", b"b", b"c"], 1) and first.over.is_set()
