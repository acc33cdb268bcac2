"""Ingress: the doors. HTTP and websocket in, GenerateRequest, Open and Cancel out.

This package owns the sockets and every live request's way back to its client. It knows no tokens and no
scheduling; what a request may say is checked by core.wire. docs/api.md describes the doors for clients.
"""

from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.stage import Ingress

__all__ = ["Ingress", "IngressOptions"]
