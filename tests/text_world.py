"""What the text side's tests share: tokenizers of both kinds, sinks that remember, one stage alone."""

from collections.abc import Callable
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.errors import RequestError
from pipeline.messages import Completion, Started, TokenBatch
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.telemetry import Telemetry

WORDS = ["▁Hi", "▁the", "re", "▁▁", "é", "漢", "lo", "\n\n"]


def byte_fallback_tokenizer(*, prepends: bool = True, bos: bool = True) -> Tokenizer:
    """SentencePiece style, as Llama 2 has it: U+2581 for spaces, <0xNN> for what has no token."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", *"abcdefghijklmnopqrstuvwxyzH<>|_/[]é漢\n", *WORDS[:2]]
    merges = [
        ("l", "o"),
        ("r", "e"),
        ("▁", "▁"),
        ("H", "i"),
        ("▁", "Hi"),
        ("h", "e"),
        ("t", "he"),
        ("▁", "the"),
    ]
    names += [left + right for left, right in merges]
    vocab = {name: token_id for token_id, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if prepends else spaces)
    fused = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*fused, decoders.Strip(" ", 1, 0)] if prepends else fused)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def card_of(tokenizer: Tokenizer, **fields: Any) -> ModelCard:
    """byte_card() with another tokenizer, and the fields named."""
    card = byte_card()
    vocab_size = tokenizer.get_vocab_size()
    architecture = msgspec.structs.replace(card.architecture, vocab_size=vocab_size)
    return msgspec.structs.replace(
        card, tokenizer_json=tokenizer.to_str(), architecture=architecture, **fields
    )


class Sink:
    """A client that remembers, and that reads when told: `reads` False keeps all it is sent in its buffer."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.deltas: list[tuple[str, int]] = []
        self.endings: list[Completion | RequestError] = []
        self.buffered = 0
        self.away = False

    def delta(self, text: str, num_tokens: int) -> None:
        assert not self.endings, "text after the end"
        self.deltas.append((text, num_tokens))
        if not self.reads:
            self.buffered += len(text.encode())

    def done(self, completion: Completion) -> None:
        self.endings.append(completion)

    def error(self, error: RequestError) -> None:
        self.endings.append(error)

    def buffered_bytes(self) -> int:
        return self.buffered

    def is_away(self) -> bool:
        return self.away

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.deltas)

    @property
    def ending(self) -> Completion | RequestError:
        (ending,) = self.endings
        return ending

    @property
    def completion(self) -> Completion:
        assert isinstance(self.ending, Completion)
        return self.ending


class World:
    """A stage alone: an inbox before it and one behind each of its outlets."""

    def __init__(
        self,
        stage: Callable[..., Any],
        options: msgspec.Struct,
        *,
        card: ModelCard | None = None,
        **context: Any,
    ) -> None:
        self.inbox: Inbox[Any] = Inbox(1024)
        self.outboxes: dict[type, Inbox[Any]] = {kind: Inbox(1024) for kind in stage.gives}  # type: ignore[attr-defined]
        self.telemetry = Telemetry()
        resources: dict[type, object] = {ModelCard: card or byte_card(), Telemetry: self.telemetry}
        self.stage = stage(StageContext("stage", self.inbox, self.outboxes, resources, **context), options)
        self.telemetry.watch(self.stage.gauges)

    async def sent(self, kind: type) -> list[Any]:
        """What the stage has sent of this type since the last call."""
        outbox = self.outboxes[kind]
        stats = outbox.stats()
        waiting = stats.depth + len(outbox._control)
        return await outbox.recv_many() if waiting else []


def tokens(
    *rows: tuple[int, int, int], started: tuple[Started, ...] = (), step_id: int = 1, **fields: Any
) -> TokenBatch:
    """A TokenBatch of (request_id, token_id, finish_reason) rows."""
    ids, token_ids, reasons = ([row[column] for row in rows] for column in range(3))
    defaults: dict[str, Any] = {"times": [], "elapsed_ns": (0,) * 6, "sent_ns": 0}
    return TokenBatch(step_id, ids, token_ids, reasons, list(started), **(defaults | fields))
