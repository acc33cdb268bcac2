"""examples/offline.py: interrupted in every way, it ends with the answers of an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from examples import offline
from tests.e2e.offline_fake import failing_engine, fast_engine

WORDS = ("--temperature", "0", "--max-tokens", "16", "--max-live", "4")
COMMAND = (sys.executable, "-m", "tests.e2e.offline_fake")


def write(path: Path, lines: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """The program sets logging up for its process; here that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "prompts.jsonl", [{"id": f"q{n}", "prompt": f"Number {n}."} for n in range(60)])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(prompts: Path, answers: Path, *words: str) -> int:
    return offline.main([str(prompts), str(answers), *(words or WORDS)], fast_engine)


def part_of(answers: Path) -> Path:
    return answers.with_name(answers.name + ".part")


def begun(prompts: Path, answers: Path, num_lines: int) -> "subprocess.Popen[bytes]":
    """A slow run of its own that has answered so many."""
    process = subprocess.Popen([*COMMAND, str(prompts), str(answers), *WORDS], stderr=subprocess.DEVNULL)
    part, until = part_of(answers), time.monotonic() + 60
    while not part.exists() or part.read_bytes().count(b"\n") < num_lines:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    return process


def test_a_killed_run_goes_on_where_it_was(prompts: Path, tmp_path: Path) -> None:
    whole, answers = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    assert run(prompts, whole) == 0
    process = begun(prompts, answers, 10)
    process.kill()
    process.wait()
    assert not answers.exists()
    part = part_of(answers)
    done = part.read_bytes()
    part.write_bytes(done[: done.rindex(b"\n")][:-5])  # as if the last line had not reached the disk
    num_done = part.read_bytes().count(b"\n")
    assert 9 <= num_done < 60
    assert run(prompts, answers) == 0
    assert answers.read_bytes() == whole.read_bytes()
    assert not part.exists()
    assert [line["id"] for line in read(answers)] == [f"q{n}" for n in range(60)]


def test_ctrl_c_lets_live_prompts_finish(prompts: Path, tmp_path: Path) -> None:
    whole, answers = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    assert run(prompts, whole) == 0
    process = begun(prompts, answers, 5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 1
    done = read(part_of(answers))
    assert 5 <= len(done) < 60 and not any("error" in line for line in done)
    assert run(prompts, answers) == 0
    assert answers.read_bytes() == whole.read_bytes()


def test_what_is_done_is_not_asked_again(prompts: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    assert run(prompts, answers) == 0
    before = os.stat(answers).st_mtime_ns

    def no_engine(config: object) -> Any:
        raise AssertionError("nothing is left to be answered")

    assert offline.main([str(prompts), str(answers)], no_engine) == 0
    more = read(prompts)
    write(prompts, [{"id": "first", "prompt": "More."}, *more])
    assert run(prompts, answers) == 0
    assert os.stat(answers).st_mtime_ns > before
    assert [line["id"] for line in read(answers)] == ["first", *(line["id"] for line in more)]


def test_a_crash_before_the_answers_get_their_name(prompts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    answers = tmp_path / "answers.jsonl"

    def crash(source: object, target: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(offline.os, "replace", crash)
        assert run(prompts, answers) == 2
    assert not answers.exists() and len(read(part_of(answers))) == 60
    assert run(prompts, answers) == 0
    assert len(read(answers)) == 60


def test_what_is_wrong_with_a_line_is_its_answer(tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
    lines = [
        json.dumps({"custom_id": "batch", "method": "POST", "url": "/v1/chat/completions", "body": body}),
        "",
        json.dumps({"id": "tokens", "prompt": [72, 105], "max_tokens": 4}),
        "this is no JSON",
        json.dumps({"id": "wrong", "prompt": "Hi", "temperature": -1}),
        json.dumps({"id": "long", "prompt": "Hi" * 9000}),
        json.dumps({"prompt": "By its line"}),
    ]
    prompts.write_text("\n".join(lines) + "\n")
    assert run(prompts, answers) == 0
    by_id = {line["id"]: line for line in read(answers)}
    assert list(by_id) == ["batch", "tokens", "4", "wrong", "long", "7"]
    assert (by_id["batch"]["num_output_tokens"], by_id["tokens"]["num_output_tokens"]) == (3, 4)
    assert by_id["tokens"]["num_prompt_tokens"] == 2
    assert by_id["7"]["num_output_tokens"] == 16 and by_id["7"]["finish_reason"] == "length"
    assert by_id["4"]["error"]["code"] == "invalid_line"
    assert by_id["wrong"]["error"]["param"] == "temperature"
    assert by_id["long"]["error"]["status"] == 400


def test_texts_a_line_each(tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_bytes(b"One\nTwo\n\xff\n")
    assert run(prompts, answers) == 0
    one, two, three = read(answers)
    assert (one["id"], one["num_prompt_tokens"], two["num_output_tokens"]) == ("1", 3, 16)
    assert three["error"]["message"] == "The line is not UTF-8."


@pytest.mark.parametrize(
    ("lines", "part", "fault"),
    [
        ([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}], "", "the id 'a' is there twice"),
        (
            [{"id": "a", "prompt": "x"}],
            '{"id": "b", "text": "y"}\n',
            "answers 'b', which is none of the prompts",
        ),
        ([{"id": "a", "prompt": "x"}], "nonsense\n", "a line of it is no answer"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(
    lines: list[object], part: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, answers = write(tmp_path / "prompts.jsonl", lines), tmp_path / "answers.jsonl"
    if part:
        part_of(answers).write_text(part)
    assert run(prompts, answers) == 2
    assert fault in capsys.readouterr().err


def test_what_the_server_failed_on_is_asked_again(tmp_path: Path) -> None:
    prompts, answers = (
        write(tmp_path / "prompts.jsonl", [{"id": "a", "prompt": "x"}]),
        tmp_path / "answers.jsonl",
    )
    part_of(answers).write_text('{"id": "a", "error": {"message": "It failed.", "status": 500}}\n')
    assert run(prompts, answers) == 0
    assert [line["num_output_tokens"] for line in read(answers)] == [16]


def test_a_pipeline_that_crashes_answers_nothing_more(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what it failed on, a few lines at most are errors; all else is as if it had not been asked."""
    answers = tmp_path / "answers.jsonl"
    (tmp_path / "my.toml").write_text("[stages.execute.options]\nmax_restarts = 0\n")
    words = (*WORDS, "--config", str(tmp_path / "my.toml"))
    assert offline.main([str(prompts), str(answers), *words], failing_engine) == 2
    assert "execute" in capsys.readouterr().err
    done = read(part_of(answers))
    assert 0 < len(done) < 60 and not any("error" in line for line in done)
    assert run(prompts, answers) == 0
    assert not any("error" in line for line in read(answers))


@pytest.mark.model
@pytest.mark.nightly
def test_a_real_model_answers_the_same_when_it_was_interrupted(tmp_path: Path) -> None:
    prompts = write(tmp_path / "prompts.jsonl", [{"prompt": f"The number {n} is"} for n in range(24)])
    whole, answers = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    words = ("--temperature", "0", "--max-tokens", "24", "--max-live", "4")
    command = [sys.executable, "examples/offline.py", str(prompts)]
    subprocess.run([*command, str(whole), *words], check=True)
    process = subprocess.Popen([*command, str(answers), *words])
    while not part_of(answers).exists() or part_of(answers).read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(read(part_of(answers))) < 24
    subprocess.run([*command, str(answers), *words], check=True)
    assert answers.read_bytes() == whole.read_bytes()
