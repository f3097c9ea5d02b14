"""What runs behind compute under `--overlap async`: weights that are gathered ahead of time, up to a stated limit, and nothing else."""

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.mlir.forms import Form
from autoshard.plans import Plan
from autoshard.program import Ahead, first_readers, in_argument_buffers, prefetchable
from autoshard.program.outputs import made_with_products, repeated_origins
from costmodels import load

HARDWARE = load("tpu-v5e")
MESH = '#sdy.sharding<@mesh, [{"x"}, {}]>'


def layer(rows: int) -> str:
    """A product of activations and a weight, both given; the weight is cast to bf16 on the way in."""
    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<{rows}x4096xbf16> {{sdy.sharding = {MESH}}},
                      %w: tensor<4096x4096xf32> {{sdy.sharding = {MESH}}})
          -> (tensor<{rows}x4096xbf16> {{sdy.sharding = {MESH}}}) {{
        %c = stablehlo.convert %w : (tensor<4096x4096xf32>) -> tensor<4096x4096xbf16>
        %0 = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0]
          : (tensor<{rows}x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<{rows}x4096xbf16>
        return %0 : tensor<{rows}x4096xbf16>
      }}"""


def planned(text: str, overlap: str) -> Plan:
    asked = pipeline.Request(
        memory_bytes=None, form="shardy", overlap="async" if overlap == "async" else "none"
    )
    return pipeline.plan_loaded(pipeline.load_module(text.encode(), asked))


def hidden_ns(plan: Plan) -> int:
    return sum(c.hidden_ns * c.repeat for c in plan.price.collectives)


def test_weight_gather_hides_behind_product() -> None:
    """Nine tenths of the gather where the product takes long enough; plans say what they assume, and `none` hides nothing."""
    text = layer(65536)
    shown, hiding = planned(text, "none"), planned(text, "async")
    assert (shown.overlap, hiding.overlap) == ("none", "async")
    assert [c.kind for c in hiding.price.collectives] == ["all_gather"]
    gather_ns = hiding.price.collectives[0].ns + hidden_ns(hiding)
    assert hidden_ns(shown) == 0
    assert shown.price.communication_ns == gather_ns
    assert hidden_ns(hiding) == gather_ns * 9 // 10
    assert hiding.price.step_ns == shown.price.step_ns - hidden_ns(hiding)


def test_short_product_hides_half_its_time() -> None:
    """Half of the least time of the product (its FLOPs over all devices, at the rate of the matrix unit), for both operands together."""
    rows = 8192
    flops = 2 * rows * 4096 * 4096 / 4
    rate = HARDWARE.chip.bf16_tflop_per_s * 1e3 * HARDWARE.chip.matrix_efficiency
    assert hidden_ns(planned(layer(rows), "async")) == int(flops / rate / 2 / 2)


CONSTRAINED = "%d = sdy.sharding_constraint %c <@mesh, [{}, {}]> : tensor<4096x4096xbf16>"


@pytest.mark.parametrize("sharding", ["[{}, {}]", '[{"x"}, {}]'])
@pytest.mark.parametrize("rows", [8192, 65536])
def test_what_a_constraint_brings_hides_as_much(rows: int, sharding: str) -> None:
    """A weight that the user has gathered in front of its product, or its product gathers behind a constraint, is on its way as any is."""
    text = layer(rows)
    constrained = CONSTRAINED.replace("[{}, {}]", sharding)
    written = text.replace("%0 = ", f"{constrained}\n%0 = ").replace(
        "dot_general %a, %c", "dot_general %a, %d"
    )
    for overlap in ("none", "async"):
        assert planned(written, overlap).price.step_ns == planned(text, overlap).price.step_ns
    asked = pipeline.Request(memory_bytes=None, form="shardy", overlap="async")
    loaded = pipeline.load_module(written.encode(), asked)
    plan = pipeline.plan_loaded(loaded)
    assert hidden_ns(plan) == hidden_ns(planned(text, "async")) > 0
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed


def test_the_first_reader_of_what_a_constraint_brings() -> None:
    """Of a chain of constraints, which are one move, that of the last."""
    text = layer(65536)
    chained = f"{CONSTRAINED}\n%e = sdy.sharding_constraint %d <@mesh, [{{}}, {{}}]> : tensor<4096x4096xbf16>"
    written = text.replace("%0 = ", f"{chained}\n%0 = ").replace("dot_general %a, %c", "dot_general %a, %e")
    once = text.replace("%0 = ", f"{CONSTRAINED}\n%0 = ").replace("dot_general %a, %c", "dot_general %a, %d")
    readers = [
        first_readers(pipeline.load_module(module.encode(), pipeline.Request()).program)
        for module in (text, once, written)
    ]
    assert [len(found) for found in readers] == [0, 1, 1]


def test_only_what_is_there_ahead() -> None:
    """Arguments, their casts, what a loop carries unchanged and slices of it; not what a product or two operands make."""
    text = """
      func.func @main(%a: tensor<8x16xf32>, %w: tensor<4x16x16xf32>) -> tensor<8x16xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %four = stablehlo.constant dense<4> : tensor<i32>
        %0:3 = stablehlo.while(%i = %zero, %x = %a, %stack = %w) : tensor<i32>, tensor<8x16xf32>, tensor<4x16x16xf32>
          cond {
            %c = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          } do {
            %s = stablehlo.dynamic_slice %stack, %i, %zero, %zero, sizes = [1, 16, 16]
              : (tensor<4x16x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>
            %r = stablehlo.reshape %s : (tensor<1x16x16xf32>) -> tensor<16x16xf32>
            %y = stablehlo.dot_general %x, %r, contracting_dims = [1] x [0]
              : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
            %j = stablehlo.add %i, %one : tensor<i32>
            stablehlo.return %j, %y, %stack : tensor<i32>, tensor<8x16xf32>, tensor<4x16x16xf32>
          }
        return %0#1 : tensor<8x16xf32>
      }"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(mesh=(("x", 2),)))
    early = prefetchable(loaded.program)
    kernels = {kernel.shape.name.removeprefix("stablehlo."): kernel for kernel in loaded.program.kernels}
    assert {kernels["dynamic_slice"].results[0], kernels["reshape"].results[0]} <= early
    assert kernels["dot_general"].results[0] not in early
    weight = kernels["dynamic_slice"].uses[0].value
    activation = kernels["dot_general"].uses[0].value
    assert weight in early
    assert activation not in early


