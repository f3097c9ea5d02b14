"""The torus model: anchors, wraparound, and link loads counted one transfer at a time."""

import pytest

from costmodels import HardwareError, load
from costmodels.topology import Piece
from costmodels.torus import Dimension

V4, V5E, V5P, V6E = (load(name) for name in ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"))


def busiest_link(size: int, ring: bool, sends: list[tuple[int, int, float]]) -> float:
    """Bytes on the busiest one-way link when each (from, to, bytes) goes the short way, or half each way."""
    loads: dict[tuple[int, int], float] = {}
    for start, end, amount in sends:
        ahead = (end - start) % size if ring else end - start
        ways = [1] if ahead > 0 and (not ring or ahead * 2 < size) else [-1]
        ways = [1, -1] if ring and ahead * 2 == size else ways
        for way in ways:
            at = start
            while at != end:
                loads[at, way] = loads.get((at, way), 0.0) + amount / len(ways)
                at = (at + way) % size if ring else at + way
    return max(loads.values())


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 8])
def test_all_to_all_is_the_load_of_the_busiest_link(length: int, stride: int, ring: bool) -> None:
    """All groups of a dimension exchange at once, S/n from each device to each; counted pair by pair."""
    size = length * stride
    sends = [
        (group + stride * a, group + stride * b, 1 / length)
        for group in range(stride)
        for a in range(length)
        for b in range(length)
        if a != b
    ]
    dimension = Dimension(size, 1.0, 0.0, wraps=ring)
    price = dimension.exchange_ns_per_byte(Piece(1, stride, length))
    assert price == pytest.approx(busiest_link(size, ring, sends))


@pytest.mark.parametrize("length", [2, 3, 4, 8])
def test_all_gather_on_a_line_is_the_load_of_the_last_link(length: int) -> None:
    """Every device sends its shard to every other, a link carrying each once: n-1 into the end."""
    dimension = Dimension(length, 1.0, 0.0, wraps=False)
    shards_into_the_end = length - 1
    assert (length - 1) / dimension.rate(Piece(1, 1, length)) == shards_into_the_end


def test_the_measured_all_gather_on_v5e() -> None:
    """34 MB on an axis of 4 without wraparound: 377 us by V/W, 560 by one-way hops, 680 measured."""
    assert 450_000 < V5E.all_gather_ns(bytes=34_000_000, axes=(4,)) < 700_000


def test_the_measured_latency_on_v5e() -> None:
    """Shards of 32 kB on the same axis: 3 us of hops, about 8 us measured."""
    assert 3_000 < V5E.all_gather_ns(bytes=4 * 32_768, axes=(4,)) < 9_000


