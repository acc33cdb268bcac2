"""GGUF -> ModelCard: hyperparameters, tokenizer, special ids and chat template from its metadata."""

import re
from pathlib import Path

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.chat_end import eos_ids
from pipeline.checkpoint.gguf_config import architecture_of
from pipeline.checkpoint.gguf_header import read_header
from pipeline.checkpoint.gguf_tokenizer import build_tokenizer, read_vocabulary

_QUANTIZATION = re.compile(r"[.-](?:I?Q\d\w*|T?Q\d_\w+|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)


def describe_gguf(path: Path, reference: str, name: str | None = None) -> ModelCard:
    """The card of the GGUF file at `path`. Raises ModelError if it cannot be read or served."""
    header = read_header(path)
    vocabulary = read_vocabulary(header)
    template = header.metadata.get("tokenizer.chat_template")
    template = template if isinstance(template, str) else None
    tokenizer = build_tokenizer(header, vocabulary)
    named = (vocabulary.eos_token_id, vocabulary.eot_token_id, vocabulary.eom_token_id)
    return ModelCard(
        name=name or display_name(path),
        reference=reference,
        path=path,
        format="gguf",
        architecture=architecture_of(header),
        tokenizer_json=tokenizer.to_str(),
        chat_template=template,
        bos_token=vocabulary.token(vocabulary.bos_token_id),
        eos_token=vocabulary.token(vocabulary.eos_token_id),
        eos_ids=eos_ids(named, template, tokenizer.token_to_id),
    )


def display_name(path: Path) -> str:
    """The file's name without its quantization; general.name often is that of a training run."""
    return _QUANTIZATION.sub("", path.stem)
