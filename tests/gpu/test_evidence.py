"""On what ground int8 weights are chosen, and the evaluation that finds it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import torch
from gguf import GGMLQuantizationType
from msgspec.structs import replace
from structlog.testing import capture_logs

from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.errors import ConfigError
from pipeline.gpu.evaluation.evaluate import WINDOW, evaluate
from pipeline.gpu.evaluation.evidence import (
    BLOCKS_SCHEME,
    INT8_SCHEME,
    KNOWN,
    MIN_TOKENS,
    SCHEMES,
    Evidence,
    find_evidence,
    save_evidence,
)
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner, load_runner
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.driver import TINY, random_tensors
from tests.gpu.oracle import hugging_face
from tests.tiny_models import write_gguf

GOOD = Evidence("tiny", INT8_SCHEME, "fp32", 10_000, 20.1, 20.0, 0.95)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCard:
    """A tiny model of random weights, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return describe(write_gguf(tmp_path / "tiny.gguf"), "tiny")


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """A command sets the logs up for its whole process."""
    yield
    structlog.reset_defaults()


def test_what_is_good_enough() -> None:
    assert GOOD.increase == pytest.approx(0.005)
    assert GOOD.is_good
    assert not replace(GOOD, perplexity=20.21).is_good
    assert not replace(GOOD, num_tokens=1000).is_good


def test_a_record_is_found_again_and_the_latest_counts(card: ModelCard) -> None:
    assert find_evidence(card) == {}
    save_evidence(card, GOOD)
    assert find_evidence(card) == {"int8": GOOD}
    worse, blocks = replace(GOOD, perplexity=25.0), replace(GOOD, scheme=BLOCKS_SCHEME)
    save_evidence(card, worse)
    save_evidence(card, blocks)
    assert find_evidence(card) == {"int4": blocks, "int8": worse}
    save_evidence(card, replace(GOOD, scheme="int8 per row"))
    assert find_evidence(card) == {"int4": blocks, "int8": worse}


def test_a_damaged_record_counts_as_none(card: ModelCard) -> None:
    save_evidence(card, GOOD).write_text("{")
    assert find_evidence(card) == {}


def test_a_record_is_of_one_file(card: ModelCard) -> None:
    save_evidence(card, GOOD)
    with card.path.open("ab") as file:
        file.write(b"another")
    assert find_evidence(card) == {}


def test_too_few_tokens_do_not_outweigh_what_is_known(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN, (card.reference, INT8_SCHEME), GOOD)
    save_evidence(card, replace(GOOD, num_tokens=MIN_TOKENS - 1))
    assert find_evidence(card) == {"int8": GOOD}
    longer = replace(GOOD, num_tokens=MIN_TOKENS, perplexity=30.0)
    save_evidence(card, longer)
    assert find_evidence(card) == {"int8": longer}


def test_every_known_evaluation_is_of_the_present_scheme() -> None:
    assert {scheme for _, scheme in KNOWN} <= set(SCHEMES.values())


@pytest.mark.parametrize(
    ("evidence", "weights"),
    [({}, "bf16"), ({"int8": GOOD}, "int8"), ({"int8": replace(GOOD, perplexity=30.0)}, "bf16")],
)
def test_auto_goes_by_the_evidence_and_says_so(evidence: dict[str, Evidence], weights: str) -> None:
    options = RunnerOptions(device="cpu", num_blocks=8)
    with capture_logs() as lines:
        build_runner(TINY, random_tensors(TINY), options, evidence=evidence)
    assert [line["weights"] for line in lines if "weights" in line] == [weights]
    assert ("int8" if evidence else "bf16") in lines[0]["event"]


def test_auto_takes_the_files_own_blocks_before_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = describe(write_gguf(tmp_path / "tiny.gguf", kind=GGMLQuantizationType.Q4_1), "tiny")
    evidence = {"int4": replace(GOOD, scheme=BLOCKS_SCHEME), "int8": GOOD}
    monkeypatch.setattr("pipeline.gpu.runner.find_evidence", lambda card: evidence)
    with capture_logs() as lines:
        load_runner(card, RunnerOptions(device="cpu", num_blocks=8)).close()
    assert [(line["weights"], line["formats"]) for line in lines if "weights" in line] == [("int4", "q4_min")]


def test_auto_is_torch_without_a_compiler_whatever_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    options = RunnerOptions(device="cpu", num_blocks=8)
    assert isinstance(build_runner(TINY, random_tensors(TINY), options, evidence={"int8": GOOD}), Runner)


@pytest.mark.nightly
def test_evaluating_scores_every_token_of_whole_windows(card: ModelCard) -> None:
    vocab = card.architecture.vocab_size
    token_ids = [k * 7 % vocab for k in range(2 * WINDOW + 100)]
    card = replace(card, architecture=replace(card.architecture, max_position=WINDOW))
    evidence = evaluate(card, token_ids, "int8", "fp32", lambda line: None)
    assert evidence.num_tokens == 2 * (WINDOW - 1)
    model = hugging_face(card.architecture, load_tensors(card))
    windows = torch.tensor(token_ids[: 2 * WINDOW]).view(2, WINDOW)
    with torch.inference_mode():
        loss = model(windows, labels=windows).loss
    assert evidence.baseline == pytest.approx(loss.exp().item(), rel=1e-4)
    assert evidence.perplexity == pytest.approx(evidence.baseline, rel=0.15)
    assert 0.5 < evidence.agreement < 1
    same = evaluate(card, token_ids, "bf16", "bf16", lambda line: None)
    assert same.increase == 0
    assert same.agreement == 1


def test_a_text_shorter_than_a_window_is_refused(card: ModelCard) -> None:
    with pytest.raises(ConfigError, match="the text has 100 tokens: at least 256 are needed"):
        evaluate(card, [1] * 100, "int8", "fp32", lambda line: None)


@pytest.mark.usefixtures("fresh_logs")
def test_the_command_prints_and_records(
    card: ModelCard, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("a b c d e " * 600)
    arguments = ["eval", "--model", str(card.path), "--text", str(text), "--max-tokens", "600"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "510 predictions" in printed.out
    assert 'weights = "auto" is now bf16' in printed.err
    assert "of 510 predictions, too few to go by: at least 4,096" in printed.err.replace("\n", " ")
    found = find_evidence(describe(card.path, str(card.path)))
    assert found["int8"].num_tokens == 2 * 255  # it reads 256 tokens at most
    assert main([*arguments[:4], str(tmp_path / "none")]) == 2
    assert "--text: " in capsys.readouterr().err


@pytest.mark.model
def test_the_runner_of_a_card_goes_by_its_record(
    model_card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.gpu.runner.find_evidence", lambda card: {"int8": replace(GOOD, perplexity=30.0)}
    )
    with capture_logs() as lines:
        load_runner(model_card, RunnerOptions(device="cpu", num_blocks=8)).close()
    assert [line["weights"] for line in lines if "weights" in line] == ["bf16"]
