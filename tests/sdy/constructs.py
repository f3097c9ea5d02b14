"""A module for every construct of the sdy dialect, and what its output has to say: the rows of docs/sdy.md.

A place is `arg0`, `result1`, `tanh` (the first result of stablehlo.tanh, as made or as brought to for all its readers), `sort#1` (the
second result), `>tanh` (what tanh reads, or what that was before it was changed for tanh) and `>tanh#1` (its second operand).
"""

from dataclasses import dataclass, field

T = "tensor<8x16xf32>"
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
ROWS, COLUMNS, WHOLE = '@mesh, [{"x"}, {}]', '@mesh, [{}, {"y"}]', "@mesh, [{}, {}]"
PARTIAL = '@mesh, [{}, {}], unreduced={"x"}'
SQUARE = "tensor<8x8xf32>"


@dataclass(frozen=True, slots=True)
class Construct:
    text: str
    wanted: dict[str, str] = field(default_factory=dict[str, str])  # a demand by place
    forms: tuple[str, ...] = ("shardy", "xla", "shardy-collectives")
    kept: tuple[str, ...] = ()  # text that every form has to show
    equal: tuple[str, ...] = ()  # places with one sharding
    compared_on: int = (
        1  # devices on which the input gives the numbers to compare with; 0: a CPU cannot run it
    )


def on(sharding: str) -> str:
    return f" {{sdy.sharding = #sdy.sharding<{sharding}>}}" if sharding else ""


def per_value(*shardings: str) -> str:
    each = ", ".join(f"<{sharding}>" for sharding in shardings)
    return f"{{sdy.sharding = #sdy.sharding_per_value<[{each}]>}}"


def main(body: str, a: str = "", b: str = "", *, result: str = "", type_: str = T, mesh: str = MESH) -> str:
    """A function of %a and %b that returns %r, all of them of one type."""
    return (
        f"{mesh}func.func @main(%a: {type_}{on(a)}, %b: {type_}{on(b)}) -> ({type_}{on(result)}) {{\n"
        f"{body}\nreturn %r : {type_}\n}}\n"
    )


def unary(sharding: str) -> str:
    return f"%0 = stablehlo.tanh %a {per_value(sharding)} : {T}\n%r = stablehlo.add %0, %b : {T}"


def collective(op: str, before: str, after: str) -> Construct:
    """`op` between an argument, or a value, and a reader."""
    text = f"%0 = sdy.{op} %a out_sharding=<@mesh, {after}> : {T}\n%r = stablehlo.tanh %0 : {T}"
    return Construct(main(text, f"@mesh, {before}"), {"arg0": f"@mesh, {before}", ">tanh": f"@mesh, {after}"})


DOT = f"stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {{}} : ({SQUARE}, {SQUARE}) -> {SQUARE}"


def product(after: str, op: str = "", made: str = "@mesh, [{}, {}]") -> str:
    dot = DOT.replace("{}", per_value(made), 1) if made else DOT.replace(" {} ", " ", 1)
    return main(f"%0 = {dot}\n{op}", '@mesh, [{}, {"x"}]', ROWS, result=after, type_=SQUARE)


def loop(carried: str, edge: str = "") -> str:
    return f"""%c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %w:2 = stablehlo.while(%i = %c, %v = %a) : tensor<i32>, {T} {carried}
    cond {{ %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1> }}
    do {{ %o = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %o : tensor<i32>
      %z = stablehlo.sine %v : {T}
      stablehlo.return %j, %z : tensor<i32>, {T} }}
    {edge or f"%r = stablehlo.tanh %w#1 : {T}"}"""


def branches(op: str, carried: str) -> str:
    kind, predicate = ("i32", "0") if op == "case" else ("i1", "true")
    return f"""%p = stablehlo.constant dense<{predicate}> : tensor<{kind}>
    %0 = "stablehlo.{op}"(%p) ({{ stablehlo.return %a : {T} }}, {{
      %1 = stablehlo.sine %b : {T}
      stablehlo.return %1 : {T} }}) {carried} : (tensor<{kind}>) -> {T}
    %r = stablehlo.tanh %0 : {T}"""


def named(inner: str = "") -> str:
    return (
        f'%0 = sdy.named_computation<"layer">(%a) in_shardings=[<{ROWS}>] out_shardings=[<{COLUMNS}>] (%v: {T}) {{\n'
        f"%1 = stablehlo.sine %v : {T}\n{inner}sdy.return %1 : {T}\n}} : ({T}) -> {T}\n%r = stablehlo.tanh %0 : {T}"
    )


