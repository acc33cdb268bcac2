"""DiskFile: one file of shelves, one block each. It reads what was written, or says that it cannot.

  one page  magic, what the file is for, how large, the secret of its keys; a digest of all that
  names     1 KiB a shelf: whose content it holds (messages.Shelved), digests of the name and of the content
  contents  a whole number of pages a shelf

A name is written after its content and taken back before the content changes: so whatever a process was doing
when it was killed, a name that is there is of a whole write; and where the disk itself has lost or changed
something, a digest does not match. Digests are BLAKE2b with the file's own key, over the block's key too: so
what belongs elsewhere does not match. Read and written by pread and pwrite, not by a mapping: there a full
or failing disk is a signal that ends the process (SIGBUS), here it is an OSError.
"""

import fcntl
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from struct import Struct

from pipeline.errors import ConfigError
from pipeline.messages import Shelved

PAGE = 4096
NAME_BYTES = 1024
MAGIC = b"STGLKV01"
DIGEST_BYTES = 16
SECRET_BYTES = 32
_HEAD = Struct(f"<8s32sQQ{SECRET_BYTES}s")
_NAME = Struct("<Q?HH32s")
"""Number of the write, is_first, bytes of parent and of tokens, key."""
_BLANK = bytes(2 * DIGEST_BYTES)
_MAX_TEXT = NAME_BYTES - 2 * DIGEST_BYTES - _NAME.size


