"""A recording's file: what was written is read; what is damaged, cut off or foreign is said to be."""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any
from zlib import adler32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import StagelineError
from pipeline.messages import Cancel, FinishReason, Grant, Rejected
from pipeline.messages.recorded import SCHEMA, encode, kind_of, written_of
from pipeline.runtime.recording import BATCHES as BATCHES_FRAME
from pipeline.runtime.recording import FRAME, HEADER, MAGIC, VERSION, Batch, Header, Written, read
from pipeline.runtime.recording_file import CHUNK_BYTES, FLUSH_NS, RecordingFile
from pipeline.runtime.recording_frame import frame, seal

HEAD = Header(
    schema=SCHEMA,
    stage="stream",
    links=("ingress->stream",),
    use="pipeline.stages.stream:Stream",
    options={"flush_ms": 5.0},
    model="fake",
    is_redacted=False,
    begun_at="2026-01-02T03:04:05+00:00",
    begin_ns=1_000,
    stageline="0.1.0",
)


def written(message: object, sent_ns: int = 0) -> Written:
    kind = kind_of(message)
    form = written_of(kind)
    return sent_ns, kind, message if form is None else form(message)


BATCHES = (
    Batch(50, 1, [written(Cancel(1, FinishReason.STOP), -3), written(Grant(2, 8), 40)]),
    Batch(90, 0, [written(Grant(3, 9), 80)]),
)


def recorded(path: Path, batches: tuple[Batch, ...] = BATCHES, max_bytes: int = 1 << 20) -> RecordingFile:
    file = RecordingFile(path, HEAD, max_bytes)
    for batch in batches:
        assert file.add(batch)
    file.end("it was stopped", num_lost=2)
    file.join()
    return file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.rec")
    header, entries, end, cut = read(tmp_path / "a.rec")
    assert header == HEAD
    assert [tuple(entry) for entry in entries] == [
        (-3, 50, True, 0, Cancel(1, FinishReason.STOP)),
        (40, 50, False, 0, Grant(2, 8)),
        (80, 90, False, 1, Grant(3, 9)),
    ]
    assert end is not None and (end.reason, end.num_batches, end.num_messages, end.num_lost) == (
        "it was stopped",
        2,
        3,
        2,
    )
    assert not cut
    assert file.num_bytes == (tmp_path / "a.rec").stat().st_size


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    recorded(tmp_path / "a.rec")
    assert (tmp_path / "a.rec").stat().st_mode & 0o777 == 0o600


def test_it_never_grows_past_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    file = RecordingFile(path, HEAD, max_bytes=2000)
    num_added = 0
    while file.add(BATCHES[0]):
        num_added += 1
    assert file.refusal == "it is as large as it may be"
    file.end("it is full", 0)
    file.join()
    assert 1500 < path.stat().st_size <= 2000
    assert len({entry.batch for entry in read(path).entries}) == file.num_batches >= num_added > 2


def test_what_a_killed_server_leaves_is_up_to_half_a_second_old(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    file = RecordingFile(path, HEAD, 1 << 20)
    for taken_ns in (100, 200, FLUSH_NS, FLUSH_NS + 300):
        assert file.add(Batch(taken_ns, 0, [written(Grant(1, 8))]))
    until = monotonic() + 10
    while file._num_written < file._num_given and monotonic() < until:
        sleep(0.001)
    left = read(path)
    assert [entry.taken_ns for entry in left.entries] == [100, 200, FLUSH_NS]
    assert left.end is None and "cut off at byte" in left.cut
    file.end("", 0)
    file.join()
    assert len(read(path).entries) == 4


def test_chunks_are_written_while_it_goes_on(tmp_path: Path) -> None:
    """And many batches in many chunks are read as they were added."""
    path = tmp_path / "a.rec"
    file = RecordingFile(path, HEAD, 1 << 24)
    batches = [
        Batch(number, 0, [written(Rejected(number, "why " * 250, 400, None, None))]) for number in range(800)
    ]
    for batch in batches:
        assert file.add(batch)
    assert file._num_given > 2 * CHUNK_BYTES
    file.end("", 0)
    file.join()
    assert [entry.message.request_id for entry in read(path).entries] == list(range(800))
    assert file.num_bytes == path.stat().st_size


def test_cut_off_anywhere_it_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """As a crash leaves it, whose last bytes may be zeros."""
    path = tmp_path / "a.rec"
    recorded(path)
    whole = path.read_bytes()
    first = len(MAGIC) + FRAME.size + FRAME.unpack_from(whole, len(MAGIC))[0]
    for length in range(first, len(whole)):
        for tail in (b"", bytes(min(40, len(whole) - length))):
            path.write_bytes(whole[:length] + tail)
            _, entries, end, cut = read(path)
            assert end is None
            assert f"cut off at byte {first:,} of" in cut or len(entries) in (2, 3)
            assert len(entries) in (0, 2, 3)
    assert len(entries) == 3


def test_cut_off_in_its_header_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes((MAGIC + seal(frame(HEADER, HEAD)))[:-1])
    with pytest.raises(StagelineError, match=r"a\.rec: ends before its header does"):
        read(path)


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    recorded(path)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"Grant") + 1
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StagelineError, match=r"a\.rec: is damaged at byte \d+: its checksum is not that"):
        read(path)


