"""What the stage API offers, as its sources declare it: names, signatures, fields, defaults.

`python -m tests.surface` writes it to tests/stage_api.txt, with which a test compares it.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "stage_api.txt"
MODULES = ("pipeline.stage_api", "pipeline.stage_api.testing", "pipeline.messages")
DEVICE_HALF = ("pipeline.gpu.sampling", ("SamplingOp", "SamplingRows"))
"""What a `sample` stage with a device half of its own is made of."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def surface() -> str:
    parts = [(module, importlib.import_module(module).__all__) for module in MODULES]
    return "\n".join(line for part in (*parts, DEVICE_HALF) for line in _offered(*part))


def _offered(module: str, names: Sequence[str]) -> Iterator[str]:
    yield f"# {module}\n"
    for name in sorted(names):
        yield _declared(name, getattr(importlib.import_module(module), name)) + "\n"


def _declared(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{name}: {type(value).__name__}" if " at 0x" in repr(value) else f"{name} = {value!r}"
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(node, ast.ClassDef | Function)
    return ast.unparse(_bare(node)).replace(":\n        ...", ": ...").replace(":\n    ...", ": ...")


def _bare(node: ast.ClassDef | Function) -> ast.stmt:
    """Without docstrings, bodies of functions, and what is private."""
    if isinstance(node, ast.ClassDef):
        node.body = [*map(_member, filter(_is_public, node.body))] or [ast.Expr(ast.Constant(...))]
    else:
        node.body = [ast.Expr(ast.Constant(...))]
    return node


def _member(node: ast.stmt) -> ast.stmt:
    return _bare(node) if isinstance(node, ast.ClassDef | Function) else node


def _is_public(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return not ast.unparse(node.target).startswith("_")
    if isinstance(node, ast.Assign):
        return not ast.unparse(node.targets[0]).startswith("_")
    if isinstance(node, ast.ClassDef | Function):
        return node.name == "__init__" or not node.name.startswith("_")
    return False


if __name__ == "__main__":
    FILE.write_text(surface())