def test_what_comes_early_takes_memory_early() -> None:
    """So early that the products until then take as long as the gather, and not before the function begins."""
    text = """
      func.func @main(%a: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        return %2 : tensor<64x64xf32>
      }"""
    program = pipeline.load_module(text.encode(), pipeline.Request(mesh=(("x", 2),))).program
    first, second, third = (kernel.time for kernel in program.kernels)
    ahead = Ahead(program, [10.0, 10.0, 10.0])
    assert [ahead.begin(third, ns) for ns in (0, 10, 11, 1000)] == [third, second, first, first]
    assert ahead.begin(first, 10) == first


@pytest.mark.parametrize(
    ("hardware", "form", "overlap"),
    [
        ("tpu-v5e", "xla", "async"),
        ("tpu-v5e", "shardy", "none"),
        ("tpu-v5p", "xla", "none"),
        ("h100", "xla", "none"),
    ],
)
def test_default_is_what_the_compiler_does(hardware: str, form: Form, overlap: str) -> None:
    """XLA is seen to run gathers behind compute on v5e only."""
    asked = pipeline.Request(hardware=hardware, form=form)
    assert pipeline.load_module(layer(64).encode(), asked).overlap == overlap


def test_shards_of_arguments_are_copied_before_they_are_gathered() -> None:
    """From the start of the program until the gather begins, whatever is assumed of its time; a cast one is no argument any more."""
    text = """
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<65536x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                      %v: tensor<4096x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                      %w: tensor<4096x4x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
          -> (tensor<65536x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
        %0 = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0]
          : (tensor<65536x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<65536x4096xbf16>
        %1 = stablehlo.dot_general %0, %v, contracting_dims = [1] x [0]
          : (tensor<65536x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<65536x4096xbf16>
        %r = stablehlo.reshape %w : (tensor<4096x4x1024xbf16>) -> tensor<4096x4096xbf16>
        %2 = stablehlo.dot_general %1, %r, contracting_dims = [1] x [0]
          : (tensor<65536x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<65536x4096xbf16>
        %c = stablehlo.convert %2 : (tensor<65536x4096xbf16>) -> tensor<65536x4096xf32>
        return %2 : tensor<65536x4096xbf16>
      }"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, overlap="none"))
    weight = loaded.listing.arguments[2].value
    reshaped = next(k.results[0] for k in loaded.program.kernels if k.shape.name == "stablehlo.reshape")
    kept = in_argument_buffers(loaded.program)
    assert {weight, reshaped} <= kept
    assert all(k.results[0] not in kept for k in loaded.program.kernels if k.shape.is_matmul)
    shard = 4096 * 1024 * 2
    problem = pipeline.price_for_planning(loaded).problem
    first = [i for i, (_, begin, _, _) in enumerate(problem.edge_item.tolist()) if begin == 0]
    assert any(problem.usage_tables[problem.edge_item[i, 3]].max() >= shard for i in first)


def test_elementwise_work_on_products() -> None:
    """What a compiler can do while a product runs, and what products repeat; a normalisation needs the whole result first."""
    text = """
      func.func @main(%a: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>, tensor<64x64xi1>) {
        %zero = stablehlo.constant dense<0.0> : tensor<64x64xf32>
        %none = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %1 = stablehlo.maximum %0, %zero : tensor<64x64xf32>
        %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %3 = stablehlo.reduce(%0 init: %none) applies stablehlo.add across dimensions = [1]
          : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
        %4 = stablehlo.dot_general %1, %2, contracting_dims = [0] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %5 = stablehlo.compare GT, %0, %zero : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xi1>
        return %4, %3, %5 : tensor<64x64xf32>, tensor<64xf32>, tensor<64x64xi1>
      }"""
    program = pipeline.load_module(text.encode(), pipeline.Request(mesh=(("x", 2),))).program
    rectified = next(k.results[0] for k in program.kernels if k.shape.name == "stablehlo.maximum")
    summed = next(k.results[0] for k in program.kernels if k.shape.name == "stablehlo.reduce")
    assert repeated_origins(program) == {rectified: rectified}
    assert rectified in made_with_products(program)
    assert summed not in made_with_products(program)


def test_what_is_sliced_of_a_product_is_made_with_it() -> None:
    """A gate and what it gates, as halves of one product, but no halves of an argument."""
    wide, half = "tensor<64x2x64xf32>", "tensor<64x1x64xf32>"
    text = f"""
      func.func @main(%a: tensor<64x64xf32>, %w: tensor<64x2x64xf32>, %b: {wide}) -> (tensor<64x64xf32>, tensor<64x64xf32>) {{
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, {wide}) -> {wide}
        %1 = stablehlo.slice %0 [0:64, 0:1, 0:64] : ({wide}) -> {half}
        %2 = stablehlo.slice %0 [0:64, 1:2, 0:64] : ({wide}) -> {half}
        %3 = stablehlo.multiply %1, %2 : {half}
        %4 = stablehlo.reshape %3 : ({half}) -> tensor<64x64xf32>
        %5 = stablehlo.dot_general %4, %a, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %6 = stablehlo.dot_general %4, %a, contracting_dims = [0] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %7 = stablehlo.tanh %b : {wide}
        %8 = stablehlo.slice %7 [0:64, 0:1, 0:64] : ({wide}) -> {half}
        %9 = stablehlo.negate %8 : {half}
        %10 = stablehlo.reshape %9 : ({half}) -> tensor<64x64xf32>
        %11 = stablehlo.dot_general %10, %6, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        return %5, %11 : tensor<64x64xf32>, tensor<64x64xf32>
      }}"""
    program = pipeline.load_module(text.encode(), pipeline.Request(mesh=(("x", 2),))).program
    made = made_with_products(program)
    gated, negated = (
        next(
            k.results[0]
            for k in program.kernels
            if program.listing.ops[k.ops[-1]].name == f"stablehlo.{name}"
        )
        for name in ("multiply", "negate")
    )
    assert gated in made
    assert negated not in made


@pytest.mark.parametrize(("rows", "is_limited"), [(65536, False), (64, True)])
def test_a_scheduler_hides_a_share_up_to_twice_the_products(rows: int, is_limited: bool) -> None:
    """Of what does not run ahead, 45 % of the gather on v5e, or as long as it takes the products to be for: twice their least time."""
    square = "tensor<4096x4096xbf16>"
    text = f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<{rows}x4096xbf16> {{sdy.sharding = {MESH}}}, %v: {square} {{sdy.sharding = {MESH}}},
                      %w: {square} {{sdy.sharding = {MESH}}}) -> (tensor<{rows}x4096xbf16> {{sdy.sharding = {MESH}}}) {{
        %0 = stablehlo.add %v, %w : {square}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : {square}
        %2 = sdy.sharding_constraint %1 <@mesh, [{{}}, {{}}]> : {square}
        %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0]
          : (tensor<{rows}x4096xbf16>, {square}) -> tensor<{rows}x4096xbf16>
        return %3 : tensor<{rows}x4096xbf16>
      }}"""
    asked = pipeline.Request(hardware="tpu-v5e:scheduler", memory_bytes=None, overlap="async")
    loaded = pipeline.load_module(text.encode(), asked)
    plan = pipeline.plan_loaded(loaded)
    (gather,) = plan.price.collectives
    whole_ns = int(loaded.communication.all_gather_ns(2 * 4096 * 4096, ["x"]))
    least_ns = 2 * rows * 4096 * 4096 / 4 / 197e3
    share_ns = whole_ns * 45 // 100
    assert gather.ns + gather.hidden_ns == whole_ns
    assert gather.hidden_ns == min(share_ns, int(2 * least_ns))
    assert (share_ns > 2 * least_ns) == is_limited
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
