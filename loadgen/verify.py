"""Were the answers given under load the right ones? Each prompt is asked once more, alone, and compared."""

import asyncio
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.progress import track

from loadgen.clients import Client, Prompt
from loadgen.content import Contents
from loadgen.conversations import Conversations
from loadgen.record import Record
from loadgen.workload import Job

_AROUND = 30
"""Characters shown on each side of the first difference."""
_PLAIN_EVERY = 20
"""Without a terminal, a line each so many prompts."""


class Mismatch(msgspec.Struct, frozen=True):
    """An answer that is not what the same server gives to the same prompt alone."""

    index: int
    at: int
    """The first differing character."""
    under_load: str
    """The answer around it."""
    alone: str


class Verification(msgspec.Struct, frozen=True):
    num_prompts: int
    """Distinct ones, each replayed alone."""
    num_whole: int
    """Whole answers that were compared text for text."""
    num_partial: int
    """Answers without an end (left by their client, or failed): each must be how the whole one begins."""
    mismatches: list[Mismatch]
    unanswered: list[str]
    """Why a prompt has no answer to compare with, one line for each."""

    @property
    def is_clean(self) -> bool:
        return not self.mismatches and not self.unanswered


class _Asked(msgspec.Struct, frozen=True):
    """What was sent, and all that came back for it."""

    prompt: Prompt
    num_output: int
    records: list[Record]


async def verify(
    records: list[Record],
    jobs: list[Job],
    contents: Contents,
    client: Client,
    timeout_s: float,
    console: Console,
) -> Verification:
    """Replays, one at a time, every prompt that has an answer in `records`, whose texts were kept.

    Requests are greedy (temperature 0), so that an answer does not depend on what else is served.
    """
    asked = distinct(records, jobs, contents)
    found = Verification(len(asked), *_counts(records), [], [])
    for number, one in enumerate(_shown(asked, console)):
        alone = Record(-1 - number, 0.0, None, one.num_output, text="")
        await _ask(one.prompt, alone, client, timeout_s)
        if alone.failure is not None:
            why = f"{alone.failure.reason}: {alone.failure.message}"
            found.unanswered.append(f"request {one.records[0].index} alone: {why}")
            continue
        found.mismatches.extend(filter(None, (compare(record, alone.text or "") for record in one.records)))
    return found


def compare(record: Record, alone: str) -> Mismatch | None:
    """None if the record's text is `alone`, or, where the answer has no end, how it begins."""
    text = record.text or ""
    wanted = alone if record.is_finished else alone[: len(text)]
    if text == wanted:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(text, alone, strict=False)) if a != b), min(len(text), len(alone))
    )
    return Mismatch(record.index, at, _excerpt(text, at), _excerpt(alone, at))


def distinct(records: list[Record], jobs: list[Job], contents: Contents) -> list[_Asked]:
    """Records with a text by what was sent, which for a later turn of a chat holds the answers before it.

    Args:
        records: in order of sending.
    """
    chats = Conversations(jobs, contents.prompt)
    asked: dict[tuple[bytes, int], _Asked] = {}
    for record in records:
        if record.text is None:
            continue  # never sent
        job = jobs[record.index]
        prompt = chats.prompt(job)
        if record.failure is None and not record.abandoned:
            chats.answered(job, record.text)
        if record.text:
            key = msgspec.json.encode(prompt), job.num_output
            asked.setdefault(key, _Asked(prompt, job.num_output, [])).records.append(record)
    return list(asked.values())


def _counts(records: list[Record]) -> tuple[int, int]:
    """Whole and partial answers with a text."""
    num_whole = sum(record.is_finished for record in records if record.text)
    return num_whole, sum(bool(record.text) for record in records) - num_whole


def _shown(asked: list[_Asked], console: Console) -> Iterator[_Asked]:
    """One by one, with a bar on a terminal, and a line now and then elsewhere."""
    if console.is_terminal:
        yield from track(asked, "verifying", console=console, transient=True)
        return
    for number, one in enumerate(asked, start=1):
        yield one
        if number % _PLAIN_EVERY == 0 or number == len(asked):
            console.print(f"verified {number}/{len(asked)} prompts alone", highlight=False)


async def _ask(prompt: Prompt, record: Record, client: Client, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await client.generate(prompt, record.planned_output, record)
    except TimeoutError:
        record.fail("timeout", f"no complete answer within {timeout_s:g} s")


def _excerpt(text: str, at: int) -> str:
    """The text around a character, as it would stand in a program: differences in white space show."""
    return repr(text[max(0, at - _AROUND) : at + _AROUND])
