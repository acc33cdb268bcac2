"""docs/stages.md says of the examples what they are."""

from pathlib import Path

import pytest

from pipeline import assemble, config
from pipeline.__main__ import COMMANDS
from pipeline.errors import ConfigError
from pipeline.runtime.stage import STAGE_API, Stage
from tests.documented import blocks, commands, section

PAGE = Path("docs/stages.md").read_text()


def test_excerpts_are_what_the_examples_hold() -> None:
    excerpts = [block for block in blocks(PAGE) if block.word.startswith("from=")]
    assert len(excerpts) >= 6
    for block in excerpts:
        assert block.text in Path(block.word.removeprefix("from=")).read_text(), block.word


def test_the_protocol_names_every_method_of_a_stage() -> None:
    protocol = next(block.text for block in blocks(section(PAGE, "The protocol")))
    for name in vars(Stage):
        if not name.startswith("_") and name != "run":
            assert f" {name}" in protocol, name


def test_every_version_of_the_api_is_told() -> None:
    assert f"| {STAGE_API} |" in section(PAGE, "Versions")


def test_commands_are_there() -> None:
    lines = [
        command.line for block in blocks(PAGE) if block.language == "console" for command in commands(block)
    ]
    assert len(lines) >= 10
    for line in lines:
        _, _, after = line.partition("stageline ")
        assert not after or after.split()[0] in COMMANDS, line


def test_the_fault_that_is_shown_is_the_one_that_is_told() -> None:
    wrong = Path("examples/min_p/config.toml").read_text().replace("0.2", "2")
    with pytest.raises(ConfigError) as refused:
        assemble.check(config.loads(wrong, "config.toml"))
    assert f"\n    {refused.value}\n" in PAGE
