"""Figures worked out by hand are the figures that the checker finds, and nothing is wrong with the plan behind them."""

from dataclasses import replace

from autoshard.check import check
from autoshard.plans import EmittedCollective, PlannedUse, PlannedValue
from autoshard.sharding import parse_sharding
from tests.check import by_hand


def test_by_hand() -> None:
    """Compute, reduce-scatter and peak of a three-op module equal the formulas."""
    report = check(by_hand.subject(), by_hand.plan())
    assert report.passed, report.to_text()


def test_all_reduce_by_hand() -> None:
    """Left as it is produced, the same product costs an all-reduce, and twice the work after it."""
    settled = by_hand.with_value(by_hand.plan(), 2, PlannedValue(by_hand.X_ROWS))
    plan = by_hand.with_use(settled, 1, 0, by_hand.X_ROWS)
    plan = by_hand.with_value(plan, 3, PlannedValue(by_hand.X_ROWS))
    report = check(by_hand.subject(), plan)
    found = {finding.name: finding for finding in report.failures}
    assert "all_reduce over y: expected 1 of 1024 bytes" in found["collectives"].detail
    assert "reduce_scatter over y: expected 0 of 0 bytes" in found["collectives"].detail
    chips = by_hand.hardware()
    tanh_ns = [chips.kernel_ns(12 * rows * 16, rows * 16 * 4, "f32") for rows in (8, 16)]
    dot_ns = [
        chips.matmul_ns(m=16, k=16, n=16, dtype="f32", bytes=3 * 1024 + rows * 16 * 4) for rows in (8, 16)
    ]
    more_ns = tanh_ns[1] - tanh_ns[0] + dot_ns[1] - dot_ns[0]
    assert found["compute"].expected == by_hand.price().compute_ns + more_ns


def test_compiler_without_reduce_scatter() -> None:
    """XLA for TPUs sums everywhere and lets every device keep its part: a reduce-scatter is an all-reduce, and has its price."""
    price = by_hand.price()
    all_reduce_ns = by_hand.subject().communication.all_reduce_ns
    latency_ns = all_reduce_ns(0, ["y"])
    summed_ns = all_reduce_ns(1024, ["y"]) - latency_ns + latency_ns // 4
    (scatter,) = price.collectives
    price = replace(
        price,
        step_ns=price.compute_ns + summed_ns,
        communication_ns=summed_ns,
        collectives=(replace(scatter, ns=summed_ns, emitted=(EmittedCollective("all_reduce", 2, 1024),)),),
    )
    plan = replace(
        by_hand.plan(), form="xla", lowering="xla-tpu", price=price, status="feasible", lower_bound_ns=0
    )
    report = check(by_hand.subject(), plan)
    assert report.passed, report.to_text()


def test_reshard_of_a_use() -> None:
    """A result returned in another sharding than it is made in costs Shardy's collectives for that change."""
    plan = by_hand.with_use(by_hand.plan(), by_hand.RESULT_SITE, 0, "[{}, {}]")
    found = {finding.name: finding for finding in check(by_hand.subject(), plan).failures}
    assert found["collectives"].detail.startswith("all_gather over x,y: expected 1 of 4096 bytes in all")
    assert found["interface"].detail.startswith("z: the row says")


def test_demands() -> None:
    """The user's shardings are held against the plan: closed exactly, open as a prefix, replicated axes unused."""
    base = by_hand.listing()
    for text, ok in (
        ('[{"x"}, {"y"}]', True),
        ('[{"x", ?}, {?}]', True),
        ('[{?}, {?}], replicated={"x"}', False),
        ("[{}, {?}]", False),
        ('[{"x", "y", ?}, {?}]', False),
    ):
        argument = replace(base.arguments[0], demand=parse_sharding(text, by_hand.MESH))
        subject = by_hand.subject(replace(base, arguments=(argument, base.arguments[1])))
        report = check(subject, by_hand.plan())
        assert [f.name for f in report.failures] == ([] if ok else ["demands"]), text


