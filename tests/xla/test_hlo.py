"""Reading HLO text: instructions, types, groups in every notation, collectives with their trip counts."""

import pytest

from autoshard.mlir.repeats import DEFAULT_TRIP_COUNT
from autoshard.xla import collectives_of
from autoshard.xla.collectives import collectives_in
from autoshard.xla.flops import matrix_flops
from autoshard.xla.groups import replica_groups
from autoshard.xla.hlo import bytes_of, parse_hlo

HEADER = "HloModule m, is_scheduled=true, num_partitions=16\n"


def module(*computations: str) -> str:
    return HEADER + "\n".join(computations)


def test_counts() -> None:
    """Plain, asynchronous, tuple-shaped and named like an operand."""
    text = module("""ENTRY %main (a: f32[8]) -> f32[8,4] {
      %all-reduce.1 = f32[8,4]{1,0} all-reduce(%dot.3), channel_id=1, replica_groups=[1,8]<=[8]
      %all-reduce = (f32[8]{0}, f32[64,8]{1,0}) all-reduce(%a, %b), channel_id=2
      %ag = (f32[1,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%all-reduce.1), dimensions={0}
      %agd = f32[8,4]{1,0} all-gather-done(%ag)
      ROOT %add = f32[8,4]{1,0} add(%all-reduce.1, %agd)
      %a2a = f32[8,4]{1,0:T(8,128)} ragged-all-to-all(%x), replica_groups={{0,1}}
    }""")
    assert collectives_of(text) == {"all-gather": 1, "all-reduce": 2, "ragged-all-to-all": 1}


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("bf16[256,197]{1,0:T(8,128)(2,1)S(1)}", 2 * 256 * 197),
        ("pred[]", 1),
        ("s4[3]{0}", 2),  # packed, the last byte half full
        ("f8e4m3fn[16]{0}", 16),
        ("f4e2m1fn[16]{0}", 8),
        ("c64[4]", 32),
        ("f32[<=8,2]", 64),
        ("(f32[8]{0}, /*index=1*/(u32[2], token[]))", 40),
    ],
)
def test_bytes_of_types(type_: str, expected: int) -> None:
    """Layouts, tiles, memory spaces, packed elements, bounds of dynamic sizes and nested tuples."""
    assert bytes_of(type_) == expected


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("replica_groups={{0,2},{1,3}}, use_global_device_ids=true", ((0, 2), (1, 3))),
        ("replica_groups={}", ((0, 1, 2, 3),)),
        ("channel_id=1", ((0, 1, 2, 3),)),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([4]<=[2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=2], device_ids=([2,2]T(1,0)) {'c'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", ((3, 2), (1, 0))),
    ],
)
def test_groups(attributes: str, expected: tuple[tuple[int, ...], ...]) -> None:
    """Lists, iota, and meshes with axes, parts of axes and another order of devices."""
    assert replica_groups(attributes, 4) == expected


LOOP = """%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(2)
  %next = s32[] add(%i, %one)
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %sum = f32[8]{0} all-reduce(%x), replica_groups=[1,16]<=[16], to_apply=%add
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %sum)
}
%condition (p.1: (s32[], f32[8])) -> pred[] {
  %p.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %last = s32[] constant(11)
  ROOT %less = pred[] compare(%i.1, %last), direction=LT
}
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %ab = f32[] add(%a, %b)
}"""


def entry(loop_attributes: str, first: str = "constant(1)") -> str:
    return f"""ENTRY %main (arg: f32[8], n: s32[]) -> f32[8] {{
  %arg = f32[8]{{0}} parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] {first}
  %init = (s32[], f32[8]{{0}}) tuple(%zero, %arg)
  %loop = (s32[], f32[8]{{0}}) while(%init), condition=%condition, body=%body{loop_attributes}
  ROOT %out = f32[8]{{0}} get-tuple-element(%loop), index=1
}}"""


def test_counter_of_a_loop() -> None:
    """1, 3, 5, 7, 9 are less than 11; what XLA noted goes before what the counter shows."""
    (found,) = collectives_in(parse_hlo(module(LOOP, entry("")))).collectives
    assert (found.times, found.operand_bytes, found.total_bytes) == (5, 32, 160)
    noted = ', backend_config={"known_trip_count":{"n":"7"}}'
    assert collectives_in(parse_hlo(module(LOOP, entry(noted)))).trips == {"loop": 7}


