"""The page's files, read from the package once: nothing else can be asked for."""

from importlib.resources import files
from pathlib import PurePath

from aiohttp import web

from pipeline.errors import RequestError

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

INDEX = "index.html"


class PageFiles:
    """name -> answer."""

    def __init__(self) -> None:
        folder = files("pipeline.admin") / "page"
        self._files = {
            file.name: file.read_bytes() for file in folder.iterdir() if _suffix(file.name) in _TYPES
        }

    def answer(self, name: str) -> web.Response:
        """Raises RequestError 404."""
        body = self._files.get(name)
        if body is None:
            raise RequestError("There is no such file.", status=404, code="not_found")
        return web.Response(body=body, content_type=_TYPES[_suffix(name)], charset="utf-8")


def _suffix(name: str) -> str:
    return PurePath(name).suffix
