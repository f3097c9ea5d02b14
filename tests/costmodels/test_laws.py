"""What holds of every communication model on every chip: the conformance suite.

A new profile is under test by lying in the directory.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.compute import Unit
from costmodels.switched import SwitchedCommunication
from costmodels.topology import Placement, lay
from costmodels.torus import TorusCommunication

from .strategies import HARDWARE, amounts, groups, placed

KINDS = [
    "all_gather_ns",
    "reduce_scatter_ns",
    "all_reduce_ns",
    "all_to_all_ns",
    "relayed_all_to_all_ns",
    "collective_permute_ns",
]
every_chip = pytest.mark.parametrize("name", HARDWARE)
few = settings(max_examples=30, deadline=None)
sizes = st.integers(1, 4096)


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), amount=amounts)
def test_group_of_one_is_free_and_others_are_not(
    name: str, data: st.DataObject, kind: str, amount: int
) -> None:
    """No axes, or axes of size 1, cost nothing; any other group costs something, even for no bytes."""
    case = data.draw(placed(name))
    axes = data.draw(groups(case))
    time = getattr(case.model, kind)
    assert time(amount, []) == 0
    assert (time(amount, axes) == 0) == (case.size(axes) == 1)
    assert time(0, axes) <= time(amount, axes)


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), amount=amounts, more=amounts)
def test_more_bytes_take_no_less_and_are_not_superlinear(
    name: str, data: st.DataObject, kind: str, amount: int, more: int
) -> None:
    """Monotone, and one transfer is no slower than two of its parts."""
    case = data.draw(placed(name))
    time, axes = getattr(case.model, kind), data.draw(groups(case))
    both = time(amount + more, axes)
    assert time(amount, axes) <= both <= time(amount, axes) + time(more, axes)


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), several=st.lists(amounts, min_size=1, max_size=4))
def test_an_array_is_its_numbers(name: str, data: st.DataObject, kind: str, several: list[int]) -> None:
    """Vectorised: int64 in, int64 out, each entry what the number alone would give as an int."""
    case = data.draw(placed(name))
    time, axes = getattr(case.model, kind), data.draw(groups(case))
    answer = time(np.array(several, dtype=np.int64), axes)
    assert answer.dtype == np.int64
    assert answer.tolist() == [time(amount, axes) for amount in several]
    assert all(type(time(amount, axes)) is int for amount in several)


@every_chip
@few
@given(data=st.data(), amount=amounts)
def test_between_the_kinds(name: str, data: st.DataObject, amount: int) -> None:
    """RS = AG; RS <= AR <= RS + AG; the all-to-all of a shard of V is no slower than the all-gather of V."""
    case = data.draw(placed(name))
    axes = data.draw(groups(case))
    whole = amount * case.size(axes)
    gather, scatter = case.model.all_gather_ns(whole, axes), case.model.reduce_scatter_ns(whole, axes)
    reduce = case.model.all_reduce_ns(whole, axes)
    assert scatter == gather
    assert scatter <= reduce <= scatter + gather
    assert case.model.all_to_all_ns(amount, axes) <= gather + 1


@every_chip
@few
@given(data=st.data(), amount=amounts)
def test_several_axes_at_once_are_no_slower_than_one_after_the_other(
    name: str, data: st.DataObject, amount: int
) -> None:
    """In either order: gather over the first, then over the second; likewise the other kinds."""
    case = data.draw(placed(name, least=2))
    axes = data.draw(groups(case, least=2))
    first, rest, model = axes[:1], axes[1:], case.model
    last = amount * case.size(axes)
    halfway = last // case.size(rest)
    in_turn = model.all_gather_ns(halfway, first) + model.all_gather_ns(last, rest)
    assert model.all_gather_ns(last, axes) <= in_turn + 1
    in_turn = model.all_reduce_ns(last, first) + model.all_reduce_ns(last, rest)
    assert model.all_reduce_ns(last, axes) <= in_turn + 1
    in_turn = model.all_to_all_ns(amount, first) + model.all_to_all_ns(amount, rest)
    assert model.all_to_all_ns(amount, axes) <= in_turn + 1


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), amount=amounts)
def test_the_order_of_axes_does_not_matter(name: str, data: st.DataObject, kind: str, amount: int) -> None:
    """A group is a set of devices."""
    case = data.draw(placed(name))
    time, axes = getattr(case.model, kind), data.draw(groups(case))
    assert time(amount, axes) == time(amount, axes[::-1])


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), amount=amounts)
def test_a_whole_sub_axis_is_the_axis(name: str, data: st.DataObject, kind: str, amount: int) -> None:
    """ "x":(1)n is "x"; an axis cut into two sub-axes is the axis again."""
    case = data.draw(placed(name))
    time, (axis, size) = getattr(case.model, kind), data.draw(st.sampled_from(case.mesh))
    assert time(amount, [(axis, 1, size)]) == time(amount, [axis])
    if size % 2 == 0:
        assert time(amount, [(axis, 1, size // 2), (axis, size // 2, 2)]) == time(amount, [axis])


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), amount=amounts)
def test_sub_axes_are_the_axes_of_a_finer_mesh(
    name: str, data: st.DataObject, kind: str, amount: int
) -> None:
    """ "x":(1)m and "x":(m)n of an axis of mn cost what "major"=m and "minor"=n in its place cost, alone and beside another axis."""
    case = data.draw(placed(name))
    axis, size = data.draw(st.sampled_from(case.mesh))
    major = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    finer = [
        part
        for other in case.mesh
        for part in ([("major", major), ("minor", size // major)] if other[0] == axis else [other])
    ]
    where = case.model.placement
    pieces = lay([n for _, n in finer], where.shape)
    assume(pieces is not None)
    assert pieces is not None
    assert isinstance(case.model, (TorusCommunication, SwitchedCommunication))
    model = replace(case.model, placement=Placement(tuple(finer), where.shape, pieces))
    beside = [other for other, _ in case.mesh if other != axis][:1]
    for sub_axis, alone in (((axis, 1, major), "major"), ((axis, major, size // major), "minor")):
        for others in ([], beside):
            assert getattr(case.model, kind)(amount, [sub_axis, *others]) == getattr(model, kind)(
                amount, [alone, *others]
            )


@every_chip
@few
@given(data=st.data(), amount=st.integers(1, 10**9))
def test_a_bigger_group_gathers_no_faster(name: str, data: st.DataObject, amount: int) -> None:
    """The same shard on each device: adding an axis to the group only adds to what has to come in."""
    case = data.draw(placed(name, least=2))
    axes = data.draw(groups(case, least=2))
    fewer = axes[:-1]
    smaller = case.model.all_gather_ns(amount * case.size(fewer), fewer)
    assert smaller <= case.model.all_gather_ns(amount * case.size(axes), axes) + 1


@every_chip
@few
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_zero_bytes_cost_at_most_the_latency(name: str, data: st.DataObject, kind: str) -> None:
    """There and back along every dimension, and the fixed overhead: nothing else is paid for no bytes."""
    case = data.draw(placed(name))
    axes = data.draw(groups(case))
    levels = [one for one in (case.hardware.link, case.hardware.core_link, case.hardware.network) if one]
    hops = sum(case.model.placement.shape)
    latency = sum(level.overhead_ns + 2 * hops * level.latency_ns for level in levels)
    assert getattr(case.model, kind)(0, axes) <= latency


@every_chip
@few
@given(m=sizes, k=sizes, n=sizes, batch=st.integers(1, 8), parts=st.sampled_from([2, 4, 8]))
def test_work_in_parts(name: str, m: int, k: int, n: int, batch: int, parts: int) -> None:
    """No product is faster than its peak or its memory traffic; a part of it takes no longer than the whole, all parts no less.

    Rows are of k and of n elements, so that parts of m are as aligned as the whole.
    """
    hardware = HARDWARE[name]
    whole = hardware.matmul_ns(m=m * parts, k=k, n=n, dtype="bf16", batch=batch)
    part = hardware.matmul_ns(m=m, k=k, n=n, dtype="bf16", batch=batch)
    assert part <= whole <= parts * part + parts
    flops = 2 * batch * m * parts * k * n
    moved = 2 * batch * (m * parts * k + k * n + m * parts * n)
    assert whole >= flops / hardware.peak_flop_per_s("bf16") * 1e9
    assert whole >= moved / hardware.hbm_bytes_per_s * 1e9


@every_chip
@few
@given(flops=amounts, moved=amounts, more=amounts, unit=st.sampled_from(["matrix", "vector"]))
def test_kernels_are_monotone(name: str, flops: int, moved: int, more: int, unit: Unit) -> None:
    """More operations or more bytes take no less, and two kernels no less than one that does the work of both."""
    hardware = HARDWARE[name]

    def ns(flops: int, moved: int) -> int:
        return hardware.kernel_ns(flops, moved, "f32", unit=unit)

    assert ns(flops, moved) <= ns(flops + more, moved)
    assert ns(flops, moved) <= ns(flops, moved + more)
    assert ns(flops + more, moved + more) <= ns(flops, moved) + ns(more, more)
