"""The sweep command against a server of known capacity: below it latencies are flat, above it they grow."""

import argparse
import asyncio
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.__main__ import main
from loadgen.capacity.runs import Load
from loadgen.clients.connect import target
from loadgen.replay import FINISHED, Options
from loadgen.slo import Slo
from loadgen.sweep import parse_rates, sweep
from loadgen.workload import Limits
from tests.unit.loadgen.test_capacity import CAPACITY, SERVICE_S, slots
from tests.unit.loadgen.test_replay import write_trace


def test_a_row_a_rate_and_a_result_each(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, [(0.1 * k, 4, 1) for k in range(400)])
    out, printed = tmp_path / "out", StringIO()
    rates = [CAPACITY * 0.3, CAPACITY * 3]

    async def main() -> int:
        async with slots() as url:
            options = Options(trace, target(url, "sse", None, 1), Limits(), tokens_per_word=1.3, out=out)
            load = Load(options, Slo({}), 0.0, 1.0, None, 400, 0.0)
            return await sweep(load, rates, Console(file=printed, width=200))

    assert asyncio.run(main()) == FINISHED
    ttft_s = []
    for rate in rates:
        result = json.loads((out / f"{rate:g}" / "result.json").read_text())
        assert result["summary"]["num_finished"] == result["summary"]["num_sent"] == round(rate)
        assert (out / f"{rate:g}" / "report.html").exists()
        ttft_s.append(result["summary"]["ttft"]["p50_ms"] / 1000)
    below, above = ttft_s
    assert below >= SERVICE_S and above > 0.5, "at three times the capacity a queue grows for a whole second"
    assert above > 3 * below
    assert "30.00" in printed.getvalue() and "300.00" in printed.getvalue()


@pytest.mark.parametrize("text", ["", "1,,2", "1,x", "0", "-1", "2,2", "inf"])
def test_wrong_rates_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        parse_rates(text)


def test_the_command_line_names_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--trace", str(tmp_path), "--url", "http://127.0.0.1:9", "--rates", "1,zero"])
    assert ended.value.code == 2
    assert "--rates" in capsys.readouterr().err
