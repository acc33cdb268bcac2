from pathlib import Path

import msgspec
import pytest

from pipeline.__main__ import main
from pipeline.bench.feeds import Requests, Steps, feed_for
from pipeline.bench.samples import Load
from pipeline.bench.sources import blueprint_for
from pipeline.checkpoint.card import ModelCard
from pipeline.config import loads
from pipeline.errors import ConfigError
from pipeline.topology import WHOLE, Node

TWO_POOLS = Path(__file__).parents[3] / "examples" / "two_pools" / "config.toml"


def test_a_stage_of_a_graph_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "tokenize_urgent", "--config", str(TWO_POOLS), "--fake", "--steps", "12", "--json"]
    assert main([*argv, "--no-allocations"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["messages"] == 12


def test_an_optional_stage_is_there_when_it_is_asked_for() -> None:
    config = loads("", "bench.toml")
    assert "filter" not in config.graph.names
    blueprint = blueprint_for(config, "filter")
    assert "filter" in blueprint.graph.names
    assert blueprint.classes["filter"].__name__ == "Filter"


def test_a_door_that_is_benched_has_no_keys_and_any_port() -> None:
    toml = '[stages.ingress.options]\nport = 80\nhost = "::"\nkeys_file = "absent.toml"\naccess_log = true\n'
    options = blueprint_for(loads(toml, "bench.toml"), "ingress").options["ingress"]
    told = {name: getattr(options, name) for name in ("host", "port", "keys_file", "access_log")}
    assert told == {"host": "127.0.0.1", "port": 0, "keys_file": None, "access_log": True}


def test_what_no_graph_has() -> None:
    with pytest.raises(ConfigError, match=r"bench\.toml: there is no stage 'detok' .* detokenize"):
        blueprint_for(loads("", "bench.toml"), "detok")


def test_who_stands_between_two_stages_is_fed_openly(fake_card: ModelCard) -> None:
    """Not as the stage behind: nothing has to be answered."""
    load = Load.of(fake_card, 2)
    places = {
        ("tokenize", "schedule"): Requests,
        ("schedule", "execute"): Steps,
        ("detokenize", "stream"): Steps,
    }
    for (source, target), kind in places.items():
        graph = WHOLE.chosen(()).between(source, target, Node("mine", "my_lab:Mine", 8))
        assert type(feed_for("mine", load, graph)) is kind