def test_what_a_condition_asks_of_other_devices() -> None:
    """Once a trip, as the loop ends where all devices say so."""
    asked = """%all = s32[] all-reduce(%i.1), replica_groups=[1,16]<=[16], to_apply=%add
  ROOT %less = pred[] compare(%all, %last), direction=LT"""
    loop = LOOP.replace("ROOT %less = pred[] compare(%i.1, %last), direction=LT", asked)
    noted = ', backend_config={"known_trip_count":{"n":"7"}}'
    found = collectives_in(parse_hlo(module(loop, entry(noted)))).collectives
    assert sorted((one.operand_bytes, one.times) for one in found) == [(4, 7), (32, 7)]


def test_loop_without_a_trip_count() -> None:
    """It is taken for what a plan takes it for, and named."""
    walked = collectives_in(parse_hlo(module(LOOP.replace("direction=LT", "direction=NE"), entry(""))))
    assert walked.unknown_loops == ("loop",)
    assert walked.collectives[0].times == walked.trips["loop"] == DEFAULT_TRIP_COUNT


def test_start_of_an_asynchronous_gather() -> None:
    """Its type holds the operand, the result and what it keeps; the pair is one collective."""
    (found,) = collectives_in(
        parse_hlo(
            module("""ENTRY %main (p: f32[4]) -> f32[16] {
  %p = f32[4]{0} parameter(0)
  %s = (f32[4]{0}, f32[16]{0}, u32[], u32[]) all-gather-start(%p), replica_groups=[4,4]<=[16], dimensions={0}
  ROOT %d = f32[16]{0} all-gather-done(%s)
}""")
        )
    ).collectives
    assert (found.kind, found.operand_bytes, found.result_bytes) == ("all-gather", 16, 64)
    assert found.is_asynchronous
    assert (found.group_size, found.groups) == (4, 4)


def piece(name: str, target: str) -> str:
    config = 'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}'
    return f"""%{name} (q: f32[4]) -> f32[16] {{
  %q.{name} = f32[4]{{0}} parameter(0)
  %g.{name} = f32[16]{{0}} all-gather(%q.{name}), replica_groups=[4,4]<=[16], dimensions={{0}}, {config}
  ROOT %c.{name} = f32[16]{{0}} custom-call(%g.{name}), custom_call_target="{target}"
}}"""


def test_gather_in_pieces() -> None:
    """TPUs run one gather in pieces within several fusions; the piece that starts it is the collective."""
    text = module(
        piece("first", "AsyncCollectiveStart"),
        piece("second", "Wait"),
        """ENTRY %main (p: f32[4]) -> f32[16] {
  %p = f32[4]{0} parameter(0)
  %f1 = f32[16]{0} fusion(%p), kind=kCustom, calls=%first, metadata={op_name="jit(f)/dot"}
  ROOT %f2 = f32[16]{0} fusion(%p), kind=kCustom, calls=%second
}""",
    )
    (found,) = collectives_in(parse_hlo(text)).collectives
    assert (found.name, found.priced_as, found.where) == ("g.first", "f1", ("jit(f)/dot",))
    assert found.is_asynchronous


def test_combined_all_reduce() -> None:
    """Several buffers in one: its bytes are those of all, each for the op that makes it."""
    (found,) = collectives_in(
        parse_hlo(
            module("""ENTRY %main (p: f32[4], q: bf16[6]) -> (f32[4], bf16[6]) {
  %p = f32[4]{0} add(%x, %y), metadata={op_name="one"}
  %q = bf16[6]{0} add(%x, %y), metadata={op_name="two" source_line=3}
  ROOT %r = (f32[4]{0}, bf16[6]{0}) all-reduce(%p, %q), replica_groups={}, to_apply=%add, metadata={op_name="one"}
}""")
        )
    ).collectives
    assert (found.buffers, found.where, found.group_size) == ((16, 12), ("one", "two"), 16)


