"""`stageline new-stage`: begin a stage of your own: the stage with options, a test, a config."""

import argparse
from pathlib import Path

from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.scaffold.package import Package, package, write
from pipeline.scaffold.place import Place, between, in_place_of, names, of_types
from pipeline.scaffold.render import rendered

DESCRIPTION = """\
Begin a stage of your own: a package NAME with the stage and its options (stage.py), a test that runs it alone
(test_stage.py), and a config that puts it into the server (config.toml). It works from the start: change it
from there. docs/stages.md teaches how.
"""
EXAMPLES = """\
examples:
  stageline new-stage calm --between detokenize stream      changes the text on its way to the clients
  stageline new-stage fast_text --in-place-of detokenize    begins as the built-in stage, to be made faster
  stageline new-stage calm --takes TextBatch --gives TextBatch,Cancel   the same by the types of messages
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "new-stage",
        help="begin a stage of your own",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="of the package: small letters, digits, _")
    parser.add_argument(
        "--in-place-of", metavar="STAGE", help="inherit from this built-in stage, and take its place"
    )
    parser.add_argument(
        "--between", nargs=2, metavar=("STAGE", "STAGE"), help="pass on what one stage sends to the other"
    )
    parser.add_argument("--takes", metavar="X,...", type=_words, help="the messages it takes, and")
    parser.add_argument("--gives", metavar="Y,...", type=_words, help="gives: the place follows from them")
    parser.add_argument(
        "--in", dest="parent", metavar="DIR", type=Path, default=Path(), help="where to (default: here)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files and say what comes next. Raises ConfigError, with nothing written."""
    new = package(args.name, args.parent)
    place = _place(args)
    texts = rendered(new, place)
    write(new.folder, texts)
    print(_said(new, place, list(texts)))
    return 0


def _place(args: argparse.Namespace) -> Place:
    by_types = args.takes is not None or args.gives is not None
    if [args.in_place_of is not None, args.between is not None, by_types].count(True) != 1:
        raise ConfigError(
            "say where it stands: --in-place-of STAGE, or --between STAGE STAGE, or --takes and --gives"
        )
    if args.in_place_of is not None:
        return in_place_of(args.in_place_of)
    if args.between is not None:
        source, target = args.between
        return between(source, target, args.name)
    if args.takes is None or args.gives is None:
        raise ConfigError("--takes and --gives go together")
    return of_types(args.takes, args.gives, args.name)


def _said(new: Package, place: Place, files: list[str]) -> str:
    stage, folder = place.node.name, new.folder_from_home
    what = {
        "__init__.py": "(makes it a package)",
        "stage.py": f"{new.class_name}: {_begins(place)}",
        "test_stage.py": "runs it alone, between a source and a sink",
        "config.toml": f"the default server with it, as the stage `{stage}`",
        "graph.py": "the graph with one more stage",
    }
    config = f"--config {folder}/config.toml"
    steps = {
        "go there": "" if new.home is None else f"cd {new.home}",
        "test it": f"python -m pytest {folder}",
        "check it": f"stageline check-config {config}",
        "bench it": f"stageline bench {stage} {config}",
        "compare it": "" if place.is_new else f"stageline compare {stage} --b {new.use} {config}",
        "serve it": f"stageline serve {config}",
        "swap it": f"stageline swap {stage} {new.use}",
    }
    listed = [f"{new.folder / name}  {what[name]}" for name in files]
    listed += ["", "Change it, then:"]
    listed += [f"  {step:<12}{command}" for step, command in steps.items() if command]
    return "\n".join([*listed, "", "docs/stages.md says more, with examples."])


def _begins(place: Place) -> str:
    if place.passes:
        return f"passes on {names(place.passes)}, between {place.between[0]} and {place.between[1]}"
    return f"inherits from the built-in {place.node.name}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]
