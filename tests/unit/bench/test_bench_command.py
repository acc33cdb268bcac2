import msgspec
import pytest

from pipeline.__main__ import main


def test_a_stage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "detokenize", "--fake", "--rows", "2", "--steps", "30", "--json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert (result["stage"], result["messages"], result["rows"]) == ("detokenize", 30, 60)
    assert result["rows_per_s"] > 0


def test_tokenize_shows_batched_against_single(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tokenize", "--fake", "--steps", "20"]) == 0
    out = capsys.readouterr().out
    assert "one by one" in out
    assert "whole batches" in out


def test_planning_has_a_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "plan", "--running", "8", "--waiting", "20", "--steps", "20"]
    assert main([*argv, "--json"]) == 0
    results = msgspec.json.decode(capsys.readouterr().out)
    assert [each["policy"] for each in results] == ["fcfs", "priority", "sjf", "fair", "deadline"]
    assert all(0 < each["plan_us"] <= each["plan_p99_us"] for each in results)
    assert main([*argv, "--policy", "lifo"]) == 2
    assert "must be one of" in capsys.readouterr().err


def test_the_door_is_asked_over_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ingress", "--fake", "--steps", "12", "--json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert (result["stage"], result["messages"], result["allocations"]) == ("ingress", 12, None)
    assert 0 < result["p50_us"] <= result["p99_us"]


def test_a_name_that_no_graph_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sampel", "--fake"]) == 2
    assert "no stage 'sampel' to bench; there are ingress" in capsys.readouterr().err


def test_a_stage_that_config_leaves_out_can_be_benched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "filter", "--fake", "--rows", "2", "--steps", "30", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["rows"] == 60


@pytest.mark.parametrize(
    "argv",
    [
        ["bench"],
        ["bench", "pipeline"],
        ["bench", "sample", "--rows", "0"],
        ["bench", "pipeline", "--fake", "--seconds", "inf"],
        ["bench", "pipeline", "--fake", "--protocol", "http2"],
    ],
)
def test_a_wrong_command_line_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert "usage: stageline bench" in capsys.readouterr().err
