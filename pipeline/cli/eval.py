"""`stageline eval`: what quantised weights cost in quality, as numbers on a text of yours."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline import config as configuration
from pipeline import logs
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.gpu.evidence import MAX_INCREASE, MIN_TOKENS, SCHEMES, Evidence, find_evidence, save_evidence

DESCRIPTION = f"""\
Read a text with a model twice, with other weights and with those they are to replace, and compare: the
perplexity, and how often both think the same token the most likely.

The results for int4 (a GGUF's own quantised blocks, of 4 bits or not) and int8 are recorded, and
weights = "auto" goes by them: the first of the two for which {MIN_TOKENS:,} tokens or more have shown an
increase of at most {MAX_INCREASE:.0%}, else bf16.

example:
  stageline eval --text docs/*.md
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure what quantised weights cost in quality",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="REF", help="model reference; by default the one in ./config.toml")
    parser.add_argument("--text", nargs="+", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--weights", choices=("int4", "int8", "bf16"), default="int8", help="default: int8")
    parser.add_argument("--against", choices=("fp32", "bf16"), default="fp32", help="default: fp32")
    parser.add_argument(
        "--max-tokens", type=int, default=16_384, metavar="N", help="of the text, from its start (16384)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and record it if it is of int4 or int8."""
    from pipeline.gpu.evaluate import evaluate

    logs.configure("warning", "text")
    card = load_card(args.model or configuration.load().model.reference)
    token_ids = _token_ids(card, args.text)[: args.max_tokens]
    evidence = evaluate(card, token_ids, args.weights, args.against, _say)
    Console(markup=False, highlight=False).print(_table(card, evidence, args.weights))
    if args.weights in SCHEMES:
        _record(card, evidence)
    return 0


def _token_ids(card: ModelCard, files: list[Path]) -> list[int]:
    try:
        text = "\n".join(file.read_text("utf-8") for file in files)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text: {error}") from error
    return card.new_tokenizer().encode(text, add_special_tokens=False).ids


def _table(card: ModelCard, evidence: Evidence, weights: str) -> Table:
    table = Table("weights", "perplexity", "", title=f"{card.name}, {evidence.num_tokens:,} predictions")
    table.add_row(evidence.against, f"{evidence.baseline:.4f}")
    table.add_row(weights, f"{evidence.perplexity:.4f}", f"{evidence.increase:+.2%}")
    table.add_row("same best token", "", f"{evidence.agreement:.2%}")
    return table


def _record(card: ModelCard, evidence: Evidence) -> None:
    from pipeline.gpu.weight_choice import choose_weights

    try:
        path = save_evidence(card, evidence)
    except OSError as error:
        raise ConfigError(f"the record cannot be written: {error}") from error
    choice = choose_weights("auto", find_evidence(card))
    found = f"{evidence.scheme}: {evidence.increase:+.2%}"
    print(f'weights = "auto" is now {choice} for this model ({found}): {path}')


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
