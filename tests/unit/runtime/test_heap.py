import gc
import platform
from collections.abc import Iterator

import pytest

from pipeline.runtime import heap
from pipeline.telemetry.process import rss_bytes

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_loaded_is_kept_out_of_collections() -> None:
    loaded = [[number] for number in range(1000)]
    before = gc.get_freeze_count()
    heap.settle()
    assert gc.get_freeze_count() >= before + len(loaded)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory that it can give back"
)
def test_what_loading_has_freed_goes_back_to_the_system() -> None:
    pieces = [bytes(4096) for _ in range(16_384)]
    kept = pieces[::64]  # between the freed ones, so that the heap cannot simply end earlier
    full = rss_bytes()
    del pieces
    heap.settle()
    assert rss_bytes() < full - 40 * MIB
    assert len(kept) == 256
