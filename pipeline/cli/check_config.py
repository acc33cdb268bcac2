"""`stageline check-config`: read the configuration and show what would run, without starting it."""

import argparse
from pathlib import Path
from typing import Any

from pipeline.cli import Commands
from pipeline.config import Config, StageConfig, load


def register(commands: Commands) -> None:
    parser = commands.add_parser("check-config", help="check config.toml and show what would run")
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the stages as configured. Raises ConfigError for the first fault."""
    config = load(args.config)
    _print(config)
    return 0


def _print(config: Config) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Stages ({config.origin})", title_justify="left")
    for heading in ("stage", "class", "inbox", "workers", "options"):
        table.add_column(heading, overflow="fold")
    for name, stage in config.stages.items():
        table.add_row(*_row(name, stage))
    console = Console()
    console.print(table)
    console.print(f"model: {config.model.reference}", markup=False, soft_wrap=True)
    console.print("The configuration is good.")


def _row(name: str, stage: StageConfig) -> tuple[str, ...]:
    return name, stage.use, str(stage.inbox), str(stage.workers), _shown(stage.options)


def _shown(options: dict[str, Any]) -> str:
    return "\n".join(f"{key} = {value!r}" for key, value in options.items())
