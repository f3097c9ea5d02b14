"""How long values wait between what makes them and what reads them last."""

from autoshard.program import Pace
from tests.mlir.modules import main_of
from tests.program.modules import program_of

SQUARE = "tensor<8x8xf32>"
PRODUCT = "contracting_dims = [1] x [0]"


def test_what_makes_and_what_reads_it_takes_its_own_time() -> None:
    """Of four products in a row, 10, 20, 30 and 40 ns, what waits is what runs between."""
    chain = "\n".join(
        f"%{i + 1} = stablehlo.dot_general %{i or 't'}, %t, {PRODUCT} : ({SQUARE}, {SQUARE}) -> {SQUARE}"
        for i in range(4)
    )
    body = f"{chain}\n return %4 : {SQUARE}"
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    pace = Pace(program, [10.0, 20.0, 30.0, 40.0])
    times = [kernel.time for kernel in program.kernels]
    assert [pace.waiting_ns(times[0], time + 1) for time in times] == [0.0, 0.0, 20.0, 50.0]
    assert pace.waiting_ns(times[0], times[0]) == 0.0


def test_trips_of_a_loop_are_apart() -> None:
    """A value made in one trip and read in it waits for that trip alone, one read after the loop for all of them."""
    product = f"stablehlo.dot_general %x, %x, {PRODUCT} : ({SQUARE}, {SQUARE}) -> {SQUARE}"
    body = f"""
      %one = stablehlo.constant dense<1> : tensor<i32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %most = stablehlo.constant dense<5> : tensor<i32>
      %end:2 = stablehlo.while(%i = %zero, %v = %t) : tensor<i32>, {SQUARE}
      cond {{
        %c = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %j = stablehlo.add %i, %one : tensor<i32>
        %a = {product.replace("%x", "%v")}
        %b = {product.replace("%x", "%a")}
        %d = {product.replace("%x", "%b")}
        stablehlo.return %j, %d : tensor<i32>, {SQUARE}
      }}
      return %end#1 : {SQUARE}"""
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    pace = Pace(program, [10.0 if kernel.shape.is_matmul else 0.0 for kernel in program.kernels])
    first, _, third = (kernel.time for kernel in program.kernels if kernel.shape.is_matmul)
    assert pace.waiting_ns(first, third + 1) == 10.0
    assert pace.waiting_ns(0, third + 9) == 150.0
