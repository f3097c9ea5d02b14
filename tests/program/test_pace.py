"""How long values wait between what makes and what reads them, and for what kernels they are there."""

from autoshard.program import KernelTimes, Pace
from tests.mlir.modules import counted_loop, main_of
from tests.program.modules import program_of
from tests.sdy.manual_programs import all_kinds

SQUARE = "tensor<8x8xf32>"
PRODUCT = "contracting_dims = [1] x [0]"


def chained(*operands: str) -> str:
    """Products of the values of those names with the argument, `%1` the first's."""
    return "\n".join(
        f"%{i} = stablehlo.dot_general %{operand}, %t, {PRODUCT} : ({SQUARE}, {SQUARE}) -> {SQUARE}"
        for i, operand in enumerate(operands, 1)
    )


def test_what_makes_and_what_reads_it_takes_its_own_time() -> None:
    """Of four products in a row, 10, 20, 30 and 40 ns, what waits is what runs between."""
    program = program_of(
        main_of(f"{chained('t', '1', '2', '3')}\n return %4 : {SQUARE}", f"%t: {SQUARE}", SQUARE)
    )
    pace = Pace(program, [KernelTimes(ns, 0.0) for ns in (10.0, 20.0, 30.0, 40.0)])
    times = [kernel.time for kernel in program.kernels]
    assert [pace.stay(-1, times[0], time + 1).waiting_ns for time in times] == [0.0, 0.0, 20.0, 50.0]
    assert pace.stay(-1, times[0], times[0]).waiting_ns == 0.0


def test_what_is_read_in_between_waits_from_read_to_read() -> None:
    """The first product is read by the second, the third and the fifth: by then the fourth alone has run since."""
    body = f"{chained('t', '1', '1', '2', '1')}\n return %5 : {SQUARE}"
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    pace = Pace(program, [KernelTimes(ns, 0.0) for ns in (1.0, 20.0, 30.0, 40.0, 5.0)])
    (value,), *_, last = (kernel.results for kernel in program.kernels)
    begin, end = (program.kernels[i].time for i in (0, 4))
    assert pace.stay(value, begin, end + 1).waiting_ns == 40.0
    assert pace.stay(-1, begin, end + 1).waiting_ns == 90.0
    assert pace.stay(last[0], end, end + 1).waiting_ns == 0.0


def test_what_waits_for_memory_counts_and_what_does_not_has_time_to_spare() -> None:
    """Of what makes and reads a value two kernels wait for memory; where none does the shortest spare time counts."""
    body = f"{chained('t', '1', '1')}\n %s = stablehlo.add %2, %3 : {SQUARE}\n return %s : {SQUARE}"
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    first, *_, last = (kernel.time for kernel in program.kernels)
    value = program.kernels[0].results[0]
    times = [KernelTimes(*one) for one in ((1.0, 2.0), (9.0, 1.0), (1.0, 8.0), (0.0, 1.0))]
    stay = Pace(program, times).stay(value, first, last)
    assert (stay.streaming, stay.spare_ns) == (2, 0.0)
    times[0], times[2] = KernelTimes(5.0, 2.0), KernelTimes(9.0, 8.0)
    stay = Pace(program, times).stay(value, first, last)
    assert (stay.streaming, stay.spare_ns) == (0, 1.0)


def test_who_makes_it() -> None:
    """A product, what is worked out as one leaves the matrix unit, and the same of it under another name, come with the product."""
    body = f"""
      {chained("t")}
      %a = stablehlo.tanh %1 : {SQUARE}
      %b = stablehlo.transpose %1, dims = [1, 0] : ({SQUARE}) -> {SQUARE}
      %c = stablehlo.sine %b : {SQUARE}
      %d = stablehlo.cosine %t : {SQUARE}
      return %a, %c, %d : {SQUARE}, {SQUARE}, {SQUARE}"""
    program = program_of(main_of(body, f"%t: {SQUARE}", ", ".join([SQUARE] * 3)))
    pace = Pace(program, [KernelTimes(1.0, 1.0)] * len(program.kernels))
    made = {kernel.shape.name: kernel for kernel in program.kernels if kernel.results}
    streamed = {name for name, kernel in made.items() if pace.stay(kernel.results[0], 0, 1).is_streamed}
    assert {name.removeprefix("stablehlo.") for name in streamed} == {"cosine"}


def test_what_collectives_make_is_not_streamed() -> None:
    """Those that the user wrote: of five in a row nothing is, of the sum behind them it is."""
    program = program_of(all_kinds())
    pace = Pace(program, [KernelTimes(1.0, 1.0)] * len(program.kernels))
    made = {kernel.shape.name: kernel.results[0] for kernel in program.kernels if kernel.results}
    streamed = {name.removeprefix("stablehlo.") for name in made if pace.stay(made[name], 0, 1).is_streamed}
    assert streamed == {"add"}
    assert len(made) == 6


def test_what_is_written_over_is_there_as_long_as_that_runs() -> None:
    body = f"{chained('t')}\n %a = stablehlo.tanh %1 : {SQUARE}\n %b = stablehlo.sine %a : {SQUARE}\n return %b : {SQUARE}"
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    pace = Pace(program, [KernelTimes(1.0, 1.0)] * len(program.kernels))
    product, reader = program.kernels[0], program.kernels[1]
    assert pace.stay(product.results[0], product.time, reader.time).end == reader.time + 1
    assert pace.stay(product.results[0], product.time, reader.time + 1).end == reader.time + 1


def test_trips_of_a_loop_are_apart() -> None:
    """A value made in one trip and read in it waits for that trip alone, one read after the loop for all of them."""
    product = f"stablehlo.dot_general %x, %x, {PRODUCT} : ({SQUARE}, {SQUARE}) -> {SQUARE}"
    trip = f"""
      %a = {product.replace("%x", "%v")}
      %b = {product.replace("%x", "%a")}
      %d = {product.replace("%x", "%b")}"""
    body = counted_loop(5, (("%v", "%t", SQUARE),), trip, ("%d",)) + f"\nreturn %r#1 : {SQUARE}"
    program = program_of(main_of(body, f"%t: {SQUARE}", SQUARE))
    times = [KernelTimes(10.0 if kernel.shape.is_matmul else 0.0, 0.0) for kernel in program.kernels]
    pace = Pace(program, times)
    first, _, third = (kernel.time for kernel in program.kernels if kernel.shape.is_matmul)
    assert pace.stay(-1, first, third + 1).waiting_ns == 10.0
    assert pace.stay(-1, 0, third + 9).waiting_ns == 150.0


def test_what_stays_in_main_memory_waits_for_ever() -> None:
    program = program_of(main_of(f"{chained('t', '1')}\n return %2 : {SQUARE}", f"%t: {SQUARE}", SQUARE))
    pace = Pace(program, [KernelTimes(1.0, 1.0)] * len(program.kernels))
    begin, value = program.kernels[0].time, program.kernels[0].results[0]
    assert pace.stay(value, begin, begin + 2, is_out=True).waiting_ns == float("inf")
    assert pace.stay(value, begin, begin + 2).waiting_ns == 0.0
