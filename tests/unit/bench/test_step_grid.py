"""The grid's plans are such as a scheduler would make, and --fit writes a file that simulate reads."""

from pathlib import Path

import msgspec
import pytest

from pipeline.__main__ import main
from pipeline.bench.samples import Load
from pipeline.bench.step_grid import REPEATS, Part, grid, step_plan, time_grid
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import CheckingRunner, FakeRunner
from pipeline.simulate.measured import read_measured
from pipeline.simulate.work import work_of
from tests.unit.doctor.made import evidence

READY = DeviceReady(num_blocks=512, block_size=16, max_num_seqs=8, max_num_batched_tokens=64)


def test_every_composition_is_within_what_the_device_holds() -> None:
    for parts in grid(READY, 1024):
        assert sum(part.num_tokens for part in parts) <= 64 and len(parts) <= 8
        assert all(part.num_tokens + part.num_computed <= 1024 for part in parts)
    kinds = {(len(parts) > 1, any(part.num_tokens > 1 for part in parts)) for parts in grid(READY, 1024)}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_a_plan_has_blocks_of_its_own_for_all_that_it_reads(fake_card: ModelCard) -> None:
    load = Load.of(fake_card, 1)
    plan = step_plan([Part(1, 40), Part(20, 0)], READY, load, 1)
    assert len(set(plan.block_ids)) == len(plan.block_ids) == 3 + 2
    assert work_of(plan).num_kv == 41 + 20
    CheckingRunner(READY).launch(step_plan([Part(20, 0), Part(3, 0)], READY, load, 1))


def test_each_composition_is_timed_as_often_as_it_says(fake_card: ModelCard) -> None:
    compositions = grid(READY, 512)
    done: list[int] = []
    timed_here = time_grid(FakeRunner(READY), Load.of(fake_card, 1), compositions, done.append)
    assert done == list(range(1, REPEATS * len(compositions) + 1))
    assert [each.work.num_rows for each in timed_here] == [len(parts) for parts in compositions]


def test_steps_run_here_become_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "measured.json"
    assert main(["bench", "execute", "--fake", "--rows", "8", "--fit", "--out", str(out)]) == 0
    assert "off by, median / p90" in capsys.readouterr().out
    measured = read_measured(out)
    assert (measured.source, measured.ready.max_num_seqs) == ("bench", 8)
    assert measured.step.base[0][0] == 1 and measured.step.base[-1][0] == 2048


def test_a_servers_evidence_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "evidence.json", tmp_path / "measured.json"
    saved.write_bytes(msgspec.json.encode(evidence()))
    assert main(["bench", "execute", "--fake", "--fit", str(saved), "--out", str(out)]) == 0
    measured = read_measured(out)
    assert (measured.source, measured.ready.num_blocks) == ("evidence", 1000)
    assert measured.step.base[0] == (2, pytest.approx(16e6, rel=0.02))
    assert main(["simulate", "--against", str(saved), "--device", str(out)]) == 2