def test_permute() -> None:
    """A permute has pairs; each device sends to one other."""
    (found,) = collectives_in(
        parse_hlo(
            module("""ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %c = f32[4]{0} collective-permute(%p), source_target_pairs={{0,1},{1,2},{2,3}}
}""")
        )
    ).collectives
    assert (found.group_size, found.groups, found.group) == (2, 3, (0, 1, 2))


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (  # a product as TPUs write it
            "f32[8,16]{1,0} convolution(%l, %r), dim_labels=bf_io->bf",
            2 * 8 * 16 * 4,
        ),
        ("f32[8,16]{1,0} dot(%l, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 8 * 16 * 4),
    ],
)
def test_flops_of_products(instruction: str, expected: int) -> None:
    """2 m n k."""
    text = module(f"""ENTRY %main (l: f32[8,4], r: f32[4,16]) -> f32[8,16] {{
  %l = f32[8,4]{{1,0}} parameter(0)
  %r = f32[4,16]{{1,0}} parameter(1)
  ROOT %c = {instruction}
}}""")
    assert matrix_flops(parse_hlo(text)) == expected


def test_flops_of_a_padded_convolution() -> None:
    """Of a window of 3 over 4 padded elements, 10 of the 12 positions are inside; padding costs nothing."""
    text = module("""ENTRY %main (l: f32[2,4,5], r: f32[3,5,7]) -> f32[2,4,7] {
  %l = f32[2,4,5]{2,1,0} parameter(0)
  %r = f32[3,5,7]{2,1,0} parameter(1)
  ROOT %c = f32[2,4,7]{2,1,0} convolution(%l, %r), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
}""")
    assert matrix_flops(parse_hlo(text)) == 2 * 10 * 2 * 5 * 7


def test_buffers_laid_end_to_end() -> None:
    """XLA:GPU sums small buffers as one: each is named by what made it, behind views. The program's own concatenation stays whole."""
    text = module(
        """%laid (a: f32[8], b: f32[4]) -> f32[12] {
      %a = f32[8]{0} parameter(0)
      %b = f32[4]{0} parameter(1)
      ROOT %all = f32[12]{0} concatenate(%a, %b), dimensions={0}
    }""",
        """ENTRY %main (x: f32[8], y: f32[2,2]) -> f32[12] {
      %x = f32[8]{0} parameter(0), metadata={op_name="first"}
      %y = f32[2,2]{1,0} parameter(1), metadata={op_name="second"}
      %view = f32[4]{0} bitcast(%y), metadata={scheduling_name="view"}
      %wrapped = f32[12]{0} fusion(%x, %view), kind=kLoop, calls=%laid, metadata={scheduling_name="wrapped"}
      %own = f32[12]{0} fusion(%x, %view), kind=kLoop, calls=%laid, metadata={op_name="stablehlo.concatenate"}
      %sum = f32[12]{0} all-reduce(%wrapped), replica_groups={{0,1}}
      ROOT %whole = f32[12]{0} all-reduce(%own), replica_groups={{0,1}}
    }""",
    )
    laid, own = collectives_in(parse_hlo(text)).collectives
    assert (laid.buffers, laid.where) == ((32, 16), ("first", "second"))
    assert (own.buffers, own.where) == ((48,), ("stablehlo.concatenate",))


def test_flops_of_a_convolution_over_all_rows_and_with_a_spread_operand() -> None:
    """Windows as large as XLA:TPU writes gradients with are counted without looking at each position, of a spread operand its elements."""
    rows = 200_000
    text = module(f"""ENTRY %main (l: f32[1,{rows},1], r: f32[{rows},1,1]) -> f32[1,{2 * rows - 1},1] {{
  %l = f32[1,{rows},1]{{2,1,0}} parameter(0)
  %r = f32[{rows},1,1]{{2,1,0}} parameter(1)
  ROOT %c = f32[1,{2 * rows - 1},1]{{2,1,0}} convolution(%l, %r), window={{size={rows} pad={rows - 1}_{rows - 1}}}, dim_labels=b0f_0io->b0f
}}""")
    assert matrix_flops(parse_hlo(text)) == 2 * rows**2
    spread = module("""ENTRY %main (l: f32[1,4,1], r: f32[3,1,1]) -> f32[1,7,1] {
  %l = f32[1,4,1]{2,1,0} parameter(0)
  %r = f32[3,1,1]{2,1,0} parameter(1)
  ROOT %c = f32[1,7,1]{2,1,0} convolution(%l, %r), window={size=3 pad=1_1 lhs_dilate=2}, dim_labels=b0f_0io->b0f
}""")
    assert matrix_flops(parse_hlo(spread)) == 2 * 10
