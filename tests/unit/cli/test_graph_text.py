"""`check-config --graph`: the graph that would run, as text and for Mermaid."""

from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.topology import LINKS, NODES

TWO_POOLS = "examples/two_pools/config.toml"


def drawn(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["check-config", *words]) == 0
    return capsys.readouterr().out


def test_the_default_graph_with_all_its_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.toml").write_text("[stages.tokenize]\nworkers = 5\n")
    lines = drawn(capsys, "--config", str(tmp_path / "my.toml"), "--graph").splitlines()
    assert [line.split()[0] for line in lines if line and line[0].isalpha()] == [node.name for node in NODES]
    assert "tokenize  (pipeline.stages.tokenize:Tokenize, inbox 256, 5 workers)" in lines
    assert "  .> stream  Open, Grant" in lines and "  -> tokenize  GenerateRequest, TokenCall" in lines
    shown = sum(line.count(",") + 1 for line in lines if line.startswith(("  ->", "  .>")))
    assert shown == len(LINKS)


def test_which_messages_take_a_divided_link_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(capsys, "--config", TWO_POOLS, "--graph")
    assert "  -> tokenize_urgent  GenerateRequest where terms.priority >= 1\n" in shown


def test_mermaid(capsys: pytest.CaptureFixture[str]) -> None:
    first, *lines = drawn(capsys, "--config", TWO_POOLS, "--graph", "mermaid").splitlines()
    assert first == "flowchart LR"
    assert '  ingress -->|"GenerateRequest where terms.priority >= 1"| tokenize_urgent' in lines
    assert '  stream -.->|"Cancel, Pause, Resume"| schedule' in lines
