"""Ranges of a factor over which one of several prices is the least, against all of them tried."""

from hypothesis import given
from hypothesis import strategies as st

from autoshard.ranging import Look, search_side
from autoshard.ranging.bracket import Oracle, Side

PRECISION = 0.01
LINES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=8)


def _price(line: tuple[int, int], factor: float, is_rate: bool) -> int:
    return round(10**6 + line[0] + line[1] * (1 / factor if is_rate else factor))


def _oracle(lines: list[tuple[int, int]], is_rate: bool, looked: list[float]) -> Oracle[int]:
    """Choices are lines; the plan is that of number 0."""

    def look(factor: float) -> Look[int]:
        looked.append(factor)
        prices = [_price(line, factor, is_rate) for line in lines]
        best = min(range(len(lines)), key=prices.__getitem__)
        return Look(factor, prices[0], prices[best], best if prices[best] < prices[0] else None)

    def difference(factor: float, rival: int) -> int:
        return _price(lines[0], factor, is_rate) - 1 - _price(lines[rival], factor, is_rate)

    return Oracle(look, difference)


@given(
    lines=LINES,
    is_rate=st.booleans(),
    end=st.sampled_from([1 / 16, 1 / 2, 3.0, 16.0]),
    is_linear=st.booleans(),
)
def test_range_of_lines(lines: list[tuple[int, int]], is_rate: bool, end: float, is_linear: bool) -> None:
    """Nothing is cheaper up to the last look that the plan survives; something is at the next, which is within the precision."""
    at_one = [_price(line, 1.0, is_rate) for line in lines]
    first = at_one.index(min(at_one))
    lines = [lines[first], *lines[:first], *lines[first + 1 :]]
    looked: list[float] = []
    oracle = _oracle(lines, is_rate, looked)
    start = oracle.look(1.0)
    assert start is not None
    side = Side([start])
    search_side(oracle, side, end, is_rate=is_rate, is_linear=is_linear, precision=PRECISION)
    assert not side.is_cut_short
    last = side.kept[-1].factor
    for step in range(11):
        factor = last ** (step / 10)
        assert _price(lines[0], factor, is_rate) <= min(_price(line, factor, is_rate) for line in lines) + 1
    if side.beaten is None:
        assert last == end
    else:
        assert max(side.beaten.factor / last, last / side.beaten.factor) <= 1.0101
        assert side.beaten.better is not None
        assert oracle.difference(side.beaten.factor, side.beaten.better) >= 0
    assert len(looked) <= 32


def test_range_ends_where_time_is_over() -> None:
    """Without an answer the side says that it was cut short, and keeps what it knew."""
    start: Look[int] = Look(1.0, 10, 10, None)
    oracle: Oracle[int] = Oracle(lambda factor: None, lambda factor, rival: 0)
    side = Side([start])
    search_side(oracle, side, 16.0, is_rate=True, is_linear=True, precision=PRECISION)
    assert side.is_cut_short and side.beaten is None and side.kept == [start]
