"""`stageline doctor` against a running server's admin port."""

import asyncio
from pathlib import Path

import pytest

from pipeline import admin
from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.config import AdminConfig
from tests.e2e.faults import Price, device
from tests.e2e.load import closed_loop
from tests.e2e.world import serving


def test_a_live_server_is_judged_and_its_evidence_kept(
    fake_card: ModelCard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "evidence.json"

    async def ask() -> int:
        async with serving(fake_card, device(Price())) as server:
            page = admin.AdminServer(server.pipeline, AdminConfig(port=0), fake_card)
            await page.start()
            try:
                await closed_loop(2, 1.0, 20, 10)(server.url)
                words = ["doctor", "--url", page.url, "--last", "5s", "--save", str(saved)]
                return await asyncio.to_thread(main, words)
            finally:
                await page.stop()

    assert asyncio.run(ask()) == 0
    live = capsys.readouterr().out
    assert live.startswith("Healthy")
    assert main(["doctor", str(saved)]) == 0
    assert capsys.readouterr().out == live
