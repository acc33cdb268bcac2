"""Two small clients behind one Protocol: server-sent events over HTTP, and this project's WebSocket."""

from loadgen.clients.api import Client, Prompt
from loadgen.clients.connect import PROTOCOLS, Target, connect

__all__ = ["PROTOCOLS", "Client", "Prompt", "Target", "connect"]
