"""What loops that scatter a sum are handed, beside what other products read."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.program import Lives, SharedReads, build_program
from tests.mlir.modules import listed, main_of

ROWS, WIDTH, WIDER = 131072, 2048, 8192
X, W = f"tensor<{ROWS}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDER}xf32>"
H, V = f"tensor<{ROWS}x{WIDER}xf32>", f"tensor<{WIDER}x{WIDTH}xf32>"
ALL = '{"x", "y"}'
STEP = f"""
  sdy.mesh @mesh = <["x"=4, "y"=4]>
  func.func @main(%x: {X} {{sdy.sharding = #sdy.sharding<@mesh, [{ALL}, {{}}]>}},
      %w: {W} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}},
      %v: {V} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) -> ({V}, {W}) {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {H}
    %1 = stablehlo.tanh %0 : {H}
    %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : ({H}, {V}) -> {X}
    %3 = stablehlo.multiply %2, %2 : {X}
    %4 = stablehlo.dot_general %1, %3, contracting_dims = [0] x [0] : ({H}, {X}) -> {V}
    %5 = sdy.sharding_constraint %4 <@mesh, [{ALL}, {{}}]> : {V}
    %6 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [1] : ({X}, {V}) -> {H}
    %7 = stablehlo.multiply %6, %0 : {H}
    %8 = stablehlo.dot_general %x, %7, contracting_dims = [0] x [0] : ({X}, {H}) -> {W}
    %9 = sdy.sharding_constraint %8 <@mesh, [{{}}, {ALL}]> : {W}
    return %5, %9 : {V}, {W}
  }}"""


def test_a_product_s_epilogue_is_stored_as_narrow_as_a_loop_is_handed_it() -> None:
    """Other products read that too: 755 MB are taken (libtpu 0.0.51 for v5e 4x4)."""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    written = price_as_written(pipeline.load_module(STEP.encode(), request))
    priced = written.priced
    assert 0.95 * 755e6 <= priced.expected_peak(written.choice) <= 1.05 * 755e6
    lives = Lives(priced.graph.program.lifetimes)
    items = (item for _, item in priced.node_items.while_living(lives))
    notes = {item.note for item in items if item.bytes.any()}
    assert "operand worked out for a loop" in notes
    assert "as wide as other products read it" not in notes


def product(rows: int, columns: int, columns_first: bool = False) -> str:
    """Of two worked out values, summed over a batch that is split over all devices; the result is cut along its columns."""
    first, second = f"tensor<64x1024x{rows}xbf16>", f"tensor<64x1024x{columns}xbf16>"
    batch = f"#sdy.sharding<@mesh, [{ALL}, {{}}, {{}}]>"
    made, cut = f"tensor<{rows}x{columns}xf32>", f"[{ALL}, {{}}]" if columns_first else f"[{{}}, {ALL}]"
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {first} {{sdy.sharding = {batch}}}, %b: {second} {{sdy.sharding = {batch}}})
          -> ({made} {{sdy.sharding = #sdy.sharding<@mesh, {cut}>}}) {{
        %x = stablehlo.tanh %a : {first}
        %y = stablehlo.tanh %b : {second}
        %0 = stablehlo.dot_general %x, %y, contracting_dims = [0, 1] x [0, 1] : ({first}, {second}) -> {made}
        return %0 : {made}
      }}"""


@pytest.mark.parametrize(
    ("rows", "columns", "by_rows", "transposed"),
    [
        (4096, 1536, False, 1536),  # parts of 96 columns, of 128 lanes: by columns
        (4096, 2048, False, 4096),
        (4096, 2304, False, 2304),
        (2048, 3968, False, 3968),
        (1536, 8064, False, 8064),
        (1536, 4096, True, 1536),  # parts of 96 rows, a multiple of 8
        (2304, 4096, True, 2304),
    ],
)
def test_which_operand_a_loop_reads_transposed(
    rows: int, columns: int, by_rows: bool, transposed: int
) -> None:
    """The first, or the second where the part that a device keeps pads less column by column (libtpu 0.0.52 for v5p 2x2x4)."""
    text = product(rows, columns, by_rows).encode()
    asked = pipeline.Request(hardware="tpu-v5p", topology=(2, 2, 4), memory_bytes=None)
    written = price_as_written(pipeline.load_module(text, asked))
    priced = written.priced
    lives = Lives(priced.graph.program.lifetimes)
    turned = [
        int(item.bytes[written.choice[node]])
        for node, item in priced.node_items.while_living(lives)
        if item.note == "operand transposed for a loop" and item.bytes[written.choice[node]]
    ]
    bytes_ = 4 * 1024 * transposed * 2
    assert len(turned) == 1
    assert bytes_ <= turned[0] < 1.1 * bytes_
    plan = pipeline.plan_loaded(pipeline.load_module(text, asked))
    assert pipeline.check_plan(text, plan).passed


