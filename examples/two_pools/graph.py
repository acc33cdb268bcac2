"""Two tokenize pools by priority: a burst of batch prompts does not delay urgent ones."""

from pipeline.messages import GenerateRequest, Rejected, TokenizedRequest
from pipeline.topology import WHOLE, Lane, Link, Node, When

URGENT = When("terms.priority", at_least=1)

TWO_POOLS = WHOLE.with_node(
    Node("tokenize_urgent", "pipeline.stages.tokenize:Tokenize", 64, workers=1), after="tokenize"
).with_links(
    Link("ingress", "tokenize_urgent", GenerateRequest, when=URGENT),
    Link("tokenize_urgent", "schedule", TokenizedRequest),
    Link("tokenize_urgent", "schedule", Rejected, Lane.CONTROL),
)
