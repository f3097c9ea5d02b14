"""Shardings on other meshes than the plan's: another order of its devices, other axes over them, one device alone."""

from collections.abc import Callable

import pytest

from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.plans import Plan
from tests.sdy.arbitrary import Written, added_reshards, arbitrary, complaints, differences

MESHES = """sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @back = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @flat = <["z"=8]>
sdy.mesh @one = <[], device_ids=[3]>
sdy.mesh @two = <[], device_ids=[5]>
"""
ORDER, AXES, DEVICE = '@back, [{"y"}, {}]', '@flat, [{"z"}, {}]', "@one, []"
FOREIGN = {"order": ORDER, "axes": AXES, "device": DEVICE}
T = "tensor<8x16xf32>"


def module(line: str, argument: str = '@mesh, [{"x"}, {}]', result: str = '@mesh, [{}, {"y"}]') -> str:
    """%0 is made of %a by `line`; its sine is returned. Most shardings are on @mesh."""
    return f"""{MESHES}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<{argument}>}},
    %b: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}})
    -> ({T} {{sdy.sharding = #sdy.sharding<{result}>}}) {{
    {line}
    %1 = stablehlo.sine %0 : {T}
    %2 = stablehlo.add %1, %b {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}} : {T}
    return %2 : {T} }}"""


def op(sharding: str) -> str:
    return module(f"%0 = stablehlo.abs %a {{sdy.sharding = #sdy.sharding_per_value<[<{sharding}>]>}} : {T}")


def constraint(sharding: str) -> str:
    return module(f"%0 = sdy.sharding_constraint %a <{sharding}> : {T}")


def barrier(sharding: str) -> str:
    return module(
        f"%0 = stablehlo.optimization_barrier {{sdy.sharding = #sdy.sharding_per_value<[<{sharding}>]>}} %a : {T}"
    )


def loop(sharding: str) -> str:
    """The value is carried there."""
    return module(
        f"""%c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %i, %0 = stablehlo.while(%j = %c, %d = %a) : tensor<i32>, {T}
      attributes {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <{sharding}>]>}}
      cond {{ %p = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1> }}
      do {{ %s = stablehlo.constant dense<1> : tensor<i32>
        %k = stablehlo.add %j, %s : tensor<i32>
        %e = stablehlo.cosine %d : {T}
        stablehlo.return %k, %e : tensor<i32>, {T} }}"""
    )


PLACES: dict[str, Callable[[str], str]] = {
    "argument": lambda sharding: module(f"%0 = stablehlo.abs %a : {T}", argument=sharding),
    "result": lambda sharding: module(f"%0 = stablehlo.abs %a : {T}", result=sharding),
    "both ends": lambda sharding: module(f"%0 = stablehlo.abs %a : {T}", sharding, sharding),
    "op": op,
    "constraint": constraint,
    "reshard": lambda sharding: module(f"%0 = sdy.reshard %a <{sharding}> : {T}"),
    "barrier": barrier,
    "loop": loop,
    "constant": lambda sharding: module(
        f"%c = stablehlo.constant dense<1.0> : {T}\n    %0 = sdy.sharding_constraint %c <{sharding}> : {T}"
    ),
}
EVERY_PLACE = [(place, foreign) for place in PLACES for foreign in FOREIGN]
SOME_PLACES = [
    ("argument", "order"),
    ("both ends", "device"),
    ("constraint", "order"),
    ("constraint", "axes"),
    ("constraint", "device"),
    ("op", "order"),
    ("op", "device"),
    ("loop", "axes"),
    ("constant", "device"),
]


def text_of(place: str, foreign: str) -> str:
    return PLACES[place](FOREIGN[foreign])


def drawn(text: str, seed: int, form: str = "shardy") -> Written:
    return arbitrary(text, lambda strategy: True, seed, "xla" if form == "xla" else "shardy")


