"""KV blocks on disk: what comes back is what was written, or it is said that it is not."""

import errno
import os
import queue
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipeline.errors import ConfigError
from pipeline.gpu.kv import disk_file
from pipeline.gpu.kv.disk import DiskKv
from pipeline.gpu.kv.disk_file import NAME_BYTES, PAGE, DiskFile
from pipeline.messages import DiskMove, DiskMoved, DiskMoves, Shelved

BLOCK_BYTES = 5000
NUM_SHELVES = 8
MAX_BYTES = PAGE + NUM_SHELVES * (2 * PAGE + NAME_BYTES)
PURPOSE = b"p" * 32
CONTENT_AT = 3 * PAGE
"""A page of head, two of names."""


def opened(
    path: Path, *, keeps: bool = True, purpose: bytes = PURPOSE, max_bytes: int = MAX_BYTES
) -> DiskFile:
    return DiskFile(path, purpose, BLOCK_BYTES, max_bytes, keeps=keeps)


def name(shelf: int, number: int = 0) -> Shelved:
    return Shelved(shelf, number == 0, b"parent %d" % number, bytes(64), b"%032d" % number)


def content(number: int) -> memoryview:
    return memoryview(bytes([number % 256]) * BLOCK_BYTES)


def read(file: DiskFile, shelf: int, number: int) -> bytes | None:
    buffer = bytearray(BLOCK_BYTES)
    return bytes(buffer) if file.read(shelf, b"%032d" % number, memoryview(buffer)) else None


def test_a_block_comes_back_and_only_as_its_own(tmp_path: Path) -> None:
    file = opened(tmp_path / "kv")
    assert file.num_shelves == NUM_SHELVES
    for shelf in range(NUM_SHELVES):
        assert file.write(shelf, name(shelf, shelf), content(shelf))
    for shelf in range(NUM_SHELVES):
        assert read(file, shelf, shelf) == bytes(content(shelf))
    assert file.num_corrupt == 0
    assert read(file, 3, 4) is None and read(file, 3, 3) is None and file.num_corrupt == 2
    file.close()
    file.close()


def test_it_is_kept_where_asked_for_with_its_secret_and_its_names(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    file = opened(path)
    secret = file.secret
    for number in (5, 0, 3):
        file.write(number, name(number, number), content(number))
    file.write(0, name(0, 7), content(7))
    file.erase(5)
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = opened(path)
    assert again.secret == secret and not again.was_other
    assert again.kept == [name(3, 3), name(0, 7)]
    assert read(again, 0, 7) == bytes(content(7)) and read(again, 3, 3) == bytes(content(3))


def test_it_is_gone_where_not(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    file = opened(path)
    file.write(1, name(1, 1), content(1))
    file.close()
    file = opened(path, keeps=False)
    assert not path.exists() and file.kept == [] and not file.was_other
    assert file.write(1, name(1, 1), content(1)) and read(file, 1, 1) == bytes(content(1))


@pytest.mark.parametrize("other", [{"purpose": b"q" * 32}, {"max_bytes": 2 * MAX_BYTES}])
def test_what_is_of_another_model_or_size_starts_empty(tmp_path: Path, other: dict[str, object]) -> None:
    path = tmp_path / "kv"
    file = opened(path)
    file.write(1, name(1, 1), content(1))
    secret = file.secret
    file.close()
    again = opened(path, **other)  # type: ignore[arg-type]
    assert again.kept == [] and again.was_other and again.secret != secret
    assert read(again, 1, 1) is None


def test_what_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("do not lose this")
    for keeps in (True, False):
        with pytest.raises(ConfigError, match="is a file of something else"):
            opened(path, keeps=keeps)
    assert path.read_text() == "do not lose this"
    with pytest.raises(ConfigError, match=r'device\.disk_kv = ".*no folder.*No such file'):
        opened(tmp_path / "no folder" / "kv")
    with pytest.raises(ConfigError, match=r"disk_kv_memory = 9,000 bytes holds no block"):
        opened(tmp_path / "small", max_bytes=9000)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConfigError, match="link"):
        opened(tmp_path / "link")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path / "kv")
    with pytest.raises(ConfigError, match="another process uses it"):
        opened(tmp_path / "kv")
    first.close()
    opened(tmp_path / "kv").close()


@pytest.mark.parametrize("at", [0, 1, 700, BLOCK_BYTES - 1])
def test_a_flipped_bit_of_a_block_is_seen(tmp_path: Path, at: int) -> None:
    file = opened(tmp_path / "kv")
    file.write(2, name(2, 2), content(2))
    flip(tmp_path / "kv", CONTENT_AT + 2 * 2 * PAGE + at)
    assert read(file, 2, 2) is None and file.num_corrupt == 1
    file.close()
    assert opened(tmp_path / "kv").kept == []


def test_a_flipped_bit_of_a_name_or_of_the_head_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    for at in range(0, 149, 4):
        file = opened(path)
        file.write(2, name(2, 2), content(2))
        file.close()
        flip(path, PAGE + 2 * NAME_BYTES + at)
        again = opened(path)
        assert again.kept == [] and again.num_corrupt == 1
        again.close()
    for at in range(8, 100, 9):
        opened(path).close()
        flip(path, at)
        again = opened(path)
        assert again.kept == [] and again.was_other
        again.close()


