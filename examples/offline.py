"""Answer a file of prompts without a server; it can be ended at any time, and goes on where it was.

    python examples/offline.py prompts.jsonl answers.jsonl --temperature 0 --max-tokens 64

A line of the prompts is a text (in a .txt file), or JSON: an object with `prompt` or `messages` and other
fields of OpenAI's API, with an `id` of its own or by its line's number; or a line of OpenAI's batch files
(`custom_id` and `body`). docs/embedded.md says how an interrupted run goes on.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline import config as configuration
from pipeline import logs
from pipeline.config import Config
from pipeline.embedded import Engine
from pipeline.errors import RequestError, StagelineError

SYNC_EVERY = 32
"""Answers that a crash of the machine may cost; one of this program costs none."""


class Prompt(NamedTuple):
    id: str
    fields: dict[str, Any]
    fault: str = ""
    """Why the line is no prompt."""


class Done(msgspec.Struct):
    """What is read of an answer."""

    id: str
    error: dict[str, Any] = {}


class Answers:
    """The file of answers on its way: NAME.part, to which each answer is appended as it comes."""

    def __init__(self, target: Path, ids: Sequence[str]) -> None:
        """Find what is done already. Raises StagelineError if that is no answer to any of `ids`."""
        self._target = target
        self._part = target.with_name(target.name + ".part")
        self._ids = ids
        self._places: dict[str, int] = {}
        """By id, where its answer begins."""
        self._num_unsynced = 0
        if target.exists() and not self._part.exists():
            copy = target.with_name(target.name + ".copy")
            shutil.copyfile(target, copy)
            os.replace(copy, self._part)
        self._file = self._part.open("a+b")
        try:
            self._find()
        except StagelineError:
            self._file.close()
            raise

    def __contains__(self, prompt_id: str) -> bool:
        return prompt_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, prompt_id: str, answer: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode({"id": prompt_id, **answer}) + b"\n")
        self._file.flush()
        self._num_unsynced += 1
        if self._num_unsynced >= SYNC_EVERY:
            self._sync()

    def close(self) -> None:
        """Leave it to be gone on with. Idempotent."""
        if not self._file.closed:
            self._sync()
            self._file.close()

    def finish(self) -> None:
        """All are there: put them in the order of the prompts, under the name that was asked for."""
        self._sync()
        self._places.clear()
        self._find(keeps_failed=True)
        ordered = self._target.with_name(self._target.name + ".ordered")
        with ordered.open("wb") as out:
            for prompt_id in self._ids:
                self._file.seek(self._places[prompt_id])
                out.write(self._file.readline())
            out.flush()
            os.fsync(out.fileno())
        os.replace(ordered, self._target)
        self._file.close()
        self._part.unlink()

    def _find(self, *, keeps_failed: bool = False) -> None:
        """Read what is there. A last line that was cut off goes; what the server failed on is asked again."""
        known, place = set(self._ids), 0
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            done = self._decoded(line)
            if done.id not in known:
                raise StagelineError(f"{self._part} answers {done.id!r}, which is none of the prompts")
            if keeps_failed or done.error.get("status", 0) < 500:
                self._places[done.id] = place
            place += len(line)
        self._file.truncate(place)

    def _decoded(self, line: bytes) -> "Done":
        try:
            return msgspec.json.decode(line, type=Done)
        except msgspec.DecodeError as error:
            raise StagelineError(f"{self._part}: a line of it is no answer: {error}") from error

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._num_unsynced = 0


def read_prompts(path: Path) -> Iterator[Prompt]:
    """In their order; empty lines are none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield text_prompt(number, line) if path.suffix == ".txt" else json_prompt(number, line)


def text_prompt(number: int, line: bytes) -> Prompt:
    try:
        return Prompt(str(number), {"prompt": line.decode().rstrip("\r\n")})
    except UnicodeDecodeError:
        return Prompt(str(number), {}, "The line is not UTF-8.")


def json_prompt(number: int, line: bytes) -> Prompt:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Prompt(str(number), {}, "The line is no JSON object.")
    prompt_id = str(fields.pop("id", fields.pop("custom_id", number)))
    if isinstance(fields.get("body"), dict):
        fields = fields["body"]
    fields.pop("model", None)  # there is one, whatever a file calls it
    fields.setdefault("seed", zlib.crc32(prompt_id.encode()))
    return Prompt(prompt_id, fields)


