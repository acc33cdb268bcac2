"""`stageline eval`: what quantised weights and quantised KV cost in quality, as numbers on your text."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline import config as configuration
from pipeline import logs
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.gpu.evidence import INT8_SCHEME, MAX_INCREASE, MIN_TOKENS, Evidence, save_evidence

if TYPE_CHECKING:
    from pipeline.gpu.evaluate import Score, Setting

DESCRIPTION = f"""\
Read a text with a model in several ways, and compare: the perplexity, and how often they think the same
token the most likely.

Weights: --weights is compared with --against. The result for int8 is recorded, and weights = "auto" goes by
it: int8 where {MIN_TOKENS:,} tokens or more have shown an increase of at most {MAX_INCREASE:.0%}.

KV: each --kv-dtype is compared with the unquantised cache, all with the same --weights.

examples:
  stageline eval --text docs/*.md
  stageline eval --kv-dtype int8 fp8 int4 --text docs/*.md
"""
KV_WINDOW = 2048
"""Tokens that a comparison of KV reads in one go: many, for that is where KV counts."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure what quantised weights and KV cost in quality",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="REF", help="model reference; by default the one in ./config.toml")
    parser.add_argument("--text", nargs="+", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument(
        "--weights", choices=("int8", "bf16", "fp32"), help="default: int8; bf16 where KV is compared"
    )
    parser.add_argument("--against", choices=("fp32", "bf16"), default="fp32", help="default: fp32")
    parser.add_argument("--kv-dtype", nargs="+", choices=("bf16", "int8", "fp8", "int4"), default=[])
    parser.add_argument("--window", type=int, default=KV_WINDOW, metavar="N", help=_WINDOW_HELP)
    parser.add_argument(
        "--max-tokens", type=int, default=16_384, metavar="N", help="of the text, from its start (16384)"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=run)


_WINDOW_HELP = f"tokens that a comparison of KV reads in one go ({KV_WINDOW})"


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and record it if it is of int8 weights."""
    logs.configure("warning", "text")
    card = load_card(args.model or configuration.load().model.reference)
    token_ids = _token_ids(card, args.text)[: args.max_tokens]
    is_of_kv = bool(args.kv_dtype)
    args.weights = args.weights or ("bf16" if is_of_kv else "int8")
    if is_of_kv:
        _compare_kv(args, card, token_ids)
    else:
        _compare_weights(args, card, token_ids)
    return 0


def _compare_kv(args: argparse.Namespace, card: ModelCard, token_ids: list[int]) -> None:
    from pipeline.gpu.evaluate import compare

    scores = compare(card, token_ids, _settings(args), args.window, _say)
    _print(args, scores, _table_of_kv(card, scores))


def _settings(args: argparse.Namespace) -> "list[Setting]":
    from pipeline.gpu.evaluate import Setting

    return [Setting(args.weights), *(Setting(args.weights, kv_dtype) for kv_dtype in args.kv_dtype)]


def _compare_weights(args: argparse.Namespace, card: ModelCard, token_ids: list[int]) -> None:
    from pipeline.gpu.evaluate import evaluate

    evidence = evaluate(card, token_ids, args.weights, args.against, _say)
    _print(args, evidence, _table_of_weights(card, evidence, args.weights))
    if args.weights == "int8":
        _record(card, evidence)


def _token_ids(card: ModelCard, files: list[Path]) -> list[int]:
    try:
        text = "\n".join(file.read_text("utf-8") for file in files)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text: {error}") from error
    return card.new_tokenizer().encode(text, add_special_tokens=False).ids


def _print(args: argparse.Namespace, result: "Evidence | list[Score]", table: Table) -> None:
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        Console(markup=False, highlight=False).print(table)


def _table_of_weights(card: ModelCard, evidence: Evidence, weights: str) -> Table:
    table = Table("weights", "perplexity", "", title=f"{card.name}, {evidence.num_tokens:,} predictions")
    table.add_row(evidence.against, f"{evidence.baseline:.4f}")
    table.add_row(weights, f"{evidence.perplexity:.4f}", f"{evidence.increase:+.2%}")
    table.add_row("same best token", "", f"{evidence.agreement:.2%}")
    return table


def _table_of_kv(card: ModelCard, scores: "list[Score]") -> Table:
    title = f"{card.name}, {scores[0].weights} weights, {scores[0].num_tokens:,} predictions"
    table = Table("KV", "bytes a token", "perplexity", "", "same best token", title=title)
    for number, score in enumerate(scores):
        against = (f"{score.increase:+.2%}", f"{score.agreement:.2%}") if number else ("", "")
        table.add_row(score.kv, f"{score.kv_bytes_a_token:,}", f"{score.perplexity:.4f}", *against)
    return table


def _record(card: ModelCard, evidence: Evidence) -> None:
    try:
        path = save_evidence(card, evidence)
    except OSError as error:
        raise ConfigError(f"the record cannot be written: {error}") from error
    choice = "int8" if evidence.allows_int8 else "bf16"
    _say(f'weights = "auto" is now {choice} for this model ({INT8_SCHEME}): {path}')


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
