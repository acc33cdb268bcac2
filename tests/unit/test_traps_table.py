"""docs/traps.md names tests: each is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_trap_has_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "traps.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) > 40
    assert all(NAMED.search(row) for row in rows)
    numbers = [row.split("|")[1].strip() for row in rows]
    assert len(numbers) == len(set(numbers))
    for file, name in NAMED.findall(text):
        assert (ROOT / file).exists(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"
