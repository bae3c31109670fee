"""From an event id to all that became of it, held against a loop over what was sent."""

from __future__ import annotations

import pytest
from tests.support.shop_story import HOUR, START, event, shop_at

from tidemill.model.errors import NotFoundError
from tidemill.model.levels import LEVELS
from tidemill.pipeline.documents import trace as documents
from tidemill.pipeline.documents.shapes import dumps
from tidemill.raw.arrivals import arrivals_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    found = shop_at(tmp_path_factory.mktemp("shop"))
    yield found
    found.mill.close()


def arrivals(shop, event_id):
    """What a loop over all that was sent says: slice, line and outcome, in the order of arrival."""
    return [
        (shop.ids[one.slice], one.line, one.outcome)
        for one in shop.sent
        if one.event is not None and one.event["id"] == event_id
    ]


@pytest.mark.parametrize("event_id", ["e0", "e3", "e5", "e40", "e91", "e110", "e111"])
def test_every_arrival_is_found_with_its_outcome(shop, event_id):
    (found,) = shop.mill.trace(event_id)
    assert [(one.entry.id, one.line, one.outcome) for one in found.arrivals] == arrivals(shop, event_id)
    assert found.searched.complete


def test_the_outcomes_are_of_all_kinds(shop):
    assert {one.outcome for one in shop.sent} == {"accepted", "duplicate", "conflict", "rejected"}
    assert [outcome for *_, outcome in arrivals(shop, "e3")] == ["accepted", "duplicate", "duplicate"]


def test_the_row_is_the_record_that_was_accepted(shop):
    for number in (0, 3, 5, 91, 111):
        (found,) = shop.mill.trace(f"e{number}")
        first = next(one for one in shop.accepted() if one.event["id"] == f"e{number}")
        assert (found.row["slice"], found.row["line"]) == (shop.ids[first.slice], first.line)
        assert found.row["tenant"] == first.event["tenant"] == found.tenant


def test_a_conflict_is_listed_with_its_row_in_quarantine(shop):
    (found,) = shop.mill.trace("e5")
    (held,) = found.quarantine.to_pylist()
    assert (held["outcome"], held["event_id"], held["slice"]) == ("conflict", "e5", shop.ids[3])


def changes_state(shop, sent):
    """Whether the state of its object was another one before, or none."""
    order = lambda one: (one.time, one.event["id"])  # noqa: E731
    before = [
        one
        for one in shop.accepted(tenant=sent.event["tenant"])
        if one.event["item"] == sent.event["item"] and order(one) < order(sent)
    ]
    return not before or max(before, key=order).event["state"] != sent.event["state"]


def test_every_metric_that_counts_it_is_named_at_each_level(shop):
    for number in (0, 1, 7, 8, 13, 91):
        (found,) = shop.mill.trace(f"e{number}")
        sent = next(one for one in shop.accepted() if one.event["id"] == f"e{number}")
        metrics = {"hits", "level", "took"} | ({"slow"} if sent.ms >= 5 else set())
        metrics |= {"life"} if changes_state(shop, sent) else set()
        assert {one.metric for one in found.tiles} == metrics
        for one in found.tiles:
            assert one.bucket == sent.time - sent.time % one.level.width
            if one.metric in ("hits", "slow", "level", "took"):
                assert one.group == {"region": sent.event["region"]}
            assert one.state == "current"
            assert one.revision >= 1
        assert {one.level for one in found.tiles} == set(LEVELS)


def test_a_late_event_is_in_the_revisions_from_its_slice_on(shop):
    """The first hour was built before the third slice came, with it, and again with the fifth."""
    (early,), (late,), (last,) = (shop.mill.trace(name) for name in ("e0", "e91", "e111"))
    expected = {"early": early, "late": late, "last": last}
    included = {name: [yes for _, yes in of.windows[0].revisions] for name, of in expected.items()}
    built = [set(one.slices) for one, _ in early.windows[0].revisions]
    assert len(built) >= 3
    for name, number in (("early", 0), ("late", 2), ("last", 4)):
        assert included[name] == [shop.ids[number] in slices for slices in built]
    assert included["late"][0] is False
    assert included["last"][-1] is True


def test_the_rows_of_a_revision_are_those_whose_traces_name_it(shop):
    """Each revision of the dataset of the first hour has as many rows as there are events in it."""
    inside = [one for one in shop.accepted() if START <= one.time < START + HOUR]
    counts: dict[int, int] = {}
    rows: dict[int, int] = {}
    for sent in inside:
        (found,) = shop.mill.trace(str(sent.event["id"]))
        for one, yes in found.windows[0].revisions:
            counts[one.revision] = counts.get(one.revision, 0) + yes
            rows[one.revision] = one.rows
    assert counts == rows


def test_results_of_streaming_windows_say_which_revision_has_it(shop):
    """The result of a group has as many rows as there are events whose traces say that they are in it."""
    region = "eu"
    inside = [
        one
        for one in shop.accepted(tenant="acme")
        if START <= one.time < START + HOUR and one.event["region"] == region
    ]
    counts: dict[int, int] = {}
    rows: dict[int, int] = {}
    for sent in inside:
        (found,) = shop.mill.trace(str(sent.event["id"]))
        (result,) = found.results
        for row, yes in zip(result.revisions, result.includes, strict=True):
            assert yes is not None
            counts[row["revision"]] = counts.get(row["revision"], 0) + yes
            rows[row["revision"]] = row["n"]
    assert len(rows) >= 2
    assert counts == rows


def test_an_event_that_waits_for_the_gate_is_found_in_its_slice(tmp_path):
    shop = shop_at(tmp_path)
    shop.land([event(3, 3), event(200, 3)], settle=False)
    (found,) = shop.mill.trace("e3")
    assert [one.outcome for one in found.arrivals] == ["accepted", "duplicate", "duplicate", "pending"]
    shop.mill.close()


def test_what_the_budget_does_not_reach_is_said(shop):
    stream = shop.mill.project.stream("shop")
    found = arrivals_of(shop.mill.warehouse, stream, "e3", ["acme", "globex"], whole=True, budget=1)
    assert (found.searched.slices, found.searched.of) == (1, 2)
    assert not found.searched.complete


def test_an_id_that_nobody_sent_is_not_found(shop):
    with pytest.raises(NotFoundError, match="no event has the id 'nobody'"):
        shop.mill.trace("nobody")


def test_another_tenant_does_not_find_it(shop):
    with pytest.raises(NotFoundError):
        shop.mill.trace("e0", tenant="globex")


def test_the_document_is_json(shop):
    text = dumps(documents.trace("e3", shop.mill.trace("e3")))
    assert '"outcome":"duplicate"' in text