def planned(text: str) -> Plan:
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, form="shardy"))
    plan = pipeline.plan_loaded(loaded, time_limit_s=20)
    assert plan.status == "optimal"
    return plan


@pytest.mark.parametrize(("place", "foreign"), EVERY_PLACE)
def test_arbitrary_plans_are_what_they_say(place: str, foreign: str) -> None:
    """The checker agrees with price, memory and demands; Shardy's passes emit what is paid for, and add no reshard."""
    written = drawn(text_of(place, foreign), len(place))
    assert f"<{FOREIGN[foreign]}>" in written.text
    assert complaints(written) == ""
    assert added_reshards(written) == 0


@pytest.mark.parametrize(("place", "foreign"), SOME_PLACES)
def test_the_planned_module_moves_what_the_plan_says(place: str, foreign: str) -> None:
    """Read again, the shardings on other meshes are demands that the shardings as they are meet."""
    text = text_of(place, foreign)
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, form="shardy"))
    plan = pipeline.plan_loaded(loaded, time_limit_s=20)
    again = pipeline.load_module(
        pipeline.write_planned(loaded, plan).encode(), pipeline.Request(memory_bytes=None, form="shardy")
    )
    assert pipeline.cost_loaded(again).price.communication_ns == plan.price.communication_ns


@pytest.mark.parametrize(("place", "foreign"), SOME_PLACES)
def test_planned_modules_compute_the_same(place: str, foreign: str) -> None:
    """XLA on eight devices takes shardings on several meshes, and those on one device."""
    written = drawn(text_of(place, foreign), 1, "xla")
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""


def collectives(plan: Plan) -> list[tuple[str, tuple[str, ...], int]]:
    return [(c.kind, c.axes, c.bytes) for c in plan.price.collectives]