def test_every_demand_counts() -> None:
    """A carried pair with a demand on either end keeps both."""
    base = by_hand.listing()
    open_, closed = (parse_sharding(text, by_hand.MESH) for text in ("[{?}, {?}]", '[{"x"}, {}]'))
    listing = replace(
        base,
        arguments=(base.arguments[0], replace(base.arguments[1], demand=open_)),
        results=(base.results[0], replace(base.results[1], demand=closed)),
    )
    report = check(by_hand.subject(listing), by_hand.plan())
    assert [finding.name for finding in report.failures] == ["demands"]
    assert "result w'" in report.failures[0].detail


def test_division() -> None:
    """Arguments and results divide evenly: 30 rows over 4 devices do not."""
    plan, base = by_hand.plan(), by_hand.listing()
    odd = by_hand.TensorType((30, 16), "f32")
    values = (*base.values[:1], by_hand.Value(odd, "w"), *base.values[2:4], by_hand.Value(odd, "w'"))
    rule = by_hand.OpShardingRule.elementwise(odd.shape, 1)
    dot = by_hand.parse_rule("([i, k],[l, j])->([i, j]) {i=64, j=16, k=32, l=30} reduction={k}")
    first, second, third = base.ops
    listing = replace(base, values=values, ops=(replace(first, rule=dot), second, replace(third, rule=rule)))
    split = PlannedValue(by_hand.X_ROWS)
    plan = by_hand.with_value(by_hand.with_value(plan, 1, split), 4, split)
    names = {finding.name for finding in check(by_hand.subject(listing), plan).failures}
    assert "division" in names


def test_more_shards_than_elements() -> None:
    """Four rows cannot be split eight ways."""
    small = by_hand.TensorType((4, 16), "f32")
    base = by_hand.listing()
    listing = replace(base, values=(*base.values[:3], by_hand.Value(small, "z"), base.values[4]))
    (finding,) = check(by_hand.subject(listing), by_hand.plan()).failures
    assert finding.name == "shardings"
    assert "beyond its size" in finding.detail


def test_loop_copies() -> None:
    """A loop of 5 trips carries a value that its condition, its body and a reader after it want gathered: 5 + 5 + 1 copies."""
    listing = by_hand.looping()
    split, whole = PlannedValue(by_hand.X_ROWS), "[{}, {}]"
    plan = replace(
        by_hand.plan(),
        module_sha256="b" * 64,
        carry=(),
        values={
            0: split,
            1: PlannedValue(by_hand.X_ROWS, shared=whole),
            **{value: PlannedValue(whole) for value in (2, 5, 6)},
            3: PlannedValue(whole, by_hand.X_ROWS),
            4: split,
        },
        uses=(
            *(PlannedUse(op, 0, whole) for op in (1, 2, 3, 4)),
            PlannedUse(0, 0, by_hand.X_ROWS),
            PlannedUse(-1, 0, by_hand.X_ROWS),
            PlannedUse(-1, 1, by_hand.X_ROWS),
            PlannedUse(by_hand.RESULT_SITE, 0, whole),
        ),
    )
    found = {finding.name: finding for finding in check(by_hand.subject(listing), plan).failures}
    assert "all_gather over x: expected 11 of" in found["collectives"].detail
    assert not {"rules", "reads", "data flow", "shardings"} & set(found)


def test_op_without_a_rule() -> None:
    """Without its rule an op is whole on every device; the plan that splits it is refused with the op's location."""
    base = by_hand.listing()
    ops = (base.ops[0], replace(base.ops[1], rule=None), base.ops[2])
    report = check(by_hand.subject(replace(base, ops=ops)), by_hand.plan())
    assert [finding.name for finding in report.failures] == ["rules"]
    assert report.failures[0].detail.startswith("stablehlo.tanh stablehlo.tanh:3: ")
    assert "compute" in report.unchecked