class DiskFile:
    """Opened for this process alone; not safe for several threads.

    Args:
        purpose: 32 bytes that stand for model, layout and all else that a block's content depends on.
        max_bytes: of the file, which grows as shelves are used. keeps: whether the file is there after
        close(), and what it held is taken over now if its purpose is the same.

    Raises ConfigError if it cannot be opened, is in use, is no such file, or no block fits.
    """

    def __init__(self, path: Path, purpose: bytes, block_bytes: int, max_bytes: int, *, keeps: bool) -> None:
        self.path = path
        self.num_shelves = (max_bytes - PAGE) // (_pages(block_bytes) + NAME_BYTES)
        if self.num_shelves < 1:
            raise ConfigError(
                f"device.disk_kv_memory = {max_bytes:,} bytes holds no block of {block_bytes:,}"
            )
        self.was_other = False
        """The file was there, and of another purpose or size: it starts empty."""
        self.num_corrupt = 0
        self.kept: list[Shelved] = []
        """What was found, those written last last."""
        self._purpose = purpose
        self._block_bytes = block_bytes
        self._digests: dict[int, bytes] = {}
        """Of the contents, by shelf."""
        self._num_writes = 0
        self._fd = -1
        try:
            self._fd = _open(path)
            self._begin(keeps)
        except OSError as error:
            self.close()
            raise ConfigError(f'device.disk_kv = "{path}": {error.strerror}') from error
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, shelf: int, name: Shelved, content: memoryview) -> bool:
        """Put a block on a shelf, in place of any other; False if its name is too long. Raises OSError."""
        self.erase(shelf)
        if len(name.parent) + len(name.tokens) > _MAX_TEXT:
            return False
        digest = self._digest(name.key, content)
        _write(self._fd, content, self._content_at(shelf))
        self._num_writes += 1
        fields = (name.is_first, len(name.parent), len(name.tokens), name.key)
        text = _NAME.pack(self._num_writes, *fields) + name.parent + name.tokens
        _write(self._fd, self._digest(digest, text) + digest + text, self._name_at(shelf))
        self._digests[shelf] = digest
        return True

    def read(self, shelf: int, key: bytes, content: memoryview) -> bool:
        """Into `content`; False if that is not the block of this key as it was written. Raises OSError."""
        expected = self._digests.get(shelf)
        num_read = os.preadv(self._fd, [content], self._content_at(shelf))
        if expected == self._digest(key, content) and num_read == len(content):
            return True
        self.num_corrupt += 1
        self.erase(shelf)
        return False

    def erase(self, shelf: int) -> None:
        """Nothing is on it. Raises OSError."""
        if self._digests.pop(shelf, None) is not None:
            _write(self._fd, _BLANK, self._name_at(shelf))

    def look_again(self) -> None:
        """Find out what is there: `kept` and `num_corrupt` as at an opening. Raises OSError."""
        self._digests.clear()
        self._read_names()

    def _begin(self, keeps: bool) -> None:
        head = os.pread(self._fd, PAGE, 0)
        if head and not head.startswith(MAGIC):
            raise ConfigError(
                f'device.disk_kv = "{self.path}": is a file of something else; it is left as it is'
            )
        os.fchmod(self._fd, 0o600)
        self.secret = self._secret_of(head) if keeps else b""
        if not self.secret:
            self.was_other = bool(head) and keeps
            self._format(keeps)
        else:
            self._read_names()

    def _secret_of(self, head: bytes) -> bytes:
        """Of a file that is for the same; else empty."""
        if len(head) < _HEAD.size + DIGEST_BYTES:
            return b""
        _, purpose, block_bytes, num_shelves, secret = _HEAD.unpack_from(head)
        secret = bytes(secret)
        is_whole = head[_HEAD.size :][:DIGEST_BYTES] == _digest(secret, head[: _HEAD.size])
        is_same = (purpose, block_bytes, num_shelves) == (self._purpose, self._block_bytes, self.num_shelves)
        return secret if is_whole and is_same else b""

    def _format(self, keeps: bool) -> None:
        """Nothing is in it. One not to be kept loses its name at once: the space goes with the process."""
        self.secret = secrets.token_bytes(SECRET_BYTES)
        os.ftruncate(self._fd, 0)
        if keeps:
            head = _HEAD.pack(MAGIC, self._purpose, self._block_bytes, self.num_shelves, self.secret)
            _write(self._fd, head + _digest(self.secret, head), 0)
        else:
            self.path.unlink()

    def _read_names(self) -> None:
        names = os.pread(self._fd, self.num_shelves * NAME_BYTES, PAGE)
        found: list[tuple[int, Shelved]] = []
        for shelf in range(len(names) // NAME_BYTES):
            name = names[shelf * NAME_BYTES : (shelf + 1) * NAME_BYTES]
            if name.startswith(_BLANK):
                continue
            if (read := self._read_name(shelf, name)) is None:
                self.num_corrupt += 1
            else:
                found.append(read)
        found.sort(key=lambda each: each[0])
        self.kept = [shelved for _, shelved in found]
        self._num_writes = found[-1][0] if found else 0

    def _read_name(self, shelf: int, name: bytes) -> tuple[int, Shelved] | None:
        """With the number of its write; None if it is not as it was written."""
        named, digest, text = (
            name[:DIGEST_BYTES],
            name[DIGEST_BYTES:][:DIGEST_BYTES],
            name[2 * DIGEST_BYTES :],
        )
        number, is_first, num_parent, num_tokens, key = _NAME.unpack_from(text)
        end = _NAME.size + num_parent + num_tokens
        if self._digest(digest, text[:end]) != named:
            return None
        self._digests[shelf] = digest
        parent = text[_NAME.size : _NAME.size + num_parent]
        return number, Shelved(shelf, is_first, parent, text[_NAME.size + num_parent : end], key)

    def _digest(self, key: bytes, data: bytes | memoryview) -> bytes:
        return _digest(self.secret, key, data)

    def _name_at(self, shelf: int) -> int:
        return PAGE + shelf * NAME_BYTES

    def _content_at(self, shelf: int) -> int:
        return _pages(PAGE + self.num_shelves * NAME_BYTES) + shelf * _pages(self._block_bytes)


def _open(path: Path) -> int:
    """For its owner's eyes only: what it holds says what was asked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConfigError(f'device.disk_kv = "{path}": another process uses it') from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        num_written = os.pwrite(fd, rest, offset)
        rest, offset = rest[num_written:], offset + num_written


def _digest(secret: bytes, *parts: bytes | memoryview) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES, key=secret)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _pages(num_bytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-num_bytes // PAGE) * PAGE
