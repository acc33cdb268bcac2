"""Numbers on the command line, as argparse types: what is wrong is said with what is expected."""

import argparse
import math


def count(text: str) -> int:
    """A whole number, 1 or more. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A positive, finite number. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value
