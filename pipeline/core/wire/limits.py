"""What the checks of requests must know of the server."""

import msgspec

from pipeline.core.reasoning import ReasoningTags
from pipeline.core.tool_calls import Syntax
from pipeline.core.wire.images import ImageLimits
from pipeline.messages import Pooling, SamplingParams


class Limits(msgspec.Struct, frozen=True):
    model: str
    max_model_len: int
    """Prompt and output together, tokens."""
    vocab_size: int
    defaults: SamplingParams = SamplingParams()
    """What holds for requests that do not say otherwise."""
    reasoning: ReasoningTags | None = None
    """Between which tags the model reasons; None: nothing is split off."""
    tool_syntax: Syntax | None = None
    """In which the model calls tools; None: it does not."""
    pooling: Pooling = "last"
    """Of embeddings whose request does not say."""
    images: ImageLimits | None = None
    """None: the model reads text only."""
