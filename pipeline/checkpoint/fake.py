"""A model card without a model: a byte-level tokenizer, for the fake runner, benches and tests."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from pipeline.checkpoint.card import Architecture, ModelCard

END_OF_TEXT, TURN, END_OF_TURN = "<|end|>", "<|turn|>", "<|over|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|over|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_card(max_position: int = 8192) -> ModelCard:
    """Token id b is the byte b; 256, 257 and 258 are the special tokens END_OF_TEXT, TURN and END_OF_TURN."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocab(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (END_OF_TEXT, TURN, END_OF_TURN)]
    )
    architecture = Architecture(
        family="fake",
        num_layers=0,
        hidden_size=0,
        intermediate_size=0,
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        vocab_size=259,
        max_position=max_position,
        rms_norm_eps=0.0,
        rope_theta=0.0,
    )
    return ModelCard(
        name="fake",
        reference="fake",
        path=Path(),
        format="folder",
        architecture=architecture,
        tokenizer_json=tokenizer.to_str(),
        chat_template=CHAT_TEMPLATE,
        bos_token=None,
        eos_token=END_OF_TEXT,
        eos_ids=(256, 258),
    )


def _byte_vocab() -> dict[str, int]:
    """GPT-2's byte alphabet in byte order: printable Latin-1 stands for itself, the rest from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + k) for k, byte in enumerate(others)}
    assert set(letters.values()) == set(ByteLevel.alphabet())
    return {letters[byte]: byte for byte in range(256)}