def manual() -> str:
    return (
        '%0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {?}]>] out_shardings=[<@mesh, [{?}, {"x", ?}]>] manual_axes={"x"} '
        "(%v: tensor<4x16xf32>) {\n%1 = stablehlo.sine %v : tensor<4x16xf32>\n"
        "%2 = stablehlo.reshape %1 : (tensor<4x16xf32>) -> tensor<8x8xf32>\n"
        f"sdy.return %2 : tensor<8x8xf32>\n}} : ({T}) -> {T}\n%r = stablehlo.tanh %0 : {T}"
    )


def group(value: str, number: int) -> str:
    return f"sdy.sharding_group {value} group_id={number} : {T}\n"


SORT = f"""%0:2 = "stablehlo.sort"(%a, %b) ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>, %s: tensor<f32>, %t: tensor<f32>):
  %u = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %u : tensor<i1> }}) {{dimension = 0 : i64, SHARDING}} : ({T}, {T}) -> ({T}, {T})
%r = stablehlo.add %0#0, %0#1 : {T}""".replace(
    "SHARDING", per_value('@mesh, [{}, {"x"}]', '@mesh, [{}, {"y", ?}]').strip("{}")
)
CALL = (
    main(f"%0 = call @f(%a) : ({T}) -> {T}\n%r = stablehlo.tanh %0 : {T}")
    + f"func.func private @f(%a: {T}{on(COLUMNS)}) -> ({T}{on(ROWS)}) {{\n%0 = stablehlo.sine %a : {T}\nreturn %0 : {T}\n}}\n"
)
RULE = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}"
CUSTOM = f"%r = stablehlo.custom_call @mine(%a) {{sdy.sharding_rule = {RULE}, custom>}} : ({T}) -> {T}"
REVERSED = 'sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>\n'
TWICE = MESH + 'sdy.mesh @same = <["x"=2, "y"=4]>\n'
BACK = MESH + 'sdy.mesh @back = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>\n'
FLAT = MESH + 'sdy.mesh @flat = <["z"=8]>\n'
ONE = MESH + "sdy.mesh @one = <[], device_ids=[3]>\n"
EMPTY = MESH + "sdy.mesh @empty_mesh = <[]>\n"
ORIGINS = (
    f'%0 = stablehlo.tanh %a {{sdy.propagation_edges = #sdy.propagation_edges<[{{step-0 = [{{"x" = operand-0 -> [result-0]}}]}}]>, '
    f'sdy.sharding_origins = [{{x = "self"}}], {per_value(ROWS).strip("{}")}}} : {T}\n%r = stablehlo.sine %0 : {T}'
)
SLICED = (
    f"%0 = stablehlo.slice %a [0:7, 0:16] {per_value(ROWS)} : ({T}) -> tensor<7x16xf32>\n"
    f"%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
    f"%r = stablehlo.pad %0, %c, low = [0, 0], high = [1, 0], interior = [0, 0] : (tensor<7x16xf32>, tensor<f32>) -> {T}"
)