def between(before: str, after: str) -> str:
    return f"""{MESHES}func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<{before}>}},
    %b: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}})
    -> ({T} {{sdy.sharding = #sdy.sharding<{after}>}}, {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}}) {{
    return %a, %b : {T}, {T} }}"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('@mesh, [{"x"}, {}]', '@back, [{"x"}, {}]', [("collective_permute", ("x", "y"), 256)]),
        ("@mesh, [{}, {}]", "@back, [{}, {}]", []),
        ('@mesh, [{"x"}, {}]', "@back, [{}, {}]", [("all_gather", ("x",), 512)]),
        ('@back, [{"x"}, {}]', '@back, [{}, {"x"}]', [("all_to_all", ("x",), 256)]),
        (
            '@mesh, [{"x"}, {}]',
            '@flat, [{"z"}, {}]',
            [("all_gather", ("x", "y"), 512), ("all_slice", ("x", "y"), 64)],
        ),
        ("@mesh, [{}, {}]", '@flat, [{"z"}, {}]', [("all_slice", ("x", "y"), 64)]),
        ('@flat, [{"z"}, {}]', "@mesh, [{}, {}]", [("all_gather", ("x", "y"), 512)]),
        ("@mesh, [{}, {}]", "@flat, [{}, {}]", []),
        ('@mesh, [{"x"}, {}]', "@one, []", [("all_gather", ("x", "y"), 512)]),
        ("@mesh, [{}, {}]", "@one, []", []),
        (
            "@one, []",
            '@mesh, [{"x"}, {}]',
            [("all_gather", ("x", "y"), 512), ("all_slice", ("x", "y"), 256)],
        ),
        ("@one, []", "@one, []", []),
        ("@one, []", "@two, []", [("all_gather", ("x", "y"), 512)]),
    ],
)
def test_crossings_cost_what_the_documentation_says(
    before: str, after: str, expected: list[tuple[str, tuple[str, ...], int]]
) -> None:
    assert collectives(planned(between(before, after))) == expected


def test_a_value_on_one_device_takes_all_of_its_bytes() -> None:
    """On the device that has it, which is the one that memory counts."""
    plan = planned(between("@one, []", "@one, []"))
    assert plan.arguments[0].bytes == plan.results[0].bytes == 512
    assert plan.arguments[0].sharding == "@one [{}, {}]"


def test_the_plan_keeps_its_other_meshes() -> None:
    """What is not used is not among them; `autoshard check` reads shardings by them."""
    plan = planned(constraint(ORDER))
    assert [(mesh.name, mesh.device_ids) for mesh in plan.other_meshes] == [
        ("back", (7, 6, 5, 4, 3, 2, 1, 0))
    ]
    (warning,) = (text for text in plan.warnings if "kept as they are" in text)
    assert '1 on @back = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>' in warning


def test_an_op_on_one_device_reads_there_what_is_there() -> None:
    """A chain of ops on one device moves nothing between them."""
    on_one = "{sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}"
    text = module(
        f"%c = stablehlo.cosine %a {on_one} : {T}\n    %0 = stablehlo.abs %c {on_one} : {T}",
        argument="@one, []",
    )
    assert collectives(planned(text))[0] == ("all_gather", ("x", "y"), 512)
    assert sum(kind == "all_gather" for kind, _, _ in collectives(planned(text))) <= 2


def test_a_callback_keeps_its_device() -> None:
    """In both forms, and its operands are brought to it whole."""
    line = f"""stablehlo.custom_call @xla_python_cpu_callback(%a) {{has_side_effect = true,
      sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}} : ({T}) -> ()
    %0 = stablehlo.abs %a : {T}"""
    for form in ("shardy", "xla"):
        assert (
            "sdy.sharding_per_value<[<@one, []>]>} : (tensor<8x16xf32>) -> ()"
            in drawn(module(line), 0, form).text
        )


@pytest.mark.parametrize("other", ["@two, []", '@mesh, [{"x"}, {}]'])
def test_an_op_runs_on_one_device_or_on_all(other: str) -> None:
    line = f"""%0, %c = stablehlo.custom_call @f(%a)
      {{sdy.sharding = #sdy.sharding_per_value<[<@one, []>, <{other}>]>}} : ({T}) -> ({T}, {T})"""
    with pytest.raises(
        AutoshardError, match=r"results of one op on @.* and @.*: it runs on one device or on all"
    ):
        planned(module(line))


@pytest.mark.parametrize(
    ("mesh", "sharding"),
    [('<["x"=4]>', '@other, [{"x"}, {}]'), ("<[], device_ids=[8]>", "@other, []")],
)
def test_other_devices_are_refused(mesh: str, sharding: str) -> None:
    """Where, and what to do."""
    text = f"sdy.mesh @other = {mesh}\n" + constraint(sharding)
    with pytest.raises(
        AutoshardError, match=r"<bytes>:\d+: a sharding on mesh @other = .*, which is over other devices"
    ):
        planned(text)


def test_uneven_arguments_on_another_mesh_are_refused() -> None:
    with pytest.raises(AutoshardError, match="dimension 1 of size 12 does not divide into 8 shards"):
        planned(between('@flat, [{}, {"z"}]', "@mesh, [{}, {}]").replace("8x16", "8x12"))


def test_an_inlined_mesh_is_a_mesh() -> None:
    """Two orders of devices, one written inside the sharding."""
    inlined = 'mesh<["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"y"}, {}]'
    written = drawn(constraint(inlined), 0)
    assert complaints(written) == ""
    assert (
        "sdy.sharding_constraint" not in written.text or "device_ids=[7, 6, 5, 4, 3, 2, 1, 0]" in written.text
    )
    assert collectives(planned(constraint(inlined))) == collectives(planned(constraint(ORDER)))


def test_priorities_leave_other_meshes_alone() -> None:
    text = constraint(ORDER).replace('{"x"}, {"y"}]>}', '{"x"}p1, {"y"}p0]>}', 1)
    plan = planned(text)
    assert any(value.produced == '@back [{"y"}, {}]' for value in plan.values.values())
    assert len(plan.levels) == 2