def ids_of(path: Path) -> list[str]:
    """Of all prompts. Raises StagelineError if two have the same."""
    ids: dict[str, None] = {}
    for prompt in read_prompts(path):
        if prompt.id in ids:
            raise StagelineError(f"{path}: the id {prompt.id!r} is there twice")
        ids[prompt.id] = None
    return list(ids)


async def answer(engine: Engine, prompt: Prompt, defaults: dict[str, Any]) -> dict[str, Any]:
    """The line of the answer, or of what is wrong with the prompt."""
    if prompt.fault:
        return {"error": {"message": prompt.fault, "param": None, "code": "invalid_line", "status": 400}}
    try:
        got = await engine.generate(**(defaults | prompt.fields))
    except RequestError as error:
        if not engine.is_open:
            raise
        told = {"message": error.message, "param": error.param, "code": error.code, "status": error.status}
        return {"error": told}
    fields = ("text", "finish_reason", "num_prompt_tokens", "num_output_tokens")
    return {name: getattr(got, name) for name in fields}


class Bar:
    """What is done, on stderr."""

    def __init__(self, total: int, num_done: int) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.progress = Progress(*columns, console=Console(stderr=True))
        self._task = self.progress.add_task("", total=total, completed=num_done)
        self._num_tokens = self._num_errors = 0

    def add(self, line: dict[str, Any]) -> None:
        self._num_tokens += line.get("num_output_tokens", 0)
        self._num_errors += "error" in line
        words = f"{self._num_tokens} tokens, {self._num_errors} errors"
        self.progress.update(self._task, advance=1, description=words)


async def answer_all(args: argparse.Namespace, engine: Engine, answers: Answers, bar: Bar) -> bool:
    """True once all are answered; False if it was told to stop before."""
    defaults = {name: getattr(args, name) for name in ("max_tokens", "temperature")}
    defaults = {name: value for name, value in defaults.items() if value is not None}
    room, stop = asyncio.Semaphore(args.max_live), stop_on_signals()

    async def one(prompt: Prompt) -> None:
        line = await answer(engine, prompt, defaults)
        answers.add(prompt.id, line)
        bar.add(line)
        room.release()

    async with asyncio.TaskGroup() as group:
        for prompt in read_prompts(args.prompts):
            if prompt.id in answers:
                continue
            await room.acquire()
            if stop.is_set():
                return False
            group.create_task(one(prompt))
    return True


def stop_on_signals() -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM: no further prompts, live ones finish. A second one ends at once."""
    stop, task = asyncio.Event(), asyncio.current_task()
    assert task is not None

    def told() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()
        print("\nFinishing what is under way; once more ends at once.", file=sys.stderr)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told)
    return stop


async def run(args: argparse.Namespace, make_engine: Callable[[Config], Engine]) -> int:
    ids = ids_of(args.prompts)
    answers = Answers(args.answers, ids)
    try:
        if len(answers) < len(ids) and not await answer_rest(args, make_engine, answers, len(ids)):
            print(f"{args.answers}.part has what is done; start again to go on.", file=sys.stderr)
            return 1
        answers.finish()
        return 0
    finally:
        answers.close()


async def answer_rest(
    args: argparse.Namespace, make_engine: Callable[[Config], Engine], answers: Answers, total: int
) -> bool:
    config = configuration.override(configuration.load(args.config), model=args.model)
    config = replace(config, server=replace(config.server, log_level="warning"))
    bar = Bar(total, len(answers))
    with bar.progress:
        async with make_engine(config) as engine:
            return await answer_all(args, engine, answers, bar)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path, help="a .txt file, or JSON lines")
    parser.add_argument("answers", type=Path, help="where the answers go; with .part while they come")
    parser.add_argument("--config", type=Path, help="default: ./config.toml if it is there")
    parser.add_argument("--model", help="model reference; default: the config's")
    parser.add_argument(
        "--max-live", type=int, default=64, metavar="N", help="prompts at a time (default %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="for prompts that do not say")
    parser.add_argument("--temperature", type=float, metavar="T", help="likewise")
    args = parser.parse_args(argv)
    if args.max_live < 1:
        parser.error("--max-live must be at least 1")
    return args


def main(argv: Sequence[str], make_engine: Callable[[Config], Engine] = Engine) -> int:
    """0: all are answered; 1: it was ended before; 2: it cannot be begun. `make_engine`: for tests."""
    args = parsed(argv)
    logs.configure("warning", "text")
    try:
        return asyncio.run(run(args, make_engine))
    except asyncio.CancelledError:
        return 130
    except (StagelineError, OSError) as error:
        print(f"offline: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