CONSTRUCTS = {
    # dimensions, axes, priorities
    "closed": Construct(
        main(unary('@mesh, [{"y"}, {"x"}]'), '@mesh, [{}, {"y"}]', '@mesh, [{"x"}, {}]', result='@mesh, [{"y"}, {}]'),
        {"arg0": COLUMNS, "arg1": ROWS, "result0": '@mesh, [{"y"}, {}]', "tanh": '@mesh, [{"y"}, {"x"}]'},
    ),
    "open": Construct(
        main(unary('@mesh, [{"y", ?}, {?}]'), '@mesh, [{"x", ?}, {?}]', '@mesh, [{?}, {"y", ?}]', result='@mesh, [{?}, {"x", ?}]'),
        {"arg0": '@mesh, [{"x", ?}, {?}]', "arg1": '@mesh, [{?}, {"y", ?}]', "result0": '@mesh, [{?}, {"x", ?}]',
         "tanh": '@mesh, [{"y", ?}, {?}]'},
    ),
    "axis order": Construct(
        main(unary('@mesh, [{"y", "x"}, {}]'), '@mesh, [{"x", "y"}, {}]'),
        {"arg0": '@mesh, [{"x", "y"}, {}]', "tanh": '@mesh, [{"y", "x"}, {}]'},
    ),
    "priorities": Construct(
        main(unary('@mesh, [{"y", ?}p1, {"x"}]'), '@mesh, [{"x", ?}, {"y"}p2]'),
        {"arg0": '@mesh, [{"x", ?}, {"y"}]', "tanh": '@mesh, [{"y", ?}, {"x"}]'},
    ),
    "replicated": Construct(
        main(unary('@mesh, [{?}, {?}], replicated={"y"}'), '@mesh, [{?}, {?}], replicated={"x"}', '@mesh, [{"x"}, {"y"}]'),
        {"arg0": '@mesh, [{?}, {?}], replicated={"x"}', "tanh": '@mesh, [{?}, {?}], replicated={"y"}', "arg1": '@mesh, [{"x"}, {"y"}]'},
    ),
    "unreduced": Construct(
        product(PARTIAL, f"%r = stablehlo.negate %0 : {SQUARE}", made=PARTIAL),
        {"dot_general": PARTIAL, "result0": PARTIAL},
        ("shardy", "shardy-collectives"),
    ),
    "sub-axes": Construct(
        main(unary('@mesh, [{"y":(1)2}, {"y":(2)2, ?}]'), '@mesh, [{"y":(2)2}, {}]'),
        {"arg0": '@mesh, [{"y":(2)2}, {}]', "tanh": '@mesh, [{"y":(1)2}, {"y":(2)2, ?}]'},
    ),
    "size-1 axes": Construct(
        main(unary('@mesh, [{"o"}, {"x"}]'), '@mesh, [{"x", "o"}, {}]', mesh='sdy.mesh @mesh = <["o"=1, "x"=8]>\n'),
        {"arg0": '@mesh, [{"x", "o"}, {}]', "tanh": '@mesh, [{"o"}, {"x"}]'},
    ),
    "uneven": Construct(main(SLICED), {"slice": ROWS}),
    "several results": Construct(main(SORT), {"sort": '@mesh, [{}, {"x"}]', "sort#1": '@mesh, [{}, {"y", ?}]'}),
    # meshes
    "device_ids": Construct(
        main(unary(ROWS), COLUMNS, mesh=REVERSED), {"arg0": COLUMNS, "tanh": ROWS}, kept=("device_ids=[7, 6, 5, 4, 3, 2, 1, 0]",)
    ),
    "inlined mesh": Construct(
        main(unary('mesh<["x"=2, "y"=4]>, [{"x"}, {}]'), 'mesh<["x"=2, "y"=4]>, [{}, {"y"}]', mesh=""),
        {"arg0": 'mesh<["x"=2, "y"=4]>, [{}, {"y"}]', "tanh": 'mesh<["x"=2, "y"=4]>, [{"x"}, {}]'},
    ),
    "empty mesh": Construct(
        main(unary("@empty_mesh, [{}, {}]"), "@empty_mesh, [{}, {?}]", '@mesh, [{"x"}, {"y"}]', mesh=EMPTY),
        {"arg0": "@empty_mesh, [{}, {?}]", "tanh": "@empty_mesh, [{}, {}]", "arg1": '@mesh, [{"x"}, {"y"}]'},
    ),
    "two symbols": Construct(
        main(unary('@same, [{"x"}, {}]'), COLUMNS, mesh=TWICE), {"arg0": COLUMNS, "tanh": ROWS}
    ),
    "another order of devices": Construct(
        main(unary('@back, [{"x"}, {}]'), COLUMNS, ROWS, mesh=BACK),
        {"arg0": COLUMNS, "tanh": '@back, [{"x"}, {}]'},
    ),
    "other axes": Construct(main(unary('@flat, [{"z"}, {}]'), COLUMNS, ROWS, mesh=FLAT), {"arg0": COLUMNS, "tanh": '@flat, [{"z"}, {}]'}),
    "one device": Construct(main(unary("@one, []"), COLUMNS, ROWS, mesh=ONE), {"arg0": COLUMNS, "arg1": ROWS, "tanh": "@one, []"}),
    # ops that say a demand
    "sharding_constraint": Construct(
        main(
            f'%0 = sdy.sharding_constraint %a <@mesh, [{{"y", ?}}, {{}}]> : {T}\n%1 = stablehlo.tanh %0 : {T}\n'
            f'%2 = stablehlo.sine %a : {T}\n%r = stablehlo.add %1, %2 : {T}',
            COLUMNS,
        ),
        {"arg0": COLUMNS, ">tanh": '@mesh, [{"y", ?}, {}]'},
    ),
    "constraint without readers": Construct(
        main(f"%0 = stablehlo.tanh %a : {T}\n%1 = sdy.sharding_constraint %0 <{ROWS}> : {T}\n%r = stablehlo.add %0, %b : {T}"),
        {"tanh": ROWS},
        ("shardy", "xla"),
    ),
    "reshard": Construct(
        main(f"%0 = sdy.reshard %a <{COLUMNS}> : {T}\n%r = stablehlo.tanh %0 : {T}", ROWS), {"arg0": ROWS, ">tanh": COLUMNS}
    ),
    "sharding_group": Construct(
        main(
            f"%0 = stablehlo.tanh %a : {T}\n%1 = stablehlo.sine %b : {T}\n"
            f"{group('%a', 3)}{group('%0', 3)}{group('%0', 9)}{group('%1', 9)}%r = stablehlo.add %0, %1 : {T}",
            ROWS,
        ),
        {"tanh": ROWS, "sine": ROWS},
        equal=("arg0", "tanh", "sine"),
    ),
    "propagation_barrier": Construct(
        main(
            f"%0 = stablehlo.sine %a : {T}\n%1 = sdy.propagation_barrier %0 allowed_direction=NONE {per_value(COLUMNS)} : {T}\n"
            f"%r = stablehlo.tanh %1 : {T}",
            ROWS,
        ),
        {"arg0": ROWS, ">tanh": COLUMNS},
    ),
    "named_computation": Construct(main(named()), {">sine": ROWS, ">tanh": COLUMNS}),
    "manual_computation": Construct(
        main(manual()), {">sdy.manual_computation": '@mesh, [{"x"}, {?}]', "sdy.manual_computation": '@mesh, [{?}, {"x", ?}]'},
        kept=('manual_axes={"x"}',), compared_on=8,
    ),
    "func.call": Construct(CALL, {">sine": COLUMNS, ">tanh": ROWS}),
    # collectives
    "all_gather": collective('all_gather [{"y"}, {}]', '[{"x", "y"}, {}]', '[{"x"}, {}]'),
    "all_slice": collective('all_slice [{"y"}, {}]', '[{"x"}, {}]', '[{"x", "y"}, {}]'),
    "all_to_all": collective('all_to_all [{"x"}: 0->1]', '[{"x"}, {}]', '[{}, {"x"}]'),
    "collective_permute": collective("collective_permute", '[{"x"}, {"y":(1)2}]', '[{"y":(1)2}, {"x"}]'),
    "all_reduce": Construct(
        product("", f'%1 = sdy.all_reduce {{"x"}} %0 out_sharding=<{WHOLE}> : {SQUARE}\n%r = stablehlo.tanh %1 : {SQUARE}'),
        {">tanh": WHOLE},
    ),
    "reduce_scatter": Construct(
        product("", f'%1 = sdy.reduce_scatter [{{"x"}}, {{}}] %0 out_sharding=<{ROWS}> : {SQUARE}\n%r = stablehlo.tanh %1 : {SQUARE}'),
        {">tanh": ROWS},
    ),
    "replicated_to_unreduced": Construct(
        main(f'%r = sdy.replicated_to_unreduced {{"x"}} %a out_sharding=<{PARTIAL}> : {T}', WHOLE, result=PARTIAL),
        {"arg0": WHOLE, "result0": PARTIAL},
        ("shardy", "shardy-collectives"),
    ),
    "sharded_to_unreduced": Construct(
        main(f'%r = sdy.sharded_to_unreduced [{{"x"}}, {{}}] %a out_sharding=<{PARTIAL}> : {T}', ROWS, result=PARTIAL),
        {"arg0": ROWS, "result0": PARTIAL},
        ("shardy", "shardy-collectives"),
    ),
    # ops that values flow through
    "while": Construct(main(loop(f"attributes {per_value('@mesh, []', COLUMNS)}"), ROWS), {"arg0": ROWS, "while#1": COLUMNS}),
    "case": Construct(main(branches("case", per_value(COLUMNS)), ROWS), {"arg0": ROWS, "case": COLUMNS}),
    "if": Construct(main(branches("if", per_value(COLUMNS)), ROWS), {"arg0": ROWS, "if": COLUMNS}),
    "optimization_barrier": Construct(
        main(f"%0 = stablehlo.optimization_barrier {per_value(COLUMNS)} %a : {T}\n%r = stablehlo.tanh %0 : {T}", ROWS),
        {"arg0": ROWS, "optimization_barrier": COLUMNS},
    ),
    "data_flow_edge": Construct(
        main(loop("", f"%0 = sdy.data_flow_edge %w#1 sharding=<{COLUMNS}> : {T}\n%r = stablehlo.tanh %0 : {T}"), ROWS),
        {"arg0": ROWS, "while#1": COLUMNS},
    ),
    "func_data_flow_edge": Construct(
        main(f"%0 = sdy.func_data_flow_edge %a : {T}\n%r = stablehlo.tanh %0 : {T}", ROWS), {"arg0": ROWS}
    ),
    # the rest
    "constant": Construct(
        main(f"%0 = sdy.constant {per_value(ROWS)} dense<1.0> : {T}\n%r = stablehlo.add %0, %a : {T}", COLUMNS),
        {"arg0": COLUMNS, ">add": ROWS},
    ),
    "custom rule": Construct(
        main(CUSTOM, ROWS, result=ROWS), {"arg0": ROWS, "custom_call": ROWS},
        kept=(f"sdy.sharding_rule = {RULE}, custom>",), compared_on=0,
    ),
    "rule": Construct(
        main(CUSTOM.replace(", custom>", ">"), ROWS, result=ROWS), {"arg0": ROWS, "custom_call": ROWS},
        kept=(f"sdy.sharding_rule = {RULE}>",), compared_on=0,
    ),
    "debugging": Construct(main(ORIGINS), {"tanh": ROWS}),
}  # fmt: skip
