"""From links to outlets."""

from typing import Any

from examples.two_pools.graph import TWO_POOLS
from pipeline.messages import Cancel, GenerateRequest, SamplingParams, Terms, TokenCall
from pipeline.runtime.choice import Choice
from pipeline.runtime.inbox import Inbox
from pipeline.topology import WHOLE, Graph
from pipeline.wiring import outlets, senders


def inboxes_of(graph: Graph) -> dict[str, Inbox[Any]]:
    return {name: Inbox(8) for name in graph.names}


def request(priority: int) -> GenerateRequest:
    return GenerateRequest(priority, "Hi", None, SamplingParams(), 1, 1, Terms(priority=priority))


def test_where_one_link_carries_a_type_its_inbox_is_the_outlet() -> None:
    """So that a graph without choices costs nothing for those that have some."""
    inboxes = inboxes_of(WHOLE)
    for name in WHOLE.names:
        for carries, outlet in outlets(WHOLE, name, inboxes).items():
            (target,) = {
                link.target for link in WHOLE.links if (link.source, link.carries) == (name, carries)
            }
            assert outlet is inboxes[target]


def test_requests_are_divided_by_their_priority() -> None:
    inboxes = inboxes_of(TWO_POOLS)
    sent = outlets(TWO_POOLS, "ingress", inboxes)
    assert isinstance(sent[GenerateRequest], Choice)
    assert sent[TokenCall] is inboxes["tokenize"] and sent[Cancel] is inboxes["schedule"]
    for priority in (-1, 0, 1, 2):
        assert sent[GenerateRequest].offer(request(priority))
    assert inboxes["tokenize"].stats().depth == inboxes["tokenize_urgent"].stats().depth == 2


def test_senders_are_told_in_data_order() -> None:
    assert senders(TWO_POOLS, "schedule") == ("tokenize", "tokenize_urgent")
    assert senders(TWO_POOLS, "ingress") == ()
    assert senders(WHOLE, "sample") == ("execute",)
