"""What the names of links mean."""

import pytest

from pipeline.recordings.places import place_named, places
from pipeline.topology import NODES, WHOLE

DEFAULT = WHOLE.chosen(())


def test_every_link_and_every_stage_can_be_recorded() -> None:
    names = {place.name for place in places(DEFAULT)}
    assert names == {f"{link.source}->{link.target}" for link in DEFAULT.links} | {
        f"->{node.name}" for node in NODES[1:]
    }


def test_a_link_is_the_types_that_topology_lets_it_carry() -> None:
    place = place_named(DEFAULT, " schedule -> execute ")
    assert (place.stage, place.links) == ("execute", ("schedule->execute",))
    assert place.kinds == frozenset({"StepPlan", "DiskMoves", "Reopen"})


@pytest.mark.parametrize("name", ["schedule", "->schedule"])
def test_a_stage_is_all_that_it_takes(name: str) -> None:
    place = place_named(DEFAULT, name)
    assert place.kinds is None and "execute->schedule" in place.links and len(place.links) == 6


def test_a_link_of_an_optional_stage_is_there_where_the_stage_is() -> None:
    assert place_named(WHOLE.chosen(["filter"]), "filter->stream").kinds == frozenset({"TextBatch"})
    with pytest.raises(
        ValueError, match=r"no link is called 'filter->stream'. There are ->tokenize, ingress->"
    ):
        place_named(DEFAULT, "filter->stream")


def test_a_type_of_somebody_s_own_cannot_be_recorded() -> None:
    """The codec does not know it: neither that link nor all that the stage takes is offered."""

    class Gossip:
        pass

    graph = DEFAULT.with_links(DEFAULT.links[0]._replace(target="stream", carries=Gossip))
    assert {place.name for place in places(graph) if place.stage == "stream"} == {
        "detokenize->stream",
        "schedule->stream",
    }
