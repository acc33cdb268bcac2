"""ShareGPT: one JSON list of `{"conversations": [{"from": "human" or "gpt", "value"}]}`, without times.

The users' turns are sent, each after the answer that this server gives to the one before. A leading
system message goes with the first. The recorded answers are not used: how many tokens they are only their
tokenizer knows.
"""

from collections.abc import Iterator

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.prompt_files import turns
from loadgen.traces.row import OUTPUT_TOKENS, Dropped, Message, Note, TraceRow

_USERS = ("human", "user")


class _Said(msgspec.Struct, rename={"who": "from"}):
    who: str
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Said]


def matches(source: Source) -> bool:
    head = "".join(source.lines[:20])
    return head.lstrip().startswith("[") and '"conversations"' in head


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    try:
        conversations = msgspec.json.decode("\n".join(source.lines), type=list[_Conversation])
    except msgspec.DecodeError as error:
        raise TraceError(f"{source.path}: {error}") from error
    number = 0
    for conversation in conversations:
        for row in _rows(conversation.conversations, number):
            yield row
            number += 1
    yield Note(f"no output lengths are given: {OUTPUT_TOKENS} tokens are asked of each row")


def _rows(said: list[_Said], number: int) -> Iterator[TraceRow | Dropped]:
    texts = [message.value for message in said if message.who in _USERS]
    if not texts or not all(text.strip() for text in texts):
        yield Dropped("no user turn, or an empty one", TraceRow(0, None, OUTPUT_TOKENS))
        return
    first, *others = turns(texts, [0.0] * len(texts), OUTPUT_TOKENS, number)
    system = said[0].value if said[0].who == "system" else None
    if system is not None:
        yield TraceRow(0, None, OUTPUT_TOKENS, (Message("system", system), Message("user", texts[0])))
    else:
        yield first
    yield from others


FORMAT = Format(
    "sharegpt", 'a JSON list of {"conversations": [...]}, without times', matches, read, is_timed=False
)
