import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from pipeline.__main__ import main
from pipeline.cli import compare as command
from pipeline.messages import SampledBatch, StepHandle
from pipeline.runtime.stage import NoOptions
from pipeline.stages.sample import Sample
from tests.unit.bench import spoiled as by

QUICK = ["--fake", "--rows", "4", "--steps", "10", "--rounds", "6"]


pytestmark = pytest.mark.usefixtures("little_garbage")


class LittleOptions(NoOptions, frozen=True):
    num: int = 1


class Little(Sample):
    Options = LittleOptions


class Tripled(Sample):
    """Takes far longer than anything that disturbs it."""

    async def handle(self, batch: Sequence[StepHandle]) -> None:
        await asyncio.sleep(0.001)
        await super().handle(batch)


class Lying(by.spoiled(Sample, SampledBatch, by.off_by_one("token_ids"))):  # type: ignore[misc]
    pass


class Silent(by.spoiled(Sample, SampledBatch, by.drops_it)):  # type: ignore[misc]
    pass


class OtherDevice(Sample):
    device_op = "my_lab.sampling:Op"


class Failing(Sample):
    async def handle(self, batch: Sequence[StepHandle]) -> None:
        raise ZeroDivisionError("no such step")


class Unready(Sample):
    async def start(self) -> None:
        raise OSError("no such device")


class Lasting(Sample):
    """Fails once it is timed."""

    num_handled = 0

    async def handle(self, batch: Sequence[StepHandle]) -> None:
        Lasting.num_handled += 1
        if Lasting.num_handled > 600:
            raise ZeroDivisionError("worn out")
        await super().handle(batch)


def here(name: str) -> str:
    return f"{__name__}:{name}"


def run(*argv: str) -> int:
    return main(["compare", *argv, *QUICK])


def test_the_same_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "--b", "builtin", "--json") == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert result["stage"] == "sample"
    assert result["a"] == result["b"] == "pipeline.stages.sample:Sample"
    assert result["answers"]["num_differences"] == 0
    assert result["answers"]["messages_a"] == result["answers"]["messages_b"] > 0
    times = result["times"]
    assert times["rounds"] == 6
    assert times["messages"] == 10
    assert times["ratio"]["low"] <= times["ratio"]["value"] <= times["ratio"]["high"]
    assert times["a"]["p50_us"] <= times["a"]["p99_us"]


def test_what_is_slower_is_so_in_words_and_by_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "--b", here("Tripled"), "--max-ratio", "1.5") == 3
    out = capsys.readouterr().out
    assert "They answer the same" in out
    assert "b is slower than a" in out
    assert run("sample", "--a", here("Tripled"), "--b", "builtin", "--max-ratio", "1.5") == 0
    assert "b is faster than a" in capsys.readouterr().out


def test_what_differs_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "--b", here("Lying")) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "They differ in 1 place" in out
    assert "SampledBatch.token_ids[0], after 0 alike: a " in out


def test_what_is_not_compared_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "--b", here("OtherDevice")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not what it has the device do" in out
    assert "my_lab.sampling:Op" in out


def test_differences_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "--b", here("Lying"), "--json") == 1
    answers = msgspec.json.decode(capsys.readouterr().out)["answers"]
    assert answers["num_differences"] == len(answers["differences"]) == 1
    (found,) = answers["differences"]
    assert (found["what"], found["position"]) == ("SampledBatch.token_ids[0]", 0)
    assert int(found["b"]) == int(found["a"]) + 1


def test_what_fails_is_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    for name, why in (("Failing", "no such step"), ("Unready", "no such device")):
        assert run("sample", "--b", here(name)) == 1
        out = " ".join(capsys.readouterr().out.split())
        assert "b did not come to the end" in out
        assert why in out
        assert "us per" not in out
        assert run("sample", "--a", here(name), "--b", "builtin") == 1
        assert why in capsys.readouterr().err


def test_what_fails_when_it_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lasting, "num_handled", 520)
    assert run("sample", "--b", here("Lasting"), "--requests", "4") == 1
    assert "worn out" in capsys.readouterr().err


def test_options_of_each_side(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tokenize", "--b", "builtin", "--b-options", "max_batch=2", "max_prompt_bytes=100000"]
    assert run(*argv) == 0
    assert run("sample", "--b", here("Little"), "--b-options", "num=2") == 0
    capsys.readouterr()
    for options, word in (("num=x", "num"), ("nim=2", "nim")):
        assert run("sample", "--b", here("Little"), "--b-options", options) == 2
        assert f"--b: stages.sample.options.{word}" in capsys.readouterr().err


def test_options_of_config_go_to_whoever_takes_them(tmp_path: Path) -> None:
    """The rule stops what a filter without it would not."""
    path = tmp_path / "config.toml"
    path.write_text('[stages.filter.options]\nrules = [{ terms = ["clocks"], action = "stop" }]\n')
    assert run("filter", "--b", "builtin", "--config", str(path)) == 0
    assert run("filter", "--b", "builtin", "--b-options", "rules=[]", "--config", str(path)) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sampel", "--b", "builtin"], "sampel"),
        (["sample", "--b", "no_such_module:X"], "--b: stages.sample.use"),
        (["sample", "--a", "pipeline.stages.execute:Execute", "--b", "builtin"], "--a: stages.sample.use"),
        (["sample", "--b", "builtin", "--config", "no_such_file.toml"], "no_such_file.toml"),
    ],
)
def test_a_wrong_configuration_is_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["sample"],
        ["sample", "--b", "builtin", "--b-options", "x"],
        ["sample", "--b", "builtin", "--rounds", "5"],
        ["sample", "--b", "builtin", "--max-ratio", "0"],
        ["sample", "--b", "builtin", "--rows", "0"],
    ],
)
def test_a_wrong_command_line_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["compare", *argv])
    assert raised.value.code == 2
    assert "usage: stageline compare" in capsys.readouterr().err


def test_options_are_toml_or_text() -> None:
    assert command._option("a=1") == ("a", 1)
    assert command._option('a = ["x"]') == ("a", ["x"])
    assert command._option("policy=sjf") == ("policy", "sjf")
    assert command._option("use=lab:X=1") == ("use", "lab:X=1")


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (1.9, 9.0, 9.0), raising=False)
    assert command.busy_note() == ""
    monkeypatch.setattr("os.getloadavg", lambda: (2.1, 0.0, 0.0), raising=False)
    assert "load 2.1 on 4 cores" in command.busy_note()
