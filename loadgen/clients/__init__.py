"""Two small clients behind one Protocol: server-sent events over HTTP, and this project's WebSocket."""

from loadgen.clients.api import Client
from loadgen.clients.connect import PROTOCOLS, Target, connect

__all__ = ["PROTOCOLS", "Client", "Target", "connect"]
