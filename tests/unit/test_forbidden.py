"""What the code may not call: ways to run data, to trust a file, to let a hash be chosen."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "loadgen")

MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "yaml",
    "xmlrpc",
    "code",
}
"""Formats that run code when they are read; YAML, which has such loaders, is not used at all."""
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
CALLS = {
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "multiprocessing.connection.Client",
    "multiprocessing.connection.Listener",
    "jinja2.Environment",
    "jinja2.sandbox.SandboxedEnvironment",
}
"""The sandbox that templates get is ImmutableSandboxedEnvironment."""
KEYWORDS = {
    "shell": True,
    "trust_remote_code": True,
    "allow_pickle": True,
    "weights_only": False,
}
MAY_HASH = {
    "pipeline/runtime/testing.py": "a fake device tells histories of one run apart",
    "pipeline/simulate/memory_scenarios.py": "numbers of one simulation, all of them its own",
}
"""`hash()` is short, unkeyed, and of strings another in every process: never a key of what clients send."""


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of such an expression; empty of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


class Names(dict[str, str]):
    """What each name that a file imports stands for."""

    def __init__(self, tree: ast.AST) -> None:
        super().__init__()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.update({each.asname: each.name for each in node.names if each.asname})
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})

    def full(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        return self.get(first, first) + dot + rest


def faults(source: str, file: str = "") -> Iterator[str]:
    """What is forbidden in a file, with its line."""
    tree = ast.parse(source)
    names = Names(tree)
    for node in ast.walk(tree):
        for what in _faults(node, names, file):
            yield f"{file}:{getattr(node, 'lineno', 0)}: {what}"


def _faults(node: ast.AST, names: Names, file: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if each.name.partition(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        if (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
    elif isinstance(node, ast.Call):
        name = names.full(dotted(node.func))
        if name in BUILTINS or name in CALLS or name.removeprefix("builtins.") in BUILTINS:
            yield f"{name}()"
        if name == "hash" and file not in MAY_HASH:
            yield "hash()"
        given = {each.arg: each.value for each in node.keywords if each.arg}
        for keyword, value in KEYWORDS.items():
            if keyword in given and not (
                isinstance(given[keyword], ast.Constant) and given[keyword].value is not value
            ):
                yield f"{keyword}={value}"
        if name == "torch.load" and "weights_only" not in given:
            yield "torch.load() without weights_only=True"


def test_nothing_forbidden_is_called() -> None:
    found = [
        fault
        for path in sources()
        for fault in faults(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n".join(found)
    assert len(sources()) > 200


def test_what_may_hash_does() -> None:
    for file in MAY_HASH:
        assert any("hash()" in fault for fault in faults((ROOT / file).read_text("utf-8")))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads as read",
        "import os.path, shelve",
        "def f():\n    from dill import load",
        "eval(text)",
        "import builtins\nbuiltins.exec(text)",
        "compile(text, 'x', 'exec')",
        "import torch\ntorch.load(path)",
        "from torch import load\nload(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch as t\nt.load(path, weights_only=flag)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import subprocess as s\ns.Popen(line, shell=is_shell)",
        "from os import system\nsystem(line)",
        "model(path, trust_remote_code=True)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "from jinja2 import Environment\nEnvironment()",
        "key = hash(prompt)",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert list(faults(source))


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile(text)",
        "model.eval()",
        "import torch\ntorch.load(path, weights_only=True)",
        "import subprocess\nsubprocess.run([a], shell=False)",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
        "prefix.hash(tokens)",
    ],
)
def test_what_is_allowed_is_not(source: str) -> None:
    assert not list(faults(source))
