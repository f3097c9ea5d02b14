"""What XLA:TPU emits for Shardy's collectives, as seen in what libtpu compiles: kinds, bytes and widths."""

import math

import pytest

from autoshard.check.emitted import Compiler, sent_for, sent_for_step
from autoshard.cost import CollectivePrices, Emitted, priced_steps
from autoshard.cost.uneven import emitted_step
from autoshard.hardware import load_hardware
from autoshard.mlir.passes import decompose_reshards
from autoshard.sharding import Mesh, TensorType, parse_sharding, total_size
from tests.cost.priced import HARDWARE, communication

MESH = Mesh.of([("x", 4), ("y", 4)])
X, Y = MESH.axis("x"), MESH.axis("y")
WIDE = Mesh.of([("x", 8), ("y", 8)])


def emitted(before: str, after: str, rows: int, columns: int = 64) -> list[tuple[str, int, float]]:
    """Kind, devices and f32 elements of the operand on one device, step by step."""
    ends = parse_sharding(before, MESH), parse_sharding(after, MESH)
    type_ = TensorType((rows, columns), "f32")
    found: list[tuple[str, int, float]] = []
    held = ends[0]
    for step in decompose_reshards(MESH, [(2, *ends)])[0]:
        for one in emitted_step(step, held, type_):
            devices = 1
            for axis in one.axes:
                devices *= axis.size
            found.append((one.kind, devices, one.bytes / 4))
        held = step.out_sharding
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('[{}, {"x"}]', '[{"x"}, {}]', [("all_to_all", 4, 200 * 16)]),
        ('[{"x"}, {}]', "[{}, {}]", [("all_gather", 4, 50 * 64)]),
        ('[{}, {"x", "y"}]', '[{"x", "y"}, {}]', [("all_to_all", 16, 208 * 4)]),
        ('[{"x", "y"}, {}]', '[{"x"}, {"y"}]', [("all_gather", 16, 13 * 64)]),
        ('[{"x"}, {}]', '[{"x", "y"}, {}]', [("collective_permute", 16, 6 * 64)]),
        ('[{"x", "y"}, {}]', '[{"x"}, {}]', [("collective_permute", 4, 6 * 64), ("all_gather", 4, 13 * 64)]),
    ],
)
def test_uneven_rows_are_padded_moved_or_gathered(
    before: str, after: str, expected: list[tuple[str, int, float]]
) -> None:
    """197 rows over 4 and 16 devices: parts of 50 and 13, of which 52 and not 50 make one of the coarse parts."""
    assert emitted(before, after, 197) == expected


@pytest.mark.parametrize(
    ("before", "after", "rows", "expected"),
    [
        ('[{"x"}, {}]', "[{}, {}]", 1, [("all_reduce", 4, 64)]),
        ('[{"x"}, {}]', "[{}, {}]", 2, [("all_reduce", 4, 2 * 64)]),
        ('[{"x"}, {}]', "[{}, {}]", 3, [("all_gather", 4, 64)]),
        ('[{"x", "y"}, {}]', "[{}, {}]", 8, [("all_reduce", 16, 8 * 64)]),
        ('[{"x", "y"}, {}]', "[{}, {}]", 9, [("all_gather", 16, 64)]),
        ('[{"x"}, {"y"}]', "[{}, {}]", 2, [("all_gather", 4, 16), ("all_reduce", 4, 2 * 64)]),
        ('[{"x"}, {"y"}]', '[{}, {"y"}]', 2, [("all_reduce", 4, 2 * 16)]),
        ('[{"x"}, {}]', '[{}, {"x"}]', 2, [("all_to_all", 4, 64)]),
    ],
)
def test_what_lies_on_few_of_many_devices_is_summed(
    before: str, after: str, rows: int, expected: list[tuple[str, int, float]]
) -> None:
    """A dimension of at most half as many rows as parts, as libtpu 0.0.52 compiles 2 and 3 rows over 4 and 8 devices of v5e."""
    assert emitted(before, after, rows) == expected


def test_what_lies_on_few_devices_is_summed_as_wide_as_it_is() -> None:
    """Two rows over four devices that products read as bf16 are summed in f32; a plan and its check say the same."""
    prices, types = CollectivePrices(communication(MESH), HARDWARE, "xla-tpu"), ("f32", "bf16")
    wide, narrow = (TensorType((2, 2048), dtype) for dtype in types)
    split, whole = parse_sharding('[{"x"}, {}]', MESH), parse_sharding("[{}, {}]", MESH)
    (step,) = decompose_reshards(MESH, [(2, split, whole)])[0]
    (one,) = priced_steps(prices, split, [step], wide, narrow)
    (sent,) = sent_for_step(Compiler("xla-tpu", 16, is_cubic=False), step, split, narrow, 2)
    assert one.emitted == (Emitted("all_reduce", (X,), wide.num_bytes),)
    assert (sent.kind, sent.axes, sent.bytes) == ("all_reduce", (X,), wide.num_bytes)


