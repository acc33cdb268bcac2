"""`stageline model`: fetch models, list the fetched ones, show what one is."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from pipeline import config
from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.checkpoint.model import describe, load_card, num_parameters
from pipeline.checkpoint.reference import ALLOWED, parse
from pipeline.checkpoint.store import fetch, list_models, models_folder
from pipeline.checkpoint.weight_files import size_bytes
from pipeline.cli import Commands

REFERENCE_HELP = "model reference; by default the one in ./config.toml, else the built-in default"


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "model",
        help="fetch, list and show models",
        description=f"Fetch, list and show models.\n\n{ALLOWED}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="fetch a model into the cache and check that it can be read")
    pull.add_argument("reference", nargs="?", metavar="REF", help=REFERENCE_HELP)
    pull.set_defaults(run=run_pull)
    listing = actions.add_parser("list", help="list the fetched models")
    listing.set_defaults(run=run_list)
    show = actions.add_parser("show", help="show what a model is, fetching it if need be")
    show.add_argument("reference", nargs="?", metavar="REF", help=REFERENCE_HELP)
    show.set_defaults(run=run_show)


def run_pull(args: argparse.Namespace) -> int:
    """Print the model's path on stdout, everything else on stderr."""
    reference = _reference(args)
    path = fetch(parse(reference), refresh=True)
    card = describe(path, reference)
    print(f"{card.name} is ready ({size_bytes(card) / 1e6:.1f} MB):", file=sys.stderr, flush=True)
    print(path)
    return 0


def run_list(args: argparse.Namespace) -> int:
    models = list_models()
    if not models:
        print(f"No model in {models_folder()}. Fetch one: stageline model pull")
        return 0
    table = Table()
    for heading in ("reference", "size", "path"):
        table.add_column(heading, overflow="fold")
    for model in models:
        table.add_row(model.reference, f"{model.size_bytes / 1e6:.1f} MB", model.path)
    _print(table)
    return 0


def run_show(args: argparse.Namespace) -> int:
    card = load_card(_reference(args))
    table = Table(title=card.name, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for row in _facts(card):
        table.add_row(*row)
    _print(table)
    return 0


def _print(table: Table) -> None:
    Console(markup=False, highlight=False).print(table)  # a path may hold [brackets]


def _reference(args: argparse.Namespace) -> str:
    return args.reference or config.load().model.reference


def _facts(card: ModelCard) -> list[tuple[str, str]]:
    shape = card.architecture
    return [
        ("reference", card.reference),
        ("path", str(card.path)),
        ("format", f"{card.format}, {size_bytes(card) / 1e6:.1f} MB"),
        ("family", shape.family),
        ("parameters", f"{num_parameters(card) / 1e6:,.1f} M"),
        ("layers", f"{shape.num_layers} of {shape.hidden_size}, gated {shape.intermediate_size}"),
        ("heads", f"{shape.num_heads} of {shape.head_dim}, {shape.num_kv_heads} for keys and values"),
        ("context", f"{shape.max_position:,} tokens, rope {_rope(shape)}{_windows(shape)}"),
        ("vocabulary", f"{shape.vocab_size:,}, embeddings {'tied' if shape.tie_embeddings else 'untied'}"),
        ("end of answer", ", ".join(_tokens(card)) or "none"),
        ("chat template", "yes" if card.chat_template else "no"),
    ]


def _rope(shape: Architecture) -> str:
    scaling = shape.rope_scaling
    theta = f"theta {shape.rope_theta:g}"
    return theta if scaling is None else f"{theta}, scaled {scaling.factor:g} times ({scaling.kind})"


def _windows(shape: Architecture) -> str:
    windows = [window for window in shape.layer_windows if window]
    return f", {len(windows)} layers see the last {max(windows):,}" if windows else ""


def _tokens(card: ModelCard) -> list[str]:
    tokenizer = card.new_tokenizer()
    return [f"{token_id} {tokenizer.id_to_token(token_id) or ''}".strip() for token_id in card.eos_ids]
