"""Templates to texts."""

from collections.abc import Collection, Mapping
from importlib.resources import files
from string import Template
from typing import Any, get_args

from pipeline.core.import_path import resolve
from pipeline.runtime.stage import STAGE_API
from pipeline.scaffold.package import Package
from pipeline.scaffold.place import Place

Words = Mapping[str, object]


def rendered(package: Package, place: Place) -> dict[str, str]:
    """The files of the package: name to text."""
    words: Words = {
        "Class": package.class_name,
        "module": package.module,
        "folder": package.folder_from_home,
        "stage": place.node.name,
        "api": STAGE_API,
        **_settings(package, place),
        **(_passing(place) if place.passes else _inheriting(place)),
    }
    kind = "passes" if place.passes else "inherits"
    names = {"stage.py": kind, "test_stage.py": f"test_{kind}", "config.toml": "config"}
    if place.is_new:
        names["graph.py"] = "graph"
    return {"__init__.py": ""} | {name: _filled(template, words) for name, template in names.items()}


def _filled(template: str, words: Words) -> str:
    text = (files("pipeline.scaffold") / f"{template}.template").read_text("utf-8")
    return Template(text).substitute(words)


def _settings(package: Package, place: Place) -> Words:
    """Of config.toml: a node of the graph has its class there, a new one has it in the new graph."""
    if not place.is_new:
        return {"topology": "", "use": f'[stages.{place.node.name}]\nuse = "{package.use}"\n\n'}
    return {"topology": f'\n[topology]\nuse = "{package.module}.graph:GRAPH"\n', "use": ""}


def _passing(place: Place) -> Words:
    first = place.passes[0].__name__
    return {
        "source": place.between[0],
        "target": place.between[1],
        "bound": place.node.inbox_bound,
        "messages": ", ".join(sorted({each.__name__ for each in (*place.takes, *place.gives)})),
        "In": _union(place.passes),
        "takes": _tuple(place.takes),
        "gives": _tuple(place.gives),
        "outlet": first if len(place.passes) == 1 else "type(message)",
        "sampled": first,
    }


def _inheriting(place: Place) -> Words:
    module, _, name = place.node.use.partition(":")
    base = resolve(place.node.name, place.node.use)
    options = base.Options
    handled, _ = get_args(base.__orig_bases__[0])
    taken = () if handled is Any else get_args(handled) or (handled,)
    imports = {"pipeline.stage_api": {"StageContext"}, module: {name}}
    imports["pipeline.messages"] = {each.__name__ for each in taken}
    imports.setdefault(_home_of(options), set()).add(options.__name__)
    return {
        "Base": name,
        "BaseOptions": options.__name__,
        "In": _union(taken) or "Any",
        "typing": "" if taken else ", Any",
        "imports": "\n".join(
            f"from {each} import {', '.join(sorted(imports[each]))}"
            for each in sorted(imports)
            if imports[each]
        ),
    }


def _home_of(options: type) -> str:
    """From where it is imported."""
    module = options.__module__
    return "pipeline.stage_api" if module == "pipeline.runtime.stage" else module


def _union(types: Collection[type]) -> str:
    return " | ".join(each.__name__ for each in types)


def _tuple(types: Collection[type]) -> str:
    return ", ".join(each.__name__ for each in types) + ("," if len(types) == 1 else "")