def test_when_products_share_what_loops_are_handed() -> None:
    """Each spell once: from the first read to the first loop, between loops, and until the last read that is none."""
    x, w, g = "tensor<512x64xf32>", "tensor<64x32xf32>", "tensor<512x32xf32>"
    forward, gradient = "contracting_dims = [1] x [0]", "contracting_dims = [0] x [0]"
    body = f"""%n = stablehlo.negate %x : {x}
      %0 = stablehlo.dot_general %n, %w, {forward} : ({x}, {w}) -> {g}
      %1 = stablehlo.dot_general %n, %w, {forward} : ({x}, {w}) -> {g}
      %2 = stablehlo.dot_general %n, %0, {gradient} : ({x}, {g}) -> {w}
      %3 = stablehlo.dot_general %n, %1, {gradient} : ({x}, {g}) -> {w}
      %4 = stablehlo.dot_general %n, %w, {forward} : ({x}, {w}) -> {g}
      return %2, %3, %4 : {w}, {w}, {g}"""
    program = build_program(listed(main_of(body, f"%x: {x}, %w: {w}", f"{w}, {w}, {g}")))
    shared, kernels = SharedReads(program), {kernel.time: kernel for kernel in program.kernels}
    assert shared.spells(kernels[3], 0, (3, 4), {}) == [(2, 3), (4, 6)]
    assert shared.spells(kernels[4], 0, (4, 5), {}) == [(5, 6)]
    assert shared.spells(kernels[4], 0, (6, 7), {}) == [(4, 6)]
    assert shared.spells(kernels[3], 1, (3, 4), {}) == []
    waiting = {kernels[4].time: 9}
    assert shared.spells(kernels[3], 0, (3, 4), waiting) == [(2, 3), (4, 10)]


GELU_X, GELU_W = "tensor<131072x2048xbf16>", "tensor<2048x8192xbf16>"
GELU_H, GELU_V = "tensor<131072x8192xbf16>", "tensor<8192x2048xbf16>"


def exact_gelu(is_scattered: bool) -> str:
    """A perceptron with exact GELU and the gradients of both weights, split over all devices or whole everywhere."""
    rows = f"{{sdy.sharding = #sdy.sharding<@mesh, [{ALL}, {{}}]>}}"
    cut = f"{{sdy.sharding = #sdy.sharding<@mesh, [{ALL if is_scattered else '{}'}, {{}}]>}}"
    half, minus = "stablehlo.constant dense<5.0e-01>", "stablehlo.constant dense<-7.070310e-01>"
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%x: {GELU_X} {rows}, %w: {GELU_W}, %v: {GELU_V}) -> ({GELU_V} {cut}, {GELU_W} {cut}) {{
        %half = {half} : {GELU_H}
        %minus = {minus} : {GELU_H}
        %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({GELU_X}, {GELU_W}) -> {GELU_H}
        %n = stablehlo.multiply %h, %minus : {GELU_H}
        %e = chlo.erfc %n : {GELU_H} -> {GELU_H}
        %s = stablehlo.multiply %h, %half : {GELU_H}
        %u = stablehlo.multiply %s, %e : {GELU_H}
        %y = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0] : ({GELU_H}, {GELU_V}) -> {GELU_X}
        %gv = stablehlo.dot_general %u, %y, contracting_dims = [0] x [0] : ({GELU_H}, {GELU_X}) -> {GELU_V}
        %gu = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : ({GELU_X}, {GELU_V}) -> {GELU_H}
        %g = stablehlo.multiply %gu, %e : {GELU_H}
        %gw = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : ({GELU_X}, {GELU_H}) -> {GELU_W}
        return %gv, %gw : {GELU_V}, {GELU_W}
      }}"""


@pytest.mark.parametrize("is_scattered", [True, False])
def test_what_is_made_with_a_loop_s_operand_is_stored_where_memory_is_short(is_scattered: bool) -> None:
    """The error function, once, beside GELU's result; without loops XLA makes it anew then."""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    loaded = pipeline.load_module(exact_gelu(is_scattered).encode(), request)
    written = price_as_written(loaded)
    priced, lives = written.priced, Lives(loaded.program.lifetimes)
    items = list(priced.node_items.while_living(lives))
    note, hidden = "made with what a loop is handed", 131072 // 16 * 8192 * 2
    mine = [int(item.bytes[written.choice[number]]) for number, item in items if item.note == note]
    assert sum(mine) == pytest.approx(hidden if is_scattered else 0, rel=0.1)
    ample = Lives(loaded.program.ample_lifetimes)
    stored = priced.node_items.while_living(ample)
    assert note not in {item.note for _, item in stored}
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), written.plan()).passed