def test_a_truncated_file_has_lost_what_it_has_lost(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    file = opened(path)
    for number in range(4):
        file.write(number, name(number, number), content(number))
    file.close()
    os.truncate(path, CONTENT_AT + 2 * 2 * PAGE + 100)
    again = opened(path)
    assert [each.shelf for each in again.kept] == [0, 1, 2, 3]
    assert [read(again, number, number) is not None for number in range(4)] == [True, True, False, False]
    again.close()
    os.truncate(path, 50)
    assert opened(path).kept == []


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    file = opened(tmp_path / "kv")
    file.write(0, name(0, 1), content(1))
    assert not file.write(0, Shelved(0, True, bytes(900), bytes(64), bytes(32)), content(1))
    file.close()
    assert opened(tmp_path / "kv").kept == []


KILLED = """
    import sys
    from pathlib import Path
    from tests.gpu.test_disk_kv import content, name, opened
    file, number = opened(Path(sys.argv[1])), 0
    while True:
        number += 1
        file.write(number % 8, name(number % 8, number), content(number))
        print(number, flush=True)
"""


def test_kill_9_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    for num_written in (5, 60, 200):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < num_written:
                pass
            process.send_signal(signal.SIGKILL)
            last = [int(line) for line in process.stdout if line.endswith("\n")]
        file = opened(path)
        assert file.num_corrupt == 0 and len(file.kept) >= min(num_written, 7)
        for kept in file.kept:
            number = int(kept.key)
            assert number % 8 == kept.shelf and read(file, kept.shelf, number) == bytes(content(number))
        assert int(file.kept[-1].key) >= (last or [num_written])[-1] - 1
        file.close()
        path.unlink()


class Disk:
    """A DiskKv over places of the test's own."""

    def __init__(self, path: Path) -> None:
        self.places = [bytearray(content(number)) for number in range(10)]
        self.kv = DiskKv(opened(path), lambda place: memoryview(self.places[place]), keeps=True)
        self.answers: queue.Queue[DiskMoved] = queue.Queue()
        self.kv.start(self.answers.put)

    def move(self, *moves: tuple[int, int, bool]) -> DiskMoved:
        """Of place, shelf, is_fetch: of the block whose number is the shelf's."""
        made = [
            DiskMove(k, place, shelf, is_fetch, True, b"", bytes(64), b"%032d" % shelf)
            for k, (place, shelf, is_fetch) in enumerate(moves)
        ]
        self.kv.submit(DiskMoves(made))
        return self.answers.get(timeout=10)


def test_moves_there_and_back_in_their_order(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "kv")
    moved = disk.move((1, 1, False), (2, 2, False), (5, 1, True), (6, 2, True), (7, 3, True))
    assert moved.are_good == [True, True, True, True, False] and not moved.fault
    assert disk.places[5] == content(1) and disk.places[6] == content(2) and moved.fetch_ns > 0
    disk.kv.close()
    disk.kv.close()


def test_corruption_is_told_once_a_minute(tmp_path: Path) -> None:
    with capture_logs() as logs:
        disk = Disk(tmp_path / "kv")
        for number in range(1, 4):
            disk.move((number, number, False))
            flip(tmp_path / "kv", CONTENT_AT + number * 2 * PAGE)
            assert disk.move((9, number, True)).are_good == [False]
        disk.kv.close()
    told = [each for each in logs if each["log_level"] == "warning"]
    assert [each["event"] for each in told] == ["KV blocks on disk are not as they were written"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_ends_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    with capture_logs() as logs:
        disk = Disk(tmp_path / "kv")
        assert disk.move((1, 1, False)).are_good == [True]
        monkeypatch.setattr(disk_file.os, "pwrite", fail)
        moved = disk.move((2, 2, False), (5, 1, True))
        assert moved.are_good == [False, False] and moved.fault == os.strerror(code)
        assert disk.move((3, 3, False)).fault == os.strerror(code)
        disk.kv.close()
    assert [each["log_level"] for each in logs].count("error") == 1


def test_a_full_disk_is_an_error_not_a_signal(tmp_path: Path) -> None:
    """With a limit of the file's size for this process, as near to a full disk as a test gets without one."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from tests.gpu.test_disk_kv import Disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        disk = Disk(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        print(disk.move(*((k, k, False) for k in range(6))).are_good)
        disk.kv.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "kv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[True, True, False, False, False, False]"


def flip(path: Path, at: int, change: Callable[[int], int] = lambda byte: byte ^ 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([change(byte[0])]))


@pytest.mark.parametrize("keeps", [False, True])
def test_asked_anew_it_holds_what_was_written_and_is_whole(tmp_path: Path, keeps: bool) -> None:
    """After all moves that it was asked for; what it had found wrong before does not count again."""
    file = opened(tmp_path / "kv", keeps=keeps)
    places = [memoryview(bytearray(content(number))) for number in range(4)]
    mover = DiskKv(file, lambda place: places[place], keeps=keeps)
    answers: queue.SimpleQueue[DiskMoved] = queue.SimpleQueue()
    mover.start(answers.put)
    mover.submit(DiskMoves([DiskMove(k, k, k, False, *name(k, k)[1:]) for k in range(4)]))
    ready = mover.renew()
    assert answers.get_nowait().are_good == [True] * 4, "all moves are answered by then"
    assert [shelved.shelf for shelved in ready.kept] == [0, 1, 2, 3] and ready.num_corrupt == 0
    assert ready.secret == file.secret and ready.num_shelves == NUM_SHELVES
    mover.submit(DiskMoves([DiskMove(9, 0, 3, True, *name(3, 3)[1:])]))
    assert answers.get(timeout=5).are_good == [True] and bytes(places[0]) == bytes(content(3))
    mover.close()