def test_a_message_that_is_none_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    recorded(path, (BATCHES[1], Batch(1, 0, [(1, "Gossip", {})])))
    with pytest.raises(StagelineError, match=r"a\.rec: is damaged in the frame at byte \d+: 'Gossip' is no"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b", MAGIC[:-1]])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(StagelineError, match="other: is no recording of Stageline's"):
        read(path)


def framed(kind: bytes, body: bytes) -> bytes:
    return FRAME.pack(len(body), adler32(body), kind) + body


def test_one_of_version_1_is_read(tmp_path: Path) -> None:
    """Its messages are strings of bytes."""
    message = Cancel(1, FinishReason.STOP)
    batches = msgspec.msgpack.encode([(50, 1, [(-3, "Cancel", encode(message))])])
    head = seal(frame(HEADER, msgspec.structs.replace(HEAD, version=1)))
    path = tmp_path / "a.rec"
    path.write_bytes(MAGIC + head + framed(BATCHES_FRAME, batches))
    assert [tuple(entry) for entry in read(path).entries] == [(-3, 50, True, 0, message)]


@pytest.mark.parametrize("newer", [{"version": VERSION + 1}, {"version": 0}, {"schema": SCHEMA + 1}])
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, newer: dict[str, int]) -> None:
    """Whatever else is in its header."""
    head: Any = {"version": VERSION, "schema": SCHEMA, "fields": "of another time"} | newer
    path = tmp_path / "a.rec"
    path.write_bytes(MAGIC + seal(frame(HEADER, head)))
    with pytest.raises(
        StagelineError, match=r"a\.rec: is of version \d with messages of schema \d; this Stag"
    ):
        read(path)


def test_a_header_without_a_field_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    head: Any = msgspec.structs.asdict(HEAD)
    del head["stage"]
    path.write_bytes(MAGIC + seal(frame(HEADER, head)))
    with pytest.raises(StagelineError, match=r"a\.rec: is damaged at byte 21: .*`stage`"):
        read(path)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StagelineError, match=r"none\.rec: cannot be read: No such file"):
        read(tmp_path / "none.rec")
    recorded(tmp_path / "a.rec")
    with pytest.raises(StagelineError, match=r"a\.rec: cannot be written: File exists"):
        RecordingFile(tmp_path / "a.rec", HEAD, 1000)


def test_a_disk_that_is_full_is_told(tmp_path: Path) -> None:
    """/dev/full is such a disk."""
    path = tmp_path / "full.rec"
    file = RecordingFile(path, HEAD, 1 << 20)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    os.close(full)
    file.end("", 0)
    file.join()
    assert file.fault == "cannot be written: No space left on device"


BODIES = st.one_of(
    st.binary(max_size=60),
    st.just(b"\xdd\xff\xff\xff\xff"),  # an array of 4 G items
    st.integers(1, 5_000).map(lambda depth: b"\x82\xa1x" + b"\x91" * depth),
    st.recursive(
        st.integers(-9, 9) | st.binary(max_size=4) | st.text(max_size=4), st.lists, max_leaves=8
    ).map(msgspec.msgpack.encode),
)


@given(
    frames=st.lists(st.tuples(st.sampled_from([b"H", b"B", b"E", b"?"]), BODIES), max_size=4),
    begins=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_in_a_file_it_is_read_or_refused(frames: list[tuple[bytes, bytes]], begins: bool) -> None:
    """Its checksums are right, so it is not damaged: somebody made it."""
    made = b"".join(framed(kind, body) for kind, body in frames)
    content = MAGIC + (seal(frame(HEADER, HEAD)) if begins else b"") + made
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.rec"
        path.write_bytes(content)
        with suppress(StagelineError):
            read(path)