def test_other_products_read_what_a_loop_is_handed() -> None:
    """A norm's result is stored from the forward product on, which reads it too; short of memory the compiler works it out again."""
    rows = f"{{sdy.sharding = #sdy.sharding<@mesh, [{ALL}, {{}}]>}}"
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%x: {GELU_X} {rows}, %w: {GELU_W}) -> ({GELU_H} {rows}, {GELU_W} {rows}) {{
        %n = stablehlo.multiply %x, %x : {GELU_X}
        %h = stablehlo.dot_general %n, %w, contracting_dims = [1] x [0] : ({GELU_X}, {GELU_W}) -> {GELU_H}
        %t = stablehlo.tanh %h : {GELU_H}
        %g = stablehlo.dot_general %n, %t, contracting_dims = [0] x [0] : ({GELU_X}, {GELU_H}) -> {GELU_W}
        return %h, %g : {GELU_H}, {GELU_W}
      }}"""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    written = price_as_written(loaded)
    for lives, spells in (
        (Lives(loaded.program.ample_lifetimes), [(1, 3)]),
        (Lives(loaded.program.lifetimes, is_least=True), []),
    ):
        items = list(written.priced.node_items.while_living(lives))
        note, normed = "as a loop is handed it, for other products", 131072 // 16 * 2048 * 2
        mine = [(number, item) for number, item in items if item.note == note]
        assert [(item.begin, item.end) for _, item in mine] == spells
        assert all(
            int(item.bytes[written.choice[number]]) == pytest.approx(normed, rel=0.1) for number, item in mine
        )
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), written.plan()).passed


def test_loops_that_read_the_same_are_handed_it_once() -> None:
    """Three gradients of weights that read one activation: the last two run behind all else, with one copy of it, not two (of six layers
    of three such products each 3.15 GB, of 4.2 with a copy for each loop; libtpu 0.0.52 for v6e 4x4)."""
    x, w = "tensor<131072x2048xbf16>", "tensor<2048x2048xbf16>"
    rows, whole, part = f"[{ALL}, {{}}]", "[{}, {}]", f"[{ALL}, {{}}]"
    given = [f"%x: {x} {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}}"]
    given += [f"%w{n}: {w} {{sdy.sharding = #sdy.sharding<@mesh, {whole}>}}" for n in range(3)]
    body = [f"%h = stablehlo.tanh %x : {x}"]
    for n in range(3):
        body += [
            f"%p{n} = stablehlo.dot_general %h, %w{n}, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}",
            f"%d{n} = stablehlo.sine %p{n} : {x}",
            f"%g{n} = stablehlo.dot_general %h, %d{n}, contracting_dims = [0] x [0] : ({x}, {x}) -> {w}",
            f"%c{n} = sdy.sharding_constraint %g{n} <@mesh, {part}> : {w}",
        ]
    results, lines = ", ".join([w] * 3), "\n        ".join(body)
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main({", ".join(given)}) -> ({results}) {{
        {lines}
        return %c0, %c1, %c2 : {results}
      }}"""
    request = pipeline.Request(hardware="tpu-v6e", topology=(4, 4), memory_bytes=None)
    written = price_as_written(pipeline.load_module(text.encode(), request))
    items = [
        item for item in written.priced.peak(written.choice).held if "worked out for a loop" in item.note
    ]
    assert {item.bytes for item in items} == {131072 * 2048 * 2 // 16 * 106 // 100}
    assert len(items) == 1
