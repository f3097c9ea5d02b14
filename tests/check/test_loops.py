"""How often shared copies are made, from where their readers are."""

from autoshard.check.loops import Loop, Loops, Where, copies_made, kept_through
from tests.check import by_hand

OUTER, INNER, NEXT = Loop(10, 12, 40, 5), Loop(20, 21, 30, 15), Loop(50, 51, 60, 5)
MAIN: Where = {}
BODY: Where = {OUTER: "body"}
CONDITION: Where = {OUTER: "condition"}
DEEP: Where = {OUTER: "body", INNER: "body"}


def test_made_around_all_readers() -> None:
    """A copy is made in the innermost body around its readers: once for readers in two loops, once a trip within one."""
    assert copies_made([MAIN, DEEP], None) == 1
    assert copies_made([BODY, DEEP], None) == 5
    assert copies_made([DEEP, DEEP], None) == 15
    assert copies_made([BODY, {NEXT: "body"}], None) == 1
    assert copies_made([CONDITION, BODY], None) == 1


def test_carried_values_are_new_in_every_trip() -> None:
    """Condition, body and what follows the loop each copy what it carries."""
    assert copies_made([CONDITION, BODY, MAIN], OUTER) == 5 + 5 + 1
    assert copies_made([BODY, DEEP], OUTER) == 5
    assert copies_made([MAIN, MAIN], OUTER) == 1


def test_kept_through() -> None:
    """What is made outside a loop and read in it exists in all of it."""
    assert list(kept_through([BODY, DEEP], None)) == [INNER]
    assert list(kept_through([DEEP, DEEP], None)) == []
    assert list(kept_through([MAIN, BODY], OUTER)) == []


def test_parts_of_a_loop() -> None:
    """The condition of a listed loop ends where its body begins; the way back is in the body, the way in is not."""
    listing = by_hand.looping()
    loops = Loops(listing)
    (loop,) = set(loops.carrying.values())
    assert loop == Loop(1, 2, 4, 5)
    assert [dict(loops.around_op(time)) for time in range(5)] == [
        {},
        {loop: "condition"},
        {loop: "body"},
        {loop: "body"},
        {},
    ]
    flow = listing.data_flows[0]
    assert dict(loops.around_source(flow, 0)) == {}
    assert dict(loops.around_source(flow, 1)) == {loop: "body"}