def test_bandwidth_bound_ring_is_the_books_formula() -> None:
    """With wraparound V/W, and V/(4W) for the all-to-all of V/n a device (W both ways, n large)."""
    gathered, wide = 10**10, 2 * 45
    assert V5E.all_gather_ns(gathered, (16,)) == pytest.approx(gathered / wide, rel=0.07)
    assert V5E.all_gather_ns(gathered, (16, 16)) == pytest.approx(gathered / (2 * wide), rel=0.01)
    assert V5E.all_reduce_ns(gathered, (16, 16)) == pytest.approx(2 * gathered / (2 * wide), rel=0.01)
    assert V5E.all_to_all_ns(gathered // 16, (16,)) == pytest.approx(gathered / (4 * wide), rel=0.001)
    assert V5P.all_gather_ns(gathered, (8, 8, 8)) == pytest.approx(gathered / (3 * 180), rel=0.01)


@pytest.mark.parametrize("axis", [4, 8, 16])
def test_a_relayed_all_to_all_goes_along_the_whole_axis(axis: int) -> None:
    """As XLA's scheduler has it: (n-1)/n S L/W; never less than what the busiest link needs."""
    exact = (axis - 1) / axis * 10**9 * axis / 90
    model = V5E.place([("x", axis), ("y", 16)], (16, axis))
    assert model.relayed_all_to_all_ns(10**9, ["x"]) == pytest.approx(exact, rel=0.001)
    assert model.relayed_all_to_all_ns(10**9, ["x"]) >= model.all_to_all_ns(10**9, ["x"])


def test_a_transfer_to_a_neighbour_uses_one_direction() -> None:
    """As XLA's scheduler has it: a permute takes S/(W/2)."""
    assert V5E.collective_permute_ns(45_000_000, (4,)) == pytest.approx(1_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("topology", "closed"), [((16, 16), (True, True)), ((8, 16), (False, True)), ((8, 8), (False, False))]
)
def test_wraparound_on_v5e_is_an_axis_of_sixteen(
    topology: tuple[int, int], closed: tuple[bool, bool]
) -> None:
    """An 8x16 slice wraps its longer side only."""
    model = V5E.place([("x", topology[0]), ("y", topology[1])], topology)
    for axis, size, ring in zip("xy", topology, closed, strict=True):
        line_ns = 10**9 * (size - 1) / size / 45
        assert model.all_gather_ns(10**9, [axis]) == pytest.approx(line_ns / (2 if ring else 1), rel=0.01)


def test_wraparound_on_v5p_needs_whole_cubes() -> None:
    """4x4x4 wraps everywhere, 4x2x2 nowhere."""
    cube = V5P.place([("x", 16), ("y", 4)], (4, 4, 4)).all_gather_ns(10**9, ["y"])
    part = V5P.place([("x", 4), ("y", 4)], (4, 2, 2)).all_gather_ns(10**9, ["y"])
    assert part == pytest.approx(2 * cube, rel=0.01)


def test_a_part_of_a_ring_is_a_line() -> None:
    """Half of an axis of 16 has no way round; every second chip of it has, at half the bandwidth."""
    model = V5E.place([("x", 16)], (16,))
    half, every_second, whole = (
        model.all_gather_ns(10**9, [axis]) for axis in (("x", 2, 8), ("x", 1, 8), ("x", 1, 16))
    )
    assert half == pytest.approx(10**9 * 7 / 8 / 45, rel=0.01)
    assert every_second == pytest.approx(10**9 * 7 / 8 / 45, rel=0.01)
    assert whole == pytest.approx(10**9 * 15 / 16 / 90, rel=0.01)


def test_one_axis_over_two_dimensions_uses_the_links_of_both() -> None:
    """16 chips as 4x4 gather as fast as the two axes of 4 together."""
    one = V5E.place([("x", 16)], (4, 4)).all_gather_ns(10**9, ["x"])
    two = V5E.place([("x", 4), ("y", 4)], (4, 4)).all_gather_ns(10**9, ["x", "y"])
    assert one == two == pytest.approx(10**9 * 15 / 16 / 90, rel=0.01)


def test_slices_are_joined_by_the_data_centre_network() -> None:
    """Two pods of v5e: 256 chips bring in half the result at 3.125 GB/s each."""
    model = V5E.place([("pod", 2), ("x", 16), ("y", 16)])
    assert model.all_gather_ns(10**9, ["pod"]) == pytest.approx(10**9 / 2 / 3.125, rel=0.01)
    together = 10**9 * (1 - 1 / 512) / (180 + 3.125)
    assert model.all_gather_ns(10**9, ["pod", "x", "y"]) == pytest.approx(together, rel=0.02)
    explicit = V5E.place([("pod", 4), ("x", 8)], (2, 4), slices=4)
    assert explicit.placement.shape == (4, 4, 2)


def test_a_torus_without_network_has_one_slice() -> None:
    """The profile decides: two devices of TPU7x, however, are joined on the chip, faster than chips are."""
    import msgspec

    alone = msgspec.structs.replace(V5E, network=None)
    with pytest.raises(HardwareError, match="more than a pod of 256"):
        alone.place([("pod", 2), ("x", 16), ("y", 16)])
    with pytest.raises(HardwareError, match="need a network"):
        alone.place([("pod", 2), ("x", 4)], (4,), slices=2)
    model = load("tpu7x").place([("x", 4), ("core", 2)])
    assert model.all_gather_ns(10**9, ["core"]) < model.all_gather_ns(10**9, ["x"]) / 2


def test_faster_links_are_faster() -> None:
    """v6e has twice the link of v5e, and half the time for the bytes."""
    assert V6E.all_gather_ns(10**10, (8,)) == pytest.approx(V5E.all_gather_ns(10**10, (8,)) / 2, rel=0.001)
    assert V4.all_gather_ns(10**10, (8,)) < V5E.all_gather_ns(10**10, (8,))
