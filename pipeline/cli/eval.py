"""`stageline eval`: what quantised weights and quantised KV cost in quality, as numbers on your text."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline import config as configuration
from pipeline import logs
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.gpu.evaluation.evidence import (
    MAX_INCREASE,
    MIN_TOKENS,
    SCHEMES,
    Evidence,
    find_evidence,
    save_evidence,
)

if TYPE_CHECKING:
    from pipeline.gpu.evaluation.answers import AnswerScore
    from pipeline.gpu.evaluation.evaluate import Score, Setting

DESCRIPTION = f"""\
Read a text with a model in several ways, and compare: the perplexity, and how often they think the same
token the most likely.

Weights: --weights is compared with --against. Results for int4 (a GGUF's own quantised blocks, of 4 bits or
not) and int8 are recorded, and weights = "auto" goes by them: the first of the two for which {MIN_TOKENS:,}
tokens or more have shown an increase of at most {MAX_INCREASE:.0%}, else bf16.

KV: each --kv-dtype and each --kv-eviction is compared with the cache that is not quantised and keeps all,
with the same --weights, on texts and by greedy answers to prompts. Where blocks are dropped, steps are of one
block, so that they are dropped as in decoding, and what is read before the budget is full is not scored,
with any setting.

examples:
  stageline eval --text docs/*.md
  stageline eval --kv-dtype int8 fp8 int4 --text docs/*.md
  stageline eval --kv-dtype int8 --prompts prompts.jsonl
  stageline eval --kv-eviction sink_window heavy_hitter --kv-budget 50% --text docs/*.md
"""
KV_WINDOW = 2048
"""Tokens that a comparison of KV reads in one go: many, for that is where KV counts."""


class Results(TypedDict, total=False):
    """--json of a comparison of KV."""

    text: "list[Score]"
    prompts: "list[AnswerScore]"


class _Prompt(msgspec.Struct):
    prompt: str


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure what quantised weights and KV cost in quality",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="REF", help="model reference; by default the one in ./config.toml")
    parser.add_argument("--text", nargs="+", type=Path, default=[], metavar="FILE", help="UTF-8 text")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=_PROMPTS_HELP)
    parser.add_argument("--max-prompts", type=_count, default=32, metavar="N", help="of the file (32)")
    parser.add_argument("--answer-tokens", type=_count, default=64, metavar="N", help="of an answer (64)")
    parser.add_argument(
        "--weights",
        choices=("int4", "int8", "bf16", "fp32"),
        help="default: int8; bf16 where KV is compared",
    )
    parser.add_argument("--against", choices=("fp32", "bf16"), default="fp32", help="default: fp32")
    parser.add_argument("--kv-dtype", nargs="+", choices=("bf16", "int8", "fp8", "int4"), default=[])
    parser.add_argument("--kv-eviction", nargs="+", choices=("sink_window", "heavy_hitter"), default=[])
    parser.add_argument("--kv-budget", default="50%", metavar="N|P%", help=_BUDGET_HELP)
    parser.add_argument("--window", type=_count, default=KV_WINDOW, metavar="N", help=_WINDOW_HELP)
    parser.add_argument(
        "--max-tokens", type=_count, default=16_384, metavar="N", help="of the text, from its start (16384)"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=run)


_PROMPTS_HELP = 'lines such as {"prompt": "..."}, completed as /v1/completions does; for KV only'
_BUDGET_HELP = "tokens that stay where KV is dropped, or their share of the window (50%%)"
_WINDOW_HELP = f"tokens that a comparison of KV reads in one go ({KV_WINDOW})"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and record it if it is of int4 or int8 weights."""
    logs.configure("warning", "text")
    is_of_kv = bool(args.kv_dtype or args.kv_eviction)
    args.weights = args.weights or ("bf16" if is_of_kv else "int8")
    _check(args, is_of_kv)
    card = load_card(args.model or configuration.load().model.reference)
    if is_of_kv:
        _compare_kv(args, card)
    else:
        _compare_weights(args, card)
    return 0


def _check(args: argparse.Namespace, is_of_kv: bool) -> None:
    if args.prompts and not is_of_kv:
        raise ConfigError("--prompts: only with --kv-dtype or --kv-eviction")
    if not (args.text or args.prompts):
        raise ConfigError("there is nothing to read: --text" + (" or --prompts" if is_of_kv else ""))


def _compare_kv(args: argparse.Namespace, card: ModelCard) -> None:
    from pipeline.gpu.evaluation.answers import compare_answers
    from pipeline.gpu.evaluation.evaluate import compare

    settings, results, tables = _settings(args), Results(), list[Table]()
    token_ids = _token_ids(args, card) if args.text else []
    prompts = _read_prompts(card, args.prompts)[: args.max_prompts] if args.prompts else []
    if args.text:
        results["text"] = scores = compare(card, token_ids, settings, args.window, _say)
        tables.append(_table_of_kv(card, scores))
    if args.prompts:
        results["prompts"] = answers = compare_answers(card, prompts, settings, args.answer_tokens, _say)
        tables.append(_table_of_answers(card, answers))
    _print(args, results, *tables)


def _settings(args: argparse.Namespace) -> "list[Setting]":
    from pipeline.gpu.evaluation.evaluate import Setting

    weights, budget = args.weights, _budget(args.kv_budget, args.window)
    quantised = [Setting(weights, kv_dtype) for kv_dtype in args.kv_dtype]
    sparse = [Setting(weights, kv_eviction=kind, kv_budget=budget) for kind in args.kv_eviction]
    return [Setting(weights), *quantised, *sparse]


def _budget(wanted: str, size: int) -> int:
    match = re.fullmatch(r"(\d+)(%?)", wanted)
    if match is None:
        raise ConfigError(f"--kv-budget: {wanted} is neither a number of tokens nor a percentage such as 50%")
    return int(match[1]) * size // 100 if match[2] else int(match[1])


def _compare_weights(args: argparse.Namespace, card: ModelCard) -> None:
    from pipeline.gpu.evaluation.evaluate import evaluate

    evidence = evaluate(card, _token_ids(args, card), args.weights, args.against, _say)
    _print(args, evidence, _table_of_weights(card, evidence, args.weights))
    if args.weights in SCHEMES:
        _record(card, evidence)


def _token_ids(args: argparse.Namespace, card: ModelCard) -> list[int]:
    text = "\n".join(_read_file("--text", file) for file in args.text)
    return card.new_tokenizer().encode(text, add_special_tokens=False).ids[: args.max_tokens]


def _read_prompts(card: ModelCard, file: Path) -> list[list[int]]:
    lines = [line for line in _read_file("--prompts", file).splitlines() if line.strip()]
    try:
        prompts = [msgspec.json.decode(line, type=_Prompt).prompt for line in lines]
    except msgspec.DecodeError as error:
        raise ConfigError(f"--prompts: {file}: {error}") from error
    if not (prompts and all(prompts)):
        raise ConfigError(f"--prompts: {file}: there is no prompt, or an empty one")
    return [encoding.ids for encoding in card.new_tokenizer().encode_batch(prompts)]


def _read_file(option: str, file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {error}") from error


def _print(args: argparse.Namespace, result: object, *tables: Table) -> None:
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        Console(markup=False, highlight=False).print(*tables, sep="\n")


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


def _table_of_answers(card: ModelCard, scores: "list[AnswerScore]") -> Table:
    first = scores[0]
    counts = f"{first.num_answers:,} answers, {first.num_tokens:,} tokens"
    title = f"{card.name}, {first.weights} weights, {counts}"
    table = Table("KV", "same answer", "same tokens", title=title, min_width=len(title) + 2)
    for score in scores:
        table.add_row(score.kv, f"{score.same:.2%}", f"{score.agreement:.2%}")
    return table


def _record(card: ModelCard, evidence: Evidence) -> None:
    from pipeline.gpu.weights.choice import choose_weights

    try:
        path = save_evidence(card, evidence)
    except OSError as error:
        raise ConfigError(f"the record cannot be written: {error}") from error
    choice = choose_weights("auto", find_evidence(card))
    found = f"{evidence.scheme}: {evidence.increase:+.2%}"
    if evidence.num_tokens < MIN_TOKENS:
        found += f" of {evidence.num_tokens:,} predictions, too few to go by: at least {MIN_TOKENS:,}"
    _say(f'weights = "auto" is now {choice} for this model ({found}): {path}')


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
