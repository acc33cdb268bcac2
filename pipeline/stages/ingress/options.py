"""Options of the ingress stage: addresses, limits and patience."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.core.reasoning import ReasoningTags

Port = Annotated[int, Meta(ge=0, le=65_535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Bytes = Annotated[int, Meta(ge=1024, le=1 << 30)]


class IngressOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[stages.ingress.options] of config.toml."""

    host: str = "127.0.0.1"
    port: Port = 8000
    """0: any free port; `Ingress.port` tells which."""
    max_model_len: Count | None = None
    """Prompt and output together, tokens. None: the model's own length."""
    max_body_bytes: Bytes = 2 << 20
    max_frame_bytes: Bytes = 1 << 20
    max_header_bytes: Annotated[int, Meta(ge=256, le=65_536)] = 8190
    """Of the request line, and of each header."""
    max_headers: Annotated[int, Meta(ge=16, le=1024)] = 128
    max_live_requests: Count = 1024
    max_images: Count = 8
    """In a request, where the model reads images, and"""
    max_live_images: Count = 64
    """in all live requests together: each is kept until its request ends."""
    max_requests_per_socket: Count = 256
    resume_s: Annotated[float, Meta(ge=0, le=600)] = 10.0
    """How long a request that can be resumed outlives its websocket, or its end; 0: none can."""
    max_lost_sockets: Count = 64
    """Websockets whose requests wait for their client at a time; past it, the one lost first is given up."""
    keepalive_s: Seconds = 15.0
    """An idle connection, or one without a whole header (or TLS handshake) so far, is closed after this."""
    body_timeout_s: Seconds = 10.0
    """A body must have arrived within this."""
    write_timeout_s: Seconds = 5.0
    """A client that does not read the end of its answer within this is cut off."""
    ping_interval_s: Seconds = 10.0
    """Silence after which a ping is sent; also the longest that a stream's status is held back."""
    ping: Literal["comment", "chunk", "off"] = "comment"
    """SSE pings: a comment line, a chunk with empty text (for clients that fail on comments), or none."""
    keys_file: str | None = None
    """TOML, a table for each API key (docs/keys.md); None: everybody who reaches the port may ask."""
    max_connections: Count = 4096
    """Past it a connection is closed as soon as it is opened."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """Files in PEM: the chain, and its private key. With both, the port speaks TLS 1.2 or 1.3 only."""
    reasoning: ReasoningTags | None = None
    """Between which tags the model thinks aloud: what is there comes apart from the answer."""
    pooling: Literal["last", "mean"] = "last"
    """Of embeddings whose request does not say: of the last token's state, or of the mean of all."""
    embeddings_at_once: Count = 32
    """Inputs of one request for embeddings that are in the pipeline at a time."""
    grammar_timeout_s: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """A grammar (response_format, structured_outputs, tools) that takes longer to compile is refused."""
    cors_origins: tuple[str, ...] = ()
    """Of web pages that may ask from a browser, such as "https://chat.example"; "*": all."""
    access_log: bool = False
    """A line for each request: who, what, status and time, never a prompt or an answer."""
    health_timeout_s: Seconds = 5.0
    retry_after_s: Count = 1
    """What a refused client is told to wait."""
