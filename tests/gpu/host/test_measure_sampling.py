"""The measuring of the sampler: of a step that is one, over all filters, and judged by its limit."""

import pytest
import torch

from pipeline.gpu.host import measure_sampling as measured
from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.layout import Choice
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.random_decoder import DecodeStep
from pipeline.gpu.host.sampling import HostSampler
from tests.gpu.driver import TINY


@pytest.mark.parametrize("choice", ["int8", "int4"])
def test_a_step_and_every_filter_are_timed(choice: Choice) -> None:
    library = load_library(Build(find_compiler()))
    step = DecodeStep(TINY, choice, library, num_threads=1, num_rows=5, context=40)
    logits = step()
    assert logits.shape == (5, TINY.vocab_size) and logits.isfinite().all()
    torch.testing.assert_close(step(), logits)  # as often as it is called
    best_ms = measured.measure(
        step, HostSampler(library, 1), measured.made_logits(5, TINY.vocab_size), runs=1
    )
    assert len(best_ms) == 1 + 2 * len(measured.FILTERS) and min(best_ms.values()) > 0


def test_the_worst_share_of_the_step_is_what_counts(capsys: pytest.CaptureFixture[str]) -> None:
    best_ms = {f"{each.title} {kind}": 1.0 for each in measured.FILTERS for kind in ("steep", "flat")}
    assert measured.report(best_ms | {"step": 40.0, "top_p 0.9 flat": 3.0}) == 0.075
    assert "7.5%" in capsys.readouterr().out


def test_more_than_the_limit_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["measure_sampling", "--rows", "2", "--runs", "1"])
    monkeypatch.setattr(measured, "MODELS", {"tiny": TINY})
    for limit, is_over in ((0.0, True), (1e9, False)):
        monkeypatch.setattr(measured, "LIMIT", limit)
        if is_over:
            with pytest.raises(SystemExit, match="of a step is more than"):
                measured.main()
        else:
            measured.main()
