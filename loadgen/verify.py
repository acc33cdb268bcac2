"""Were the answers given under load the right ones? Each prompt is asked once more, alone, and compared."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.progress import Progress, TextColumn

from loadgen.clients import Client, Prompt
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


async def verify(
    records: list[Record],
    jobs: list[Job],
    prompt_of: Callable[[Job], Prompt],
    client: Client,
    timeout_s: float,
    console: Console,
) -> Verification:
    """Replays, one at a time, every prompt that has an answer in `records`, whose texts were kept.

    Requests are greedy (temperature 0), so that an answer does not depend on what else is served.
    """
    groups = _by_request(records, jobs, prompt_of)
    found = Verification(len(groups), *_counts(records), [], [])
    for number, ((_, num_output), group) in enumerate(_shown(groups, console)):
        alone = Record(-1 - number, 0.0, None, num_output, text="")
        await _ask(prompt_of(jobs[group[0].index]), alone, client, timeout_s)
        if alone.failure is not None:
            found.unanswered.append(
                f"request {group[0].index} alone: {alone.failure.reason}: {alone.failure.message}"
            )
            continue
        found.mismatches.extend(filter(None, (compare(record, alone.text or "") for record in group)))
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


_Request = tuple[bytes, int]
"""A prompt, encoded, and the length asked for."""


def _by_request(
    records: list[Record], jobs: list[Job], prompt_of: Callable[[Job], Prompt]
) -> dict[_Request, list[Record]]:
    """Records with a text, by what was asked."""
    groups: dict[_Request, list[Record]] = {}
    for record in records:
        if record.text:
            key = msgspec.json.encode(prompt_of(jobs[record.index])), record.planned_output
            groups.setdefault(key, []).append(record)
    return groups


def _counts(records: list[Record]) -> tuple[int, int]:
    """Whole and partial answers with a text."""
    num_whole = sum(record.is_finished for record in records if record.text)
    return num_whole, sum(bool(record.text) for record in records) - num_whole


def _shown(groups: dict[_Request, list[Record]], console: Console) -> Iterator[tuple[_Request, list[Record]]]:
    """The groups one by one, with a bar on a terminal, and a line now and then elsewhere."""
    if console.is_terminal:
        bar = Progress(
            "verifying",
            *Progress.get_default_columns()[1:],
            TextColumn("{task.completed}/{task.total}"),
            console=console,
            transient=True,
        )
        with bar:
            yield from bar.track(groups.items(), total=len(groups))
        return
    for number, item in enumerate(groups.items(), start=1):
        yield item
        if number % _PLAIN_EVERY == 0 or number == len(groups):
            console.print(f"verified {number}/{len(groups)} prompts alone", highlight=False)


async def _ask(prompt: Prompt, record: Record, client: Client, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await client.generate(prompt, record.planned_output, record)
    except TimeoutError:
        record.fail("timeout", f"no complete answer within {timeout_s:g} s")


def _excerpt(text: str, at: int) -> str:
    """The text around a character, as it would stand in a program: differences in white space show."""
    return repr(text[max(0, at - _AROUND) : at + _AROUND])
