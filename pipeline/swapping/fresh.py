"""Fresh: an engineer edits a module and swaps it in again, so its code must be read again.

A module is never changed under a stage that runs: a new one is made beside it, under the same name.
"""

import importlib
import os
import sys
import time
from types import ModuleType

_OURS = __name__.partition(".")[0]


class Sources:
    """When the modules of this process were imported, as far as it matters."""

    def __init__(self) -> None:
        self._begun_s = time.time()
        self._read_s: dict[str, float] = {}

    def forget_changed(self, path: str) -> None:
        """Let whoever imports the module of "package.module:Class" next get it as it is on the disk.

        It and the changed ones of its package; not those of Stageline itself, which all stages share.
        """
        module = path.partition(":")[0]
        package = module.partition(".")[0]
        if package == _OURS:
            return
        now_s = time.time()
        names = [name for name in sys.modules if name.partition(".")[0] == package]
        changed = [name for name in names if self._has_changed(name)]
        for name in {module, *changed} if changed else ():
            sys.modules.pop(name, None)
            self._read_s[name] = now_s
        importlib.invalidate_caches()

    def _has_changed(self, name: str) -> bool:
        file = _file(sys.modules[name])
        try:
            return file is not None and os.stat(file).st_mtime > self._read_s.get(name, self._begun_s)
        except OSError:
            return False


def _file(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None)
