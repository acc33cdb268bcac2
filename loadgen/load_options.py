"""The command line's options of when requests are sent, and of what their clients do."""

import argparse

from loadgen.behaviours import Behaviours, parse_cancel, parse_patience, parse_pause, parse_slow_reader
from loadgen.errors import UsageError
from loadgen.ties import POLICIES
from loadgen.timing import FORMS, Renewal, Scale, parse_ramp, parse_timing
from loadgen.workload import Pacing


def add_pacing(command: argparse.ArgumentParser) -> None:
    """`--timing`, `--speed`, `--ramp`, `--ties`."""
    group = command.add_argument_group("when requests are sent", _forms())
    add = group.add_argument
    add("--timing", metavar="FORM", help="one of the forms above (default trace)")
    add("--speed", metavar="X", help="short for --timing scale=X")
    add(
        "--ramp",
        metavar="FROM:TO",
        help="multiply the rate of rate=, poisson= or gamma= by a factor that goes from FROM to TO in a line "
        "over the run",
    )
    ties = "; ".join(f"{name}: {what}" for name, what in POLICIES.items())
    add(
        "--ties", metavar="POLICY", default="burst", help=f"rows of one recorded time: {ties} (default burst)"
    )


def add_behaviours(command: argparse.ArgumentParser) -> None:
    """What clients do besides asking; all off by default."""
    group = command.add_argument_group("what clients do (drawn per request, by --seed; default: nothing)")
    add = group.add_argument
    add(
        "--patience",
        metavar="MEDIAN_S[,SIGMA]",
        help="give up if the first token has not come within a lognormal time (SIGMA: default 0.5)",
    )
    add(
        "--cancel",
        metavar="P",
        help="with probability P, end the answer after a uniform part of the wanted tokens",
    )
    add("--slow-reader", metavar="P,BYTES_PER_S", help="with probability P, read no faster than this")
    add(
        "--pause",
        metavar="P,SECONDS",
        help="with probability P, stop reading for so long in the middle of the answer",
    )
    add(
        "--reconnect",
        action="store_true",
        help="try once more after a refusal (after its Retry-After, else 1 s), or a connection lost before "
        "the first token",
    )


def _forms() -> str:
    """One line each; for a RawDescriptionHelpFormatter."""
    width = max(map(len, FORMS))
    return "\n".join(f"{form:{width}}  {what}" for form, what in FORMS.items())


def pacing(arguments: argparse.Namespace) -> Pacing:
    """Raises UsageError for a value that cannot be used, or two that exclude each other."""
    if arguments.speed is not None and arguments.timing is not None:
        raise UsageError("--speed X is short for --timing scale=X: give one of them")
    text = "trace" if arguments.speed is None else f"scale={arguments.speed}"
    timing = parse_timing(text if arguments.timing is None else arguments.timing)
    ramp = None if arguments.ramp is None else parse_ramp(arguments.ramp)
    if ramp is not None and not isinstance(timing, Renewal):
        raise UsageError(f"--ramp {ramp}: needs --timing rate=R, poisson=R or gamma=R,CV, not {timing}")
    if arguments.ties not in POLICIES:
        raise UsageError(f"--ties {arguments.ties}: unknown; known: {', '.join(POLICIES)}")
    if arguments.ties != "burst" and not isinstance(timing, Scale):
        raise UsageError(
            f"--ties {arguments.ties}: needs recorded times (--timing trace or scale=X), not {timing}"
        )
    return Pacing(timing, arguments.ties, ramp, arguments.seed)


def behaviours(arguments: argparse.Namespace) -> Behaviours:
    """Raises UsageError for a value that cannot be used."""
    return Behaviours(
        None if arguments.patience is None else parse_patience(arguments.patience),
        0.0 if arguments.cancel is None else parse_cancel(arguments.cancel),
        None if arguments.slow_reader is None else parse_slow_reader(arguments.slow_reader),
        None if arguments.pause is None else parse_pause(arguments.pause),
        arguments.reconnect,
    )
