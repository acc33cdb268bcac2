"""A page's fenced blocks, done as a reader would: files, commands, and what they are said to print.

The word after a block's language says what it is: `file=PATH` is that file, `add=PATH` goes to its end,
`from=PATH` is a part of that file of this repository, `serve` a command that goes on.
"""

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(\w*)[ \t]*(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    word: str
    text: str


class Command(NamedTuple):
    line: str
    status: int
    says: tuple[str, ...]
    """Lines, or parts of lines, of its output."""


def blocks(page: str) -> list[Block]:
    return [Block(*match.groups()) for match in _FENCE.finditer(page)]


def section(page: str, title: str) -> str:
    """What stands under a heading of the second level."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(text)


def commands(block: Block) -> list[Command]:
    """Of a `console` block: after each "$ " a command, then what it says. "# exit 1" tells its status."""
    found: list[Command] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *says = part.splitlines()
        line, _, status = line.partition("  # exit ")
        found.append(Command(line, int(status or 0), tuple(says)))
    return found


def write(block: Block, folder: Path) -> None:
    """Do what a block with `file=` or `add=` says."""
    kind, _, path = block.word.partition("=")
    before = (folder / path).read_text() + "\n\n" if kind == "add" else ""
    (folder / path).write_text(before + block.text)