@pytest.mark.parametrize("rows", [64, 192])
def test_even_rows_are_sent_as_they_are(rows: int) -> None:
    """Where everything divides the operand is what a device holds, and nothing has to be moved first."""
    assert emitted('[{"x", "y"}, {}]', '[{"x"}, {"y"}]', rows) == [("all_to_all", 4, rows * 4)]
    assert emitted('[{"x"}, {}]', '[{"x", "y"}, {}]', rows) == []


def test_sums_go_everywhere() -> None:
    """An all-reduce is what a reduce-scatter is compiled to on a TPU, and Shardy's own stays."""
    of_shardy, of_xla = (
        CollectivePrices(communication(MESH), HARDWARE, lowering) for lowering in ("shardy", "xla-tpu")
    )
    assert of_shardy.emitted("reduce_scatter", 4096, (X,)) == (Emitted("reduce_scatter", (X,), 4096),)
    assert of_xla.emitted("reduce_scatter", 4096, (X,)) == (Emitted("all_reduce", (X,), 4096),)


def test_small_shards_over_many_devices_are_summed() -> None:
    """Up to 16 MiB on a slice of more than 32: arrays of the gathered size, zero elsewhere, are added up, before they are narrowed."""
    prices = CollectivePrices(communication(WIDE), HARDWARE, "xla-tpu")
    both = (WIDE.axis("x"), WIDE.axis("y"))
    small, large = 64 * 256 << 10, 64 * 260 << 10
    assert prices.emitted("all_gather", small, both) == (Emitted("all_reduce", both, small),)
    assert prices.emitted("all_gather", large, both) == (Emitted("all_gather", both, large // 64),)
    assert prices.emitted("all_gather", small // 2, both, 2) == (Emitted("all_reduce", both, small),)
    assert prices.emitted("all_gather", large // 2, both, 2) == (Emitted("all_gather", both, large // 128),)
    assert prices.ns_of_one("all_gather", small // 2, both, 2) == prices.ns_of_one("all_reduce", small, both)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((1 << 16, 32), "f32", "all_gather"),
        ((1 << 15, 32), "f32", "all_reduce"),
        ((1 << 16, 32), "bf16", "all_reduce"),
        ((1 << 17, 4, 4), "bf16", "all_gather"),
        ((1 << 16, 1), "f32", "all_reduce"),
        ((1 << 14, 128), "f32", "all_reduce"),
    ],
)
def test_long_columns_of_narrow_rows_are_gathered(shape: tuple[int, ...], dtype: str, kind: str) -> None:
    """However little it is, by compilations for v5e 8x8; a plan and its check say the same."""
    prices, type_ = CollectivePrices(communication(WIDE), HARDWARE, "xla-tpu"), TensorType(shape, dtype)
    rest = ", {}" * (len(shape) - 1)
    split, whole = (parse_sharding(f"[{first}{rest}]", WIDE) for first in ('{"x", "y"}', "{}"))
    (step,) = decompose_reshards(WIDE, [(len(shape), split, whole)])[0]
    (one,) = priced_steps(prices, split, [step], type_)
    (sent,) = sent_for_step(Compiler("xla-tpu", 64, is_cubic=False), step, split, type_, 1)
    assert [emitted.kind for emitted in one.emitted] == [sent.kind] == [kind]
    assert one.emitted[0].bytes == sent.bytes
    if kind == "all_gather":
        assert one.ns == prices.communication.all_gather_ns(type_.num_bytes, ["x", "y"])


@pytest.mark.parametrize(
    ("chips", "topology", "axes", "kind"),
    [
        ("tpu-v5p", (4, 4, 4), "xy", "all_reduce"),
        ("tpu-v4", (2, 2, 16), "xy", "all_reduce"),
        ("tpu-v5p", (4, 4, 4), "y", "all_gather"),  # over 16
        ("tpu-v5p", (4, 4, 8), "xy", "all_gather"),  # over 64 of 128
        ("tpu-v5p", (2, 4, 4), "xy", "all_gather"),  # 32 in all
        ("tpu-v5p", (8, 8, 1), "xy", "all_gather"),
        ("tpu-v5e", (8, 8), "xy", "all_gather"),
    ],
)
def test_what_lies_over_a_whole_cube_is_summed(
    chips: str, topology: tuple[int, ...], axes: str, kind: str
) -> None:
    """Shards of any size, by compilations for these slices."""
    sizes = [("rest", math.prod(topology) // 64), ("x", 4), ("y", 16)]
    if math.prod(topology) < 64:
        sizes = [("x", 2), ("y", 16)]
    mesh = Mesh.of([(name, size) for name, size in sizes if size > 1])
    hardware = load_hardware(chips)
    model = hardware.place([(axis.name, axis.size) for axis in mesh.axes], topology)
    over = tuple(mesh.axis(name) for name in axes)
    whole, shard = 1 << 28, (1 << 28) // total_size(over)
    (one,) = CollectivePrices(model, hardware, "xla-tpu").emitted("all_gather", whole, over)
    assert one == Emitted(kind, over, whole if kind == "all_reduce" else shard)
    place = model.placement
    is_cubic = all(dict(zip(place.names, place.shape, strict=True)).get(d, 1) > 1 for d in "012")
    checked = Compiler("xla-tpu", math.prod(place.shape), is_cubic)
    assert [sent.kind for sent in sent_for(checked, "all_gather", over, whole)] == [kind]


@pytest.mark.parametrize(
    "kind", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute"]
)
@pytest.mark.parametrize("lowering", ["shardy", "xla-tpu"])
def test_the_price_is_that_of_what_is_emitted(kind: str, lowering: str) -> None:
    """One collective where everything divides."""
    prices = CollectivePrices(communication(MESH), HARDWARE, "xla-tpu" if lowering == "xla-tpu" else "shardy")
    (one,) = prices.emitted(kind, 1 << 20, (X, Y))
    assert prices.ns_of_emitted(one) == prices.ns_of_one(kind, 1 << 20, (X, Y))


def test_what_sends_nothing_emits_nothing() -> None:
    prices = CollectivePrices(communication(MESH), HARDWARE, "xla-tpu")
    assert prices.emitted("all_slice", 4096, (X,)) == ()


@pytest.mark.parametrize(
    ("rows", "columns", "kind"),
    [
        (256, 1, "all_reduce"),
        (256, 64, "all_gather"),
        (1 << 16, 1, "all_gather"),
        (2048, 1, "all_gather"),
        (2052, 1, "all_reduce"),
    ],
)
def test_short_vectors_are_gathered_by_a_sum(rows: int, columns: int, kind: str) -> None:
    """Up to 64 KiB in all, whatever the number of devices, where a part is not of whole rows of 128 elements."""
    size = rows if kind == "all_reduce" else rows * columns / 4
    assert emitted('[{"x"}, {}]', "[{}, {}]", rows, columns) == [(kind, 4, size)]


@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32"])
@pytest.mark.parametrize(
    ("elements", "kind"),
    [(1536, "all_reduce"), (2048, "all_gather"), (2560, "all_reduce"), (6144, "all_gather")],
)
def test_parts_of_short_vectors_fill_rows_by_their_elements(elements: int, kind: str, dtype: str) -> None:
    """As libtpu 0.0.52 compiles gathers over 16 devices, for v5e and v6e."""
    before, after = parse_sharding('[{"x", "y"}]', MESH), parse_sharding("[{}]", MESH)
    (step,) = decompose_reshards(MESH, [(1, before, after)])[0]
    type_ = TensorType((elements,), dtype)
    (one,) = emitted_step(step, before, type_)
    (sent,) = sent_for_step(Compiler("xla-tpu", 16, is_cubic=False), step, before, type_, 1)
    assert one.kind == sent.kind == kind


def test_parts_of_fewer_rows_than_devices_come_from_several_neighbours() -> None:
    """4 rows over 4 and then over 16 devices: the first group of 4 has them all, one from each neighbour of the coarse parts."""
    row = ("collective_permute", 16, 64.0)
    assert emitted('[{"x"}, {}]', '[{"x", "y"}, {}]', 4) == [row, row, row]


@pytest.mark.parametrize(("elements", "dtype"), [(1024, "f32"), (1 << 20, "bf16")])
def test_short_vectors_travel_as_they_are(elements: int, dtype: str) -> None:
    """What sums gather is not narrowed."""
    prices = CollectivePrices(communication(MESH), HARDWARE, "xla-tpu")
    sent = prices.sent(TensorType((elements,), "f32"), TensorType((elements,), "bf16"))
    assert sent.dtype == dtype
