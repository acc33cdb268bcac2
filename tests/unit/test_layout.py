"""The rules of the layout that no linter holds (import contracts are in pyproject.toml)."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from pipeline.runtime.stage import Stage
from pipeline.topology import LINKS, NODES, Lane, Link, Node

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "loadgen")
TREES = (*PACKAGES, "tests", "examples")
SKIPPED = {"build", "dist", "node_modules"}
TEXT = {
    "",
    ".py",
    ".toml",
    ".md",
    ".txt",
    ".json",
    ".jsonl",
    ".csv",
    ".jinja",
    ".yaml",
    ".yml",
    ".cfg",
    ".ini",
}

VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "base", "misc"}
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users)/\w")
REGISTRY = re.compile(
    "|".join((r"pythonhosted\.o" + "rg", r"pypi\.o" + "rg", r"download\.pytorch\.o" + "rg"))
)


def sources(*trees: str) -> list[Path]:
    return [path for tree in trees for path in sorted((ROOT / tree).rglob("*.py"))]


def text_files() -> Iterator[Path]:
    for top in ROOT.iterdir():
        if top.is_file() and top.suffix in TEXT:
            yield top
        elif top.is_dir() and (top.name == ".ci" or not top.name.startswith(".")) and top.name not in SKIPPED:
            inside = (path for path in top.rglob("*") if path.is_file() and path.suffix in TEXT)
            yield from (path for path in inside if ".egg-info" not in str(path))


def functions(tree: str) -> Iterator[int]:
    """The length in lines of each function of a tree."""
    for path in sources(tree):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                yield node.end_lineno - node.lineno + 1


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path for path in sources(*TREES) if path.stem in VAGUE or path.parent.name in VAGUE] == []


def test_files_stay_readable() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in sources(*TREES)}
    assert {path: length for path, length in lengths.items() if length >= 400} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_stay_short(package: str) -> None:
    lengths = list(functions(package))
    assert median(lengths) < 12
    assert quantiles(lengths, n=20)[-1] < 45


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_is_a_package(package: str) -> None:
    """Or it is left out of the installed distribution."""
    folders = {path.parent for path in sources(package)}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_module_says_what_it_is() -> None:
    modules = [path for path in sources(*PACKAGES) if path.read_text("utf-8").strip()]
    assert [path for path in modules if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = {}
    for path in text_files():
        text = path.read_text("utf-8", errors="replace")
        if match := MACHINE_PATH.search(text) or REGISTRY.search(text):
            found[path] = match.group()
    assert found == {}


def test_pages_that_are_named_exist() -> None:
    """Links between pages, and every page under docs/ that a text or a docstring names."""
    missing = set()
    for path in text_files():
        text = path.read_text("utf-8", errors="replace")
        targets = {ROOT / page for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", text)}
        if path.suffix == ".md":
            links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
            targets |= {path.parent / link for link in links}
        missing |= {f"{path.name}: {target.name}" for target in targets if not target.exists()}
    assert missing == set()


# topology --------------------------------------------------------------------------------------------


def stage_class(node: Node) -> type[Stage[Any, Any]]:
    module, _, name = node.use.partition(":")
    found: type[Stage[Any, Any]] = getattr(import_module(module), name)
    return found


def place(name: str) -> int:
    return [node.name for node in NODES].index(name)


def test_names_and_links_are_unique() -> None:
    assert len({node.name for node in NODES}) == len(NODES)
    assert len({(link.source, link.target, link.carries) for link in LINKS}) == len(LINKS)


def test_every_link_joins_two_nodes() -> None:
    names = {node.name for node in NODES}
    assert [link for link in LINKS if {link.source, link.target} - names] == []


def test_an_outlet_is_found_by_its_type_alone() -> None:
    ways = [(link.source, link.carries) for link in LINKS]
    assert len(set(ways)) == len(ways)


def test_data_flows_forward_so_that_no_stage_waits_in_a_circle() -> None:
    """Backwards there are only control links, which never wait."""
    backward = [link for link in LINKS if place(link.target) <= place(link.source)]
    assert backward
    assert [link for link in backward if link.lane is not Lane.CONTROL] == []


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
def test_built_in_stages_take_and_give_what_their_links_carry(node: Node) -> None:
    built_in = stage_class(node)
    assert set(built_in.takes) == carried(link for link in LINKS if link.target == node.name)
    assert set(built_in.gives) == carried(link for link in LINKS if link.source == node.name)


def carried(links: Iterator[Link]) -> set[type]:
    return {link.carries for link in links}
