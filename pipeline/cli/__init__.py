"""The terminal commands, one module each: `register(commands)` adds its parser, `run(args)` does the work."""

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What `register` is given."""

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where a server started without settings listens; the default of every client command."""
