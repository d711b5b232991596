"""ObjectConnection on the server's host: segments that are written once, mapped, pinned and used again."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scaler_io.objects import connection_thread
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.segments import SegmentWriter, map_segment, read_token
from scaler_io.private_files import SERVER_PREFIX
from scaler_protocol.errors import (
    ClientQuitError,
    ObjectNotFoundError,
    ObjectRefusedError,
    ScalerError,
    StorageFullError,
    StorageLostError,
)
from scaler_protocol.objects import SHARED_BYTES, Reference
from support.processes import run_code
from support.storage_processes import MIB, StorageProcess
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

DEADLINE = 60
Start = Callable[..., StorageProcess]
Connect = Callable[..., ObjectConnection]


def view(got: bytes | memoryview) -> memoryview:
    assert isinstance(got, memoryview) and got.readonly and got.format == "B"
    return got


def test_what_is_got_is_a_view_of_the_segment(start: Start, connect: Connect) -> None:
    server = start()
    writer, reader = connect(server.address), connect(server.address, session=2)
    content = os.urandom(3 * MIB + 5)
    reference = writer.put([content[:MIB], content[MIB:]])
    got = view(reader.get(reference))
    assert got == content
    [segment] = server.segments
    with open(server.directory / segment, "r+b") as file:
        file.write(b"seen by all")
    assert bytes(got[:11]) == bytes(view(writer.get(reference))[:11]) == b"seen by all"


def test_many_buffers_are_written_one_behind_the_other(start: Start, connect: Connect) -> None:
    connection = connect(start().address)
    pieces = [bytes([index % 251]) * (index % 7) for index in range(100_000)]
    assert connection.get(connection.put(pieces)) == b"".join(pieces)


def test_small_objects_travel(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address)
    assert connection.get(connection.put(b"x" * (SHARED_BYTES - 1))) == b"x" * (SHARED_BYTES - 1)
    assert not server.segments


def test_an_object_is_mapped_once(start: Start, connect: Connect) -> None:
    connection = connect(start().address)
    reference = connection.put(b"x" * MIB)
    first, second = view(connection.get(reference)), view(connection.get(reference))
    assert first.obj is second.obj
    connection.delete([reference])
    with pytest.raises(ObjectNotFoundError):
        connection.get(reference)
    assert first == b"x" * MIB


def test_half_of_the_descriptors_are_left_to_others(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address)
    references = [connection.put(bytes([number]) * SHARED_BYTES) for number in range(100)]
    script = """
        import os, resource, sys
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address
        from scaler_protocol.objects import Reference

        resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
        connection = ObjectConnection(Address.parse(sys.argv[1]), session=2)
        references = [Reference.unpack(bytes.fromhex(word)) for word in sys.argv[2:]]
        got = [connection.get(reference) for reference in references]
        assert [(each[0], len(each)) for each in got] == [(number, references[0].size) for number in range(100)]
        assert sum(isinstance(each, memoryview) for each in got) == 60
        assert len(os.listdir("/proc/self/fd")) < 100
        del got
        assert isinstance(connection.get(references[99]), memoryview)
        connection.close()
        print("done")
    """
    assert run_code(script, str(server.address), *(reference.pack().hex() for reference in references)) == "done\n"


@pytest.mark.parametrize("exhausted", ["descriptors", "mappings"])
def test_what_can_not_be_mapped_is_copied(start: Start, connect: Connect, exhausted: str) -> None:
    server = start()
    connection = connect(server.address)
    references = [connection.put(bytes([number]) * SHARED_BYTES) for number in range(3)]
    script = """
        import mmap, os, resource, sys
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address
        from scaler_protocol.objects import Reference

        connection = ObjectConnection(Address.parse(sys.argv[1]), session=2)
        first, second, third = [Reference.unpack(bytes.fromhex(word)) for word in sys.argv[3:]]
        got = connection.get(first)
        assert isinstance(got, memoryview)
        others = []
        if sys.argv[2] == "descriptors":
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            while True:  # neighbours are one mapping unless they differ
                taken = os.dup(0) if sys.argv[2] == "descriptors" else mmap.mmap(-1, 4096, prot=1 + len(others) % 2)
                others.append(taken)
        except OSError:
            pass
        copied = connection.get(second)
        assert bytes(copied[:1]) == b"\\1" and len(copied) == second.size
        if sys.argv[2] == "descriptors":
            assert isinstance(copied, bytes)
            for taken in others:
                os.close(taken)
        others.clear()
        assert isinstance(connection.get(third), memoryview)
        connection.close()
        print("done")
    """
    assert (
        run_code(script, str(server.address), exhausted, *(reference.pack().hex() for reference in references))
        == "done\n"
    )


def test_a_segment_is_used_again_when_nothing_of_it_is_used_any_more(start: Start, connect: Connect) -> None:
    server = start()
    writer, reader = connect(server.address), connect(server.address, session=2)
    reference = writer.put(b"1" * MIB)
    part = view(reader.get(reference))[5:10]
    writer.delete([reference])
    other = writer.put(b"2" * MIB)
    assert len(server.segments) == 2 and bytes(part) == b"11111"
    del part
    reader.delete([Reference(b"0" * 16, 1)])  # a turn of its thread: pins go in order with what comes next
    with pytest.raises(ObjectNotFoundError):
        reader.get(reference)
    third = writer.put(b"3" * MIB)
    assert len(server.segments) == 2
    assert writer.get(other) == b"2" * MIB and writer.get(third) == b"3" * MIB


def test_a_thousand_rounds_leave_one_free_segment_and_its_server_none(start: Start, connect: Connect) -> None:
    server = start("--memory-limit", str(64 * MIB))
    writer, reader = connect(server.address), connect(server.address, session=2)
    for number in range(1000):
        reference = writer.put(number.to_bytes(4, "little") * (SHARED_BYTES // 4))
        assert view(reader.get(reference))[-4:] == number.to_bytes(4, "little")
        writer.delete([reference])
    wait_until(lambda: len(server.segments) <= 3)
    writer.close()
    reader.close()
    directory = server.directory
    server.end()
    assert not directory.exists()


def test_a_put_that_does_not_wait(start: Start, connect: Connect) -> None:
    connection = connect(start("--memory-limit", str(8 * MIB)).address)
    ended = threading.Event()
    outcomes: dict[int, ScalerError | None] = {}

    def put(number: int, content: bytes | Sequence[bytes]) -> Reference:
        def done(error: ScalerError | None) -> None:
            outcomes[number] = error
            if len(outcomes) == 4:
                ended.set()

        return connection.put_soon(content, done=done)

    references = [put(0, b"small"), put(1, [b"b" * MIB, b"ig"]), put(2, b"x" * (9 * MIB)), put(3, b"")]
    assert ended.wait(DEADLINE)
    assert isinstance(outcomes.pop(2), StorageFullError)
    assert outcomes == {0: None, 1: None, 3: None}
    assert [bytes(connection.get(references[number])) for number in (0, 1, 3)] == [b"small", b"b" * MIB + b"ig", b""]
    connection.close()
    with pytest.raises(ClientQuitError):
        connection.put_soon(b"x", done=print)


def begin_ahead(connection: ObjectConnection, following: Sequence[Reference]) -> None:
    """Have these read ahead, and wait until all are here."""
    connection.get_soon(following)
    begun = list(connection._reader._ahead._begun.values())
    assert [download.reference for download in begun] == following
    assert all(download.over.wait(DEADLINE) for download in begun)


def test_what_is_read_ahead_is_here_when_it_is_asked_for(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address)
    contents = [os.urandom(size) for size in (100_000, MIB, 1, 3 * MIB, SHARED_BYTES - 1, SHARED_BYTES)]
    references = [connection.put(content) for content in contents]
    begin_ahead(connection, references)
    server.process.send_signal(signal.SIGSTOP)
    assert [connection.get(reference) for reference in references] == contents
    server.process.send_signal(signal.SIGCONT)
    assert connection.get(references[0]) == contents[0]


@pytest.mark.parametrize("by_name", [True, False])
def test_what_is_read_ahead_and_deleted_is_not_found(start: Start, connect: Connect, by_name: bool) -> None:
    server = start()
    connection = connect(server.address)
    references = [connection.put(bytes(size)) for size in (100_000, MIB)]
    begin_ahead(connection, references)
    if by_name:
        connection.delete(references)
    else:
        connection.clear()
    for reference in references:
        with pytest.raises(ObjectNotFoundError):
            connection.get(reference)
    wait_until(lambda: len(server.segments) == 1)  # which is free
    connection.delete([connection.put(bytes(MIB))])
    assert len(server.segments) == 1


def test_what_could_not_be_read_ahead_is_asked_for_again(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address, timeout_seconds=2)
    here, gone = connection.put(bytes(MIB)), Reference(b"?" * 16, MIB)
    begin_ahead(connection, [gone, here])
    with pytest.raises(ObjectNotFoundError):
        connection.get(gone)
    assert connection.get(here) == bytes(MIB)
    server.process.send_signal(signal.SIGSTOP)
    connection.get_soon([here])
    server.kill()
    with pytest.raises(StorageLostError):
        connection.get(here)


def test_a_forked_process_reads_for_itself_what_its_parent_reads_ahead(start: Start) -> None:
    script = """
        import os, signal, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: fork with threads
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address

        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        reference = connection.put(b"1" * 100_000)
        server = int(sys.argv[2])
        os.kill(server, signal.SIGSTOP)
        connection.get_soon([reference])  # on the way when the other one begins
        if not os.fork():
            os.kill(server, signal.SIGCONT)
            os._exit(0 if connection.get(reference) == b"1" * 100_000 else 1)
        assert os.wait()[1] == 0
        assert connection.get(reference) == b"1" * 100_000
        connection.close()
        print("done")
    """
    server = start()
    assert run_code(script, str(server.address), str(server.process.pid)) == "done\n"


def test_what_is_raised_by_who_is_told_harms_nobody(
    start: Start, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(start().address)

    def done(error: ScalerError | None) -> None:
        raise ValueError("in the callback")

    reference = connection.put_soon(b"x", done=done)
    assert connection.get(connection.put(b"y")) == b"y" and connection.get(reference) == b"x"
    assert "the callback for object" in caplog.text and "in the callback" in caplog.text


def test_a_lost_server_ends_puts_that_do_not_wait(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address, timeout_seconds=0.5)
    connection.open()
    server.process.send_signal(signal.SIGSTOP)
    errors: list[ScalerError | None] = []
    ended = threading.Event()

    def done(error: ScalerError | None) -> None:
        errors.append(error)
        if len(errors) == 2:
            ended.set()

    for _ in range(2):
        connection.put_soon(b"x" * MIB, done=done)
    server.kill()
    assert ended.wait(DEADLINE)
    assert all(isinstance(error, StorageLostError) for error in errors)


def test_a_wrong_proof_is_refused(start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_thread, "read_token", lambda directory: b"guessed" * 4)
    connection = connect(start().address)
    with pytest.raises(ObjectRefusedError, match="AllocateObject came before a HostProof"):
        connection.put(b"x" * MIB)
    assert connection.get(connection.put(b"small")) == b"small"
    with pytest.raises(ObjectRefusedError, match="MapObject came before a HostProof"):
        connection.get(Reference(b"x" * 16, MIB))


def test_the_directory_is_for_its_owner_alone(start: Start) -> None:
    server = start()
    assert server.directory.stat().st_mode & 0o777 == 0o700
    assert (server.directory / "token").stat().st_mode & 0o777 == 0o600
    assert len(read_token(str(server.directory))) == 32


def test_views_outlive_server_and_connection(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address, timeout_seconds=0.2)
    reference = connection.put(b"1" * MIB)
    got = view(connection.get(reference))
    server.kill()
    again = start(address=str(server.address))
    assert not again.segments and len(list(again.directory.parent.iterdir())) == 1  # of the killed one nothing is left
    with pytest.raises(ObjectNotFoundError):
        connect(again.address).get(reference)
    assert connect(again.address).put(b"2" * MIB)
    connection.close()
    assert got == b"1" * MIB


def test_a_forked_process_may_keep_what_its_parent_gives_back(start: Start, connect: Connect) -> None:
    server = start()
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: fork with threads
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address

        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        reference = connection.put(b"1" * 1_000_000)
        got = connection.get(reference)
        go, gone = os.pipe()
        if not os.fork():
            os.close(gone)
            os.read(go, 1)
            os._exit(0 if got == b"1" * 1_000_000 else 1)
        del got
        connection.delete([reference])
        for number in range(3):
            connection.delete([connection.put(b"2" * 1_000_000)])
        os.close(gone)
        assert os.wait()[1] == 0
        connection.close()
        print("done")
    """
    assert run_code(script, str(server.address)) == "done\n"


