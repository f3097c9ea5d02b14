"""States of loops that hash counters into random numbers, all made before the first of them runs."""

from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import counted_loop, listed, main_of
from tests.program.modules import program_of

T, S = "tensor<64x128xui32>", "tensor<64x256xui32>"


def hashed(name: str, key: str, type_: str = T, start: str = "") -> str:
    """Three trips over two words of state; what they are hashed into is `%name`."""
    count = start or f"stablehlo.iota dim = 0 : {type_}"
    words = [("%x", f"%h{name}", type_), ("%y", f"%l{name}", type_)]
    mixed = f"%s = stablehlo.add %x, %y : {type_}\n%t = stablehlo.xor %s, %y : {type_}"
    return f"""
  %c{name} = {count}
  %k{name} = stablehlo.broadcast_in_dim {key}, dims = [] : (tensor<ui32>) -> {type_}
  %h{name} = stablehlo.add %c{name}, %k{name} : {type_}
  %l{name} = stablehlo.xor %c{name}, %k{name} : {type_}
  {counted_loop(3, words, mixed, ["%s", "%t"], f"w{name}", f"i{name}")}
  %{name} = stablehlo.xor %w{name}#1, %w{name}#2 : {type_}"""


def states(program: Program) -> list[tuple[int, int]]:
    """Life of each word of each loop's state, in program order."""
    flows = [flow for flow in program.listing.data_flows if flow.kind == "while"]
    words = [
        flow.target for flow in flows if (type_ := program.listing.values[flow.target].type) and type_.rank
    ]
    return [(program.lifetimes[word].begin, program.lifetimes[word].end) for word in words]


def program(*loops: str, returned: str) -> Program:
    types = ", ".join(S if name == "b" else T for name in returned)
    names = ", ".join(f"%{name}" for name in returned)
    body = "".join(loops) + f"\n  return {names} : {types}"
    return program_of(main_of(body, f"%k: tensor<ui32>, %q: tensor<ui32>, %m: {T}", types))


def test_states_of_one_shape_begin_together_and_keep_one_word_once_the_first_loop_has_run() -> None:
    (a, a_low), (b, b_low) = (
        states(program(hashed("a", "%k"), hashed("c", "%q"), returned="ac"))[i : i + 2] for i in (0, 2)
    )
    assert a[0] == a_low[0] == b[0] == b_low[0]
    assert b_low[1] == a_low[1] < b[1]


def test_states_of_another_shape_or_of_stored_values_begin_with_their_own_loops() -> None:
    other = states(program(hashed("a", "%k"), hashed("b", "%q", S), returned="ab"))
    assert other[0][0] < other[2][0]
    stored = states(
        program(hashed("a", "%k"), hashed("c", "%q", start=f"stablehlo.not %m : {T}"), returned="ac")
    )
    assert stored[0][0] < stored[2][0]


def test_a_trip_stores_nothing_but_the_state() -> None:
    found = program(hashed("a", "%k"), returned="a")
    loop = next(flow for flow in found.listing.data_flows if flow.kind == "while")
    made = {v for op in found.listing.ops[loop.begin : loop.end] for v in op.results if v in found.lifetimes}
    assert made
    assert not any(
        found.lifetimes[v].is_own_buffer
        for v in made
        if (t := found.listing.values[v].type) is not None and t.rank
    )


def test_a_long_chain_is_walked_once() -> None:
    """Sixty values of which each is the last one and itself: paths double at each."""
    chain = "".join(f"%d{n + 1} = stablehlo.add %d{n}, %d{n} : {T}\n" for n in range(60))
    start = f"stablehlo.iota dim = 0 : {T}"
    body = (
        f"%d0 = {start}\n{chain}{hashed('a', '%key', start=f'stablehlo.negate %d60 : {T}')}\nreturn %a : {T}"
    )
    assert len(states(program_of(main_of(body, "%key: tensor<ui32>", T)))) == 2


def test_only_xla_for_tpus_makes_them_together() -> None:
    """What else runs the program begins each loop's state where the loop is."""
    body = f"{hashed('a', '%key')}\n{hashed('b', '%key')}\n%r = stablehlo.xor %a, %b : {T}\nreturn %r : {T}"
    listing = listed(main_of(body, "%key: tensor<ui32>", T))
    tpu, other = (
        states(build_program(listing, compiler=Compiler(is_xla_tpu=is_tpu))) for is_tpu in (True, False)
    )
    assert tpu[0][0] == tpu[2][0]
    assert other[0][0] < other[2][0]
