"""`stageline check-config`: read the configuration and show what would run, without starting it."""

import argparse
from pathlib import Path

from msgspec.structs import asdict
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.assemble import Blueprint, check, device_options
from pipeline.cli import Commands
from pipeline.cli.graph_text import as_mermaid, as_text
from pipeline.config import load


def register(commands: Commands) -> None:
    parser = commands.add_parser("check-config", help="check config.toml and show what would run")
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument(
        "--graph",
        nargs="?",
        const="text",
        choices=("text", "mermaid"),
        help="draw the stages and links that would run instead, as text or for Mermaid",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the classes, convert their options, print both. Raises ConfigError for the first fault."""
    config = load(args.config)
    blueprint = check(config)
    if args.graph:
        graph = blueprint.graph
        print(as_mermaid(graph) if args.graph == "mermaid" else as_text(graph, config.stages))
        return 0
    console = Console()
    console.print(_stages(blueprint))
    console.print(f"model:  {config.model.reference}", markup=False, highlight=False, soft_wrap=True)
    device = "  ".join(_lines(asdict(device_options(config))))
    console.print(f"device: {device}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{config.origin}: no fault found.", markup=False)
    return 0


def _stages(blueprint: Blueprint) -> Table:
    table = Table("stage", "class", "inbox", "workers", "options", title="Stages, in the order of the data")
    for name, stage in blueprint.config.stages.items():
        options = "\n".join(_lines(asdict(blueprint.options[name])))
        use = stage.use.replace(":", ":\n")
        table.add_row(name, use, str(stage.inbox), str(stage.workers), escape(options))
    return table


def _lines(options: dict[str, object]) -> list[str]:
    return [f"{key} = {value!r}" for key, value in options.items()]
