"""CSV by column name, with errors that name file, line and column."""

import csv
from collections.abc import Iterator

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.format import Source


class Fields(msgspec.Struct, frozen=True):
    """One line of a CSV file."""

    where: str
    by_name: dict[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def text(self, name: str) -> str:
        """Raises TraceError if there is no such column."""
        try:
            return self.by_name[name]
        except KeyError:
            raise TraceError(f"{self.where}: there is no column {name}") from None

    def count(self, name: str) -> int:
        """Raises TraceError unless it is a whole number, 0 or more."""
        text = self.text(name)
        if not (text.isascii() and text.isdigit()):
            raise TraceError(f"{self.where}: {name}: expected a whole number, 0 or more, got {text!r}")
        return int(text)

    def number(self, name: str) -> float:
        """Raises TraceError unless it is a number, 0 or more."""
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise TraceError(f"{self.where}: {name}: expected a number, 0 or more, got {text!r}")
        return value


def header(line: str) -> set[str]:
    """The column names in a file's first line."""
    return {name.strip() for name in line.split(",")}


def read_columns(source: Source) -> Iterator[Fields]:
    """Each line after the header.

    Raises:
        TraceError: a line has another number of fields than the header.
    """
    reader = csv.reader(source.lines)
    names = [name.strip() for name in next(reader)]
    for values in reader:
        if values:
            where = f"{source.path}:{reader.line_num}"
            if len(values) != len(names):
                raise TraceError(f"{where}: expected {len(names)} fields, got {len(values)}")
            yield Fields(where, dict(zip(names, map(str.strip, values), strict=True)))
