"""Host memory and disk behind the prefix cache, through the whole server: the same texts with them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.gpu.kv.disk_file import MAGIC, NAME_BYTES, PAGE
from pipeline.messages import DeviceReady, DiskMove, DiskMoved, DiskMoves, DiskReady, StepPlan
from pipeline.runtime.testing import Cell, FakeHandle
from tests.e2e.scraped import scrape
from tests.e2e.test_prefix_cache import OFF, ON, ReadingRunner, ask, conversations
from tests.e2e.world import Server, serving

HOST = DeviceReady(60, 4, 16, 64, num_host_blocks=40, block_copy_ns=1, block_bytes=100)
DISK = replace(HOST, num_host_blocks=24, disk=DiskReady(400))


class TieredRunner(ReadingRunner):
    """Its disk is a dict; the mover does at once what it is asked for. Computing takes longer than that."""

    def __init__(self, capacity: DeviceReady, fails_after: int = 1 << 30) -> None:
        super().__init__(capacity)
        self.mover = self if capacity.disk else None
        self._disk: dict[int, tuple[bytes, list[Cell | None]]] = {}
        self._report: Callable[[DiskMoved], object]
        self._num_left = fails_after

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        begin_ns = perf_counter_ns()
        handle = super().launch(plan)
        sleep(50e-6 * len(plan.token_ids))
        return FakeHandle(plan, handle.token_ids_sync(), begin_ns, perf_counter_ns())

    def start(self, report: Callable[[DiskMoved], object]) -> None:
        self._report = report

    def submit(self, moves: DiskMoves) -> None:
        self._num_left -= len(moves.moves)
        fault = "" if self._num_left > 0 else "no space left"
        are_good = [not fault and self._move(move) for move in moves.moves]
        self._report(DiskMoved([move.move_id for move in moves.moves], are_good, 1000, fault))

    def _move(self, move: DiskMove) -> bool:
        if not move.is_fetch:
            self._disk[move.shelf] = (move.key, list(self._host_cells[move.place]))
            return True
        key, cells = self._disk[move.shelf]
        self._host_cells[move.place] = list(cells)
        return key == move.key


def told(card: ModelCard, make_runner: Callable[[], Any], toml: str) -> tuple[list[str], dict[str, float]]:
    """The conversations of test_prefix_cache, twice over, and the figures after them."""

    async def main() -> tuple[list[str], dict[str, float]]:
        async with serving(card, make_runner, toml) as server:
            texts = await conversations(server)
            assert await conversations(server) == texts
            await server.rest()
            scheduler = server.scheduler
            return texts, {**scheduler.residents.prefixes.gauges(), **scheduler.policies.gauges()}

    return asyncio.run(main())


def test_texts_are_the_same_with_and_without(fake_card: ModelCard) -> None:
    alone, _ = told(fake_card, lambda: ReadingRunner(replace(HOST, num_host_blocks=0)), OFF)
    in_host, host = told(fake_card, lambda: TieredRunner(HOST), ON)
    on_disk, disk = told(fake_card, lambda: TieredRunner(DISK), ON)
    failing, failed = told(fake_card, lambda: TieredRunner(DISK, fails_after=60), ON)
    assert alone == in_host == on_disk == failing
    assert host["host_saved_blocks_total"] > 0 and host["prefix_host_hit_tokens_total"] > 0
    assert host["host_saved_bytes_total"] == 100 * host["host_saved_blocks_total"]
    assert "disk_blocks" not in host
    assert disk["disk_stored_blocks_total"] > 0 and disk["prefix_disk_hit_tokens_total"] > 0
    assert disk["disk_disabled"] == 0 == disk["disk_corrupt_blocks_total"]
    assert failed["disk_disabled"] == 1 and failed["disk_blocks_cached"] == 0


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("prefix_cache = false", r"device\.disk_kv: needs stages\.schedule\.options\.prefix_cache"),
        ('separation = "split"', r"device\.disk_kv must not be set"),
    ],
)
def test_what_does_not_go_together_is_refused(toml: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        assemble.check(
            configuration.loads(f'[device]\ndisk_kv = "x"\n[stages.schedule.options]\n{toml}', "my.toml")
        )


LONG = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
OTHERS = [f"{k} " * 50 for k in range(3)]
SOME: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]


async def answers(server: Server, session: aiohttp.ClientSession) -> list[tuple[str, int]]:
    """The long one greedy and seeded, what pushes it out, and the long one again."""
    asked: list[tuple[str, int]] = []
    for prompt in (LONG, *OTHERS, LONG):
        for more in SOME:
            asked.append(await ask(session, server, prompt, max_tokens=4, **more))  # noqa: PERF401
    return asked


def served(card: ModelCard, device: str) -> tuple[list[str], list[int], dict[str, float]]:
    """Texts, cached tokens, figures of one life of a server."""

    async def main() -> tuple[list[str], list[int], dict[str, float]]:
        toml = f'[device]\ndevice = "cpu"\nmax_model_len = 160\nnum_blocks = 16\n{device}'
        async with serving(card, toml=toml) as server:
            async with aiohttp.ClientSession() as session:
                asked, page = await answers(server, session), await scrape(session, server)
            await server.rest()
            names = ("host_loaded_blocks", "disk_fetched_blocks", "disk_corrupt_blocks")
            figures = {n: page.total(f"stageline_{n}_total") for n in names if "disk_kv" in device}
            return [text for text, _ in asked], [cached for _, cached in asked], figures

    return asyncio.run(main())


def disk(path: Path, more: str = "") -> str:
    return f'host_kv_memory = "5MiB"\ndisk_kv = "{path}"\ndisk_kv_memory = "200MiB"\n{more}'


@pytest.mark.model
@pytest.mark.parametrize("backend", ["host", pytest.param("torch", marks=pytest.mark.nightly)])
def test_the_real_model_says_the_same_with_tiers_and_after_a_restart(
    model_card: ModelCard, tmp_path: Path, backend: str
) -> None:
    path, setting = tmp_path / "kv", f'backend = "{backend}"\n'
    alone, _, _ = served(model_card, setting)
    in_host, cached, _ = served(model_card, setting + 'host_kv_memory = "200MiB"')
    assert in_host == alone and cached[8] > 40
    keeps = setting + disk(path, "disk_kv_keep = true")
    on_disk, cached, figures = served(model_card, keeps)
    assert on_disk == alone and cached[0] == 0 < cached[8]
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes().startswith(MAGIC)
    again, cached, figures = served(model_card, keeps)
    assert again == alone and cached[0] > 40
    assert figures["disk_fetched_blocks"] > 0 == figures["disk_corrupt_blocks"]
    flip_first_content(path)
    flipped, cached, figures = served(model_card, keeps)
    assert flipped == alone and figures["disk_corrupt_blocks"] == 1
    other, cached, _ = served(model_card, 'kv_dtype = "int8"\n' + keeps)
    assert cached[0] == 0 < cached[8] and len(other) == len(alone)


def flip_first_content(path: Path) -> None:
    """A byte of the first block of the long prompt, which is the first that was written."""
    data = bytearray(path.read_bytes())
    num_shelves = int.from_bytes(data[48:56], "little")
    at = -(-(PAGE + num_shelves * NAME_BYTES) // PAGE) * PAGE
    names = [data[PAGE + k * NAME_BYTES :][:NAME_BYTES] for k in range(num_shelves)]
    block_bytes = -(-int.from_bytes(data[40:48], "little") // PAGE) * PAGE
    firsts = [k for k, name in enumerate(names) if any(name[:32]) and name[40]]
    shelf = min(firsts, key=lambda k: int.from_bytes(names[k][32:40], "little"))
    data[at + shelf * block_bytes + 1000] ^= 1
    path.write_bytes(data)