HOLDER = """
    import os, sys
    from scaler_io.objects.connection import ObjectConnection
    from scaler_io.objects.operations import Upload
    from scaler_protocol.addresses import Address
    from scaler_protocol.objects import Reference

    connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
    if sys.argv[2] == "read":
        got = connection.get(Reference.unpack(bytes.fromhex(sys.argv[3])))
    else:
        Upload.write = lambda upload, limit: None  # for ever in the middle
        connection.put_soon(bytes(1_000_000), done=print)
        while not connection._thread._multiplexer._writing:
            pass
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("doing", ["read", "write"])
def test_a_killed_process_gives_back_what_it_had(start: Start, connect: Connect, doing: str) -> None:
    server = start("--memory-limit", str(4 * MIB), "--client-timeout-seconds", "1000")
    connection = connect(server.address)
    reference = connection.put(b"1" * 1_000_000)
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(server.address), doing, reference.pack().hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as replica_server:
        assert replica_server.stdout is not None and replica_server.stdout.readline() == b"ready\n"
        if doing == "read":
            connection.delete([reference])
        with pytest.raises(StorageFullError):
            connection.put(bytes(3_500_000))
        replica_server.kill()
    if doing == "write":
        connection.delete([reference])
    wait_until(lambda: is_stored(connection, bytes(3_500_000)))  # its lock is free, whatever its connection says
    assert len(list((server.directory / "peers").iterdir())) == 1


def is_stored(connection: ObjectConnection, content: bytes) -> bool:
    try:
        return bool(connection.put(content))
    except StorageFullError:
        return False


def test_an_interrupted_put_is_no_segment_for_others(start: Start, connect: Connect) -> None:
    server = start()
    script = """
        import os, signal, sys
        from scaler_io.objects.connection import ObjectConnection
        from scaler_io.objects.operations import Upload
        from scaler_protocol.addresses import Address

        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background begin without
        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        write = Upload.write

        def interrupted(upload, limit):
            Upload.write = slow
            os.kill(os.getpid(), signal.SIGINT)
            write(upload, 4096)

        def slow(upload, limit):
            write(upload, 4096)

        for round in range(3):
            Upload.write = interrupted
            try:
                connection.put(b"1" * (1 << 20))
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("it was not interrupted")
            Upload.write = write
            reference = connection.put(b"2" * (1 << 20))
            assert connection.get(reference) == b"2" * (1 << 20)
            connection.delete([reference])
        connection.close()
        print("done")
    """
    assert run_code(script, str(server.address)) == "done\n"
    wait_until(lambda: len(server.segments) <= 1)


@pytest.mark.soak
def test_an_object_of_3_gib(start: Start, connect: Connect) -> None:
    server = start()
    connection = connect(server.address)
    block = os.urandom(256 * MIB)
    reference = connection.put([*[block] * 12, b"end"])
    got = view(connection.get(reference))
    assert len(got) == reference.size == 3 * 2**30 + 3
    assert got[-MIB:] == block[3 - MIB :] + b"end"


# --- parts ----------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_no_token_and_no_segment(tmp_path: Path) -> None:
    assert read_token("") == read_token(str(tmp_path)) == b""
    with pytest.raises(ObjectNotFoundError, match="segment is gone"):
        map_segment(str(tmp_path), "1", 10)
    with pytest.raises(StorageLostError, match="segment is gone"):
        SegmentWriter(str(tmp_path), "1", [])


def make_segment(directory: Path, content: bytes) -> None:
    """A segment with the name 1."""
    (directory / "1").touch(mode=0o600)
    (directory / "1").write_bytes(content)


def make_directory(parent: Path, name: str = f"{SERVER_PREFIX}x", token: bytes = b"t" * 32) -> Path:
    """A segment directory of ours, as a server makes it."""
    made = parent / name
    made.mkdir(mode=0o700)
    (made / "token").touch(mode=0o600)
    (made / "token").write_bytes(token)
    return made


def make_fifo(made: Path) -> None:
    """Instead of the token: who opens it waits for ever."""
    (made / "token").unlink()
    os.mkfifo(made / "token", 0o600)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.rename(made.with_name("another-name")),
        lambda made: made.chmod(0o755),
        lambda made: (made / "token").chmod(0o640),
        lambda made: (made / "token").write_bytes(b"t" * 33),
        lambda made: (made / "token").write_bytes(b"short"),
        lambda made: (made / "second").hardlink_to(made / "token"),
        lambda made: (made / "token").rename(made / "real") and (made / "token").symlink_to("real"),
        make_fifo,
        lambda made: (made.rename(made.with_name("real")), made.symlink_to("real")),
    ],
)
def test_no_token_is_read_where_no_server_of_ours_has_put_it(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    made = make_directory(tmp_path)
    assert read_token(str(made)) == b"t" * 32
    spoil(made)
    for directory in (made, made.with_name("another-name")):
        assert read_token(str(directory)) == b""


def test_a_directory_that_is_no_path_is_not_looked_at() -> None:
    assert read_token("relative") == read_token("/a\0b") == read_token("") == b""


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../1", "a/b", "1\n", "G", "token", "-1", "1" * 17])
def test_no_segment_has_such_a_name(name: str, tmp_path: Path) -> None:
    make_segment(tmp_path, bytes(10))
    with pytest.raises(ObjectRefusedError, match="not a hexadecimal number"):
        map_segment(str(tmp_path), name, 10)
    with pytest.raises(ObjectRefusedError, match="not a hexadecimal number"):
        SegmentWriter(str(tmp_path), name, [])


def test_a_segment_is_a_file_of_ours_alone(tmp_path: Path) -> None:
    make_segment(tmp_path, b"mine" + bytes(6))
    (tmp_path / "2").symlink_to(tmp_path / "1")
    (tmp_path / "3").hardlink_to(tmp_path / "1")
    for name in ("1", "2", "3"):
        with pytest.raises(OSError, match=r"a second name \(a hard link\)|it is a symbolic link"):
            map_segment(str(tmp_path), name, 10)
        with pytest.raises(ObjectRefusedError, match="cannot be written"):
            SegmentWriter(str(tmp_path), name, [memoryview(b"over")])
    assert (tmp_path / "1").read_bytes()[:4] == b"mine"


def test_a_writer_writes_slice_by_slice(tmp_path: Path) -> None:
    make_segment(tmp_path, bytes(12))
    writer = SegmentWriter(str(tmp_path), "1", [memoryview(each) for each in (b"abc", b"defgh", b"", b"ij")])
    assert [writer.write(4) for _ in range(3)] == [False, False, True]
    writer.close()
    writer.close()
    assert (tmp_path / "1").read_bytes() == b"abcdefghij\0\0"


def test_a_full_memory_is_an_error_of_its_own(tmp_path: Path) -> None:
    make_segment(tmp_path, b"")
    writer = SegmentWriter(str(tmp_path), "1", [memoryview(b"x")])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file)
    os.close(full)
    with pytest.raises(StorageFullError, match="memory for segments is full"):
        writer.write(1)
    writer.close()


def test_pins_are_given_back_once_per_mapping(tmp_path: Path) -> None:
    make_segment(tmp_path, b"x" * 10)
    woken: list[int] = []
    mappings = Mappings(lambda: woken.append(1))
    first = mappings.keep(b"n", map_segment(str(tmp_path), "1", 10), 7)
    second = mappings.keep(b"n", map_segment(str(tmp_path), "1", 10), 8)
    assert second is first and mappings.find(b"n", 10) is first and mappings.find(b"n", 9) is None
    gc.collect()
    returned = mappings.returned()
    assert returned is not None and (returned.pins, returned.inherited) == ([8], [])
    mappings.mark_inherited()
    part = memoryview(first)[3:]
    del first, second
    assert mappings.returned() is None and part == b"x" * 7
    del part
    returned = mappings.returned()
    assert returned is not None and (returned.pins, returned.inherited) == ([], [7])
    assert mappings.find(b"n", 10) is None and woken == [1, 1]
