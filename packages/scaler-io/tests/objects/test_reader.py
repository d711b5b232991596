"""ObjectReader: which downloads are begun for one `get`, over a link whose answers the test gives."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from scaler_io.objects.host_objects import HostObjects
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.operations import Download, Operation
from scaler_io.objects.reader import ObjectReader
from scaler_io.objects.storage_link import StorageLink
from scaler_protocol.errors import ObjectNotFoundError, ScalerError, StorageFullError
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import ObjectPart

SMALL = Reference(b"s" * 16, 5)
BIG = Reference(b"b" * 16, SHARED_BYTES)
Answer = Callable[[Download], None]


class AnsweredLink:
    """A StorageLink on which each download gets the next answer."""

    def __init__(self, near: bool = False) -> None:
        self.lock = threading.RLock()
        self.mappings = Mappings(lambda: None)
        self.near = near
        self.answers: list[Answer] = []
        self.begun: list[Download] = []

    def start(self, operation: Operation) -> None:
        assert isinstance(operation, Download)
        self.begun.append(operation)

    def run(self, operation: Operation, deadline: float) -> None:
        self.start(operation)
        self.answers.pop(0)(self.begun[-1])
        operation.wait(deadline)


class HostWith:
    """A HostObjects that has one mapping, or no room."""

    def __init__(self, mapping: mmap.mmap | None) -> None:
        self.mapping = mapping
        self.fetched: list[tuple[Reference, int]] = []

    def fetch(self, reference: Reference, version: int, deadline: float) -> mmap.mmap | None:
        self.fetched.append((reference, version))
        return self.mapping


@pytest.fixture
def mapping() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, SHARED_BYTES) as made:
        yield made


def reader_on(link: AnsweredLink, host: HostWith | None = None) -> ObjectReader:
    return ObjectReader(cast(StorageLink, link), cast(HostObjects | None, host))


def arrive(download: Download, version: int = 1) -> None:
    """The whole object comes in one part."""
    size = 0 if download.looking else download.reference.size
    parts = Payloads.cut(bytes(size), [size])
    download.begin("")
    download.asked = download.count
    download.answer(
        0, ObjectPart(download.reference.object, True, download.reference.size, parts=parts, version=version)
    )
    download.answered = download.count
    download.finish()


def fail(error: ScalerError | OSError) -> Answer:
    def answer(download: Download) -> None:
        download.error = error
        download.over.set()

    return answer


def rewritten(download: Download) -> None:
    """The object is written anew after the first part: the download ends without a payload."""
    download.finish()


@pytest.mark.parametrize("error", [StorageFullError("no memory"), OSError(errno.EMFILE, "no descriptor")])
def test_what_can_not_be_mapped_is_copied(error: ScalerError | OSError) -> None:
    link = AnsweredLink(near=True)
    link.answers = [fail(error), arrive]
    assert reader_on(link).get(BIG, 1.0) == bytes(SHARED_BYTES)
    assert [download._may_map for download in link.begun] == [True, False]


def test_other_errors_are_raised() -> None:
    link = AnsweredLink(near=True)
    for error in (ObjectNotFoundError("gone"), OSError(errno.EACCES, "not ours")):
        link.answers = [fail(error)]
        with pytest.raises(type(error)):
            reader_on(link).get(BIG, 1.0)


def test_an_object_that_is_written_anew_is_downloaded_again() -> None:
    link = AnsweredLink()
    link.answers = [rewritten, arrive]
    assert reader_on(link).get(SMALL, 1.0) == bytes(5) and len(link.begun) == 2


PARTS = Reference(b"p" * 16, 2 * PART_BYTES + 1)
CONTENT = b"a" * PART_BYTES + b"b" * PART_BYTES + b"c"


def parts_arrive(*order: int) -> Answer:
    """The answers to the requests for the parts, in this order; a restart of the server after the last one."""

    def answer(download: Download) -> None:
        download.begin("")
        download.asked = download.count
        for index in order:
            part = CONTENT[index * PART_BYTES : (index + 1) * PART_BYTES]
            message = ObjectPart(PARTS.object, True, PARTS.size, Payloads([part]), version=1)
            download.answer(index, message)
            download.answered += 1
        download.restart()
        for index in range(download.asked, download.count):
            part = CONTENT[index * PART_BYTES : (index + 1) * PART_BYTES]
            download.answer(index, ObjectPart(PARTS.object, True, PARTS.size, Payloads([part]), version=1))
        download.answered = download.count
        download.finish()

    return answer


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2), (0, 2), (1,), ()])
def test_parts_are_joined_in_the_order_of_the_object(order: tuple[int, ...]) -> None:
    link = AnsweredLink()
    link.answers = [parts_arrive(*order), parts_arrive(0, 1, 2)]
    assert reader_on(link).get(PARTS, 1.0) == CONTENT


def test_the_next_get_uses_what_arrived_after_a_timeout() -> None:
    link = AnsweredLink()
    reader = reader_on(link)
    link.answers = [lambda download: None]
    with pytest.raises(TimeoutError):
        reader.get(SMALL, 0.01)
    arrive(link.begun[0])
    assert reader.get(SMALL, 1.0) == bytes(5) and len(link.begun) == 1


def test_a_failed_prefetch_is_downloaded_again() -> None:
    link = AnsweredLink()
    reader = reader_on(link)
    reader.get_soon([SMALL])
    fail(ObjectNotFoundError("gone"))(link.begun[0])
    link.answers = [arrive]
    assert reader.get(SMALL, 1.0) == bytes(5) and len(link.begun) == 2


def test_what_is_forgotten_is_not_found_any_more(mapping: mmap.mmap) -> None:
    link = AnsweredLink(near=True)
    reader = reader_on(link)
    link.mappings.share(BIG.object, mapping)
    assert reader.get(BIG, 1.0).obj is mapping  # type: ignore[union-attr]
    reader.get_soon([SMALL])
    reader.forget([BIG.object, SMALL.object])
    link.answers = [arrive, arrive]
    assert reader.get(BIG, 1.0) == bytes(SHARED_BYTES) and reader.get(SMALL, 1.0) == bytes(5)
    assert len(link.begun) == 3


def test_a_big_object_is_mapped_from_the_cache_of_the_host(mapping: mmap.mmap) -> None:
    link, host = AnsweredLink(), HostWith(mapping)
    reader = reader_on(link, host)
    link.answers = [lambda download: arrive(download, version=7)]
    for _ in range(2):  # the second one finds the mapping
        assert reader.get(BIG, 1.0).obj is mapping  # type: ignore[union-attr]
    assert host.fetched == [(BIG, 7)] and [download.looking for download in link.begun] == [True]


def test_without_room_in_the_cache_a_big_object_is_downloaded() -> None:
    link, host = AnsweredLink(), HostWith(None)
    link.answers = [arrive, arrive, arrive]
    reader = reader_on(link, host)
    assert reader.get(BIG, 1.0) == bytes(SHARED_BYTES) and reader.get(SMALL, 1.0) == bytes(5)
    assert [download.looking for download in link.begun] == [True, False, False] and len(host.fetched) == 1
