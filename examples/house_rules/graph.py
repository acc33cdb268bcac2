"""A second filter between the first and the clients, with rules of its own."""

from pipeline.messages import Cancel
from pipeline.topology import WHOLE, Lane, Link, Node

HOUSE_RULES = WHOLE.between(
    "filter", "stream", Node("house_rules", "pipeline.stages.filter:Filter", 8)
).with_links(Link("house_rules", "schedule", Cancel, Lane.CONTROL))
