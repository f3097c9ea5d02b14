"""Trip counts that a loop's condition shows, and the stated guess where it shows none."""

import pytest

from autoshard.mlir.repeats import DEFAULT_TRIP_COUNT
from tests.mlir.modules import listed, main_of

I32 = "tensor<i32>"


def loop(condition: str, start: int = 0, step: str = "stablehlo.add %i, %one", limit: int = 10) -> str:
    """A loop over `%i` from `start` that carries `%n = limit` along; `condition` defines %go."""
    return main_of(
        f"""%start = stablehlo.constant dense<{start}> : {I32}
        %limit = stablehlo.constant dense<{limit}> : {I32}
        %r:3 = stablehlo.while(%i = %start, %n = %limit, %x = %a) : {I32}, {I32}, tensor<8x16xf32>
          cond {{ %ten = stablehlo.constant dense<10> : {I32}
            {condition}
            stablehlo.return %go : tensor<i1> }}
          do {{ %one = stablehlo.constant dense<1> : {I32} %two = stablehlo.constant dense<2> : {I32}
            %j = {step} : {I32}
            %y = stablehlo.tanh %x : tensor<8x16xf32>
            stablehlo.return %j, %n, %y : {I32}, {I32}, tensor<8x16xf32> }}
        return %r#2 : tensor<8x16xf32>"""
    )


def compare(direction: str, lhs: str = "%i", rhs: str = "%ten", name: str = "%go") -> str:
    return f"{name} = stablehlo.compare {direction}, {lhs}, {rhs} : ({I32}, {I32}) -> tensor<i1>"


def repeat_of_body(text: str) -> int:
    return next(op.repeat for op in listed(text).ops if op.name == "stablehlo.tanh")


@pytest.mark.parametrize(
    ("text", "trips"),
    [
        (loop(compare("LT")), 10),
        (loop(compare("LE")), 11),
        (loop(compare("NE")), 10),
        (loop(compare("GT", "%ten", "%i")), 10),
        (loop(compare("LT"), start=3, step="stablehlo.add %two, %i"), 4),
        (loop(compare("GT"), start=20, step="stablehlo.subtract %i, %one"), 10),
        (loop(compare("GE"), start=20, step="stablehlo.subtract %i, %two"), 6),
        (loop(compare("LT", rhs="%n"), limit=7), 7),
        (loop(compare("LT"), start=12), 1),
        (loop(compare("GE", name="%stop") + "\n%go = stablehlo.not %stop : tensor<i1>"), 10),
        (
            loop(
                f"{compare('LT', name='%l')}\n%v = stablehlo.compare LT, %n, %i : ({I32}, {I32}) -> tensor<i1>\n"
                "%go = stablehlo.and %l, %v : tensor<i1>"
            ),
            10,
        ),
    ],
)
def test_a_counter_that_starts_steps_and_stops_at_constants(text: str, trips: int) -> None:
    assert repeat_of_body(text) == trips
    assert not listed(text).warnings


def test_a_condition_on_data_gets_the_stated_default_and_a_warning() -> None:
    text = loop(compare("LT", rhs="%n")).replace("stablehlo.return %j, %n", "stablehlo.return %j, %j")
    assert repeat_of_body(text) == DEFAULT_TRIP_COUNT
    assert "no known trip count" in listed(text).warnings[0]


def test_a_condition_on_bfloat16_is_one_on_data() -> None:
    """The bindings hand out no such numbers one by one."""
    text = """sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<bf16>) -> tensor<bf16> {
      %e = stablehlo.constant dense<0.0> : tensor<bf16>
      %r = stablehlo.while(%c = %a) : tensor<bf16> cond {
        %t = stablehlo.compare LT, %c, %e : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
        stablehlo.return %t : tensor<i1>
      } do {
        %n = stablehlo.add %c, %c : tensor<bf16>
        stablehlo.return %n : tensor<bf16>
      }
      return %r : tensor<bf16>
    }"""
    assert "no known trip count" in listed(text).warnings[0]


def test_a_loop_that_never_ends_by_its_counter_is_not_counted() -> None:
    assert (
        "no known trip count" in listed(loop(compare("LT"), step="stablehlo.subtract %i, %one")).warnings[0]
    )


def test_nested_trips_multiply_and_a_triangular_nest_has_the_mean() -> None:
    text = main_of(
        f"""%zero = stablehlo.constant dense<0> : {I32}
        %one = stablehlo.constant dense<1> : {I32}
        %four = stablehlo.constant dense<4> : {I32}
        %r:2 = stablehlo.while(%i = %zero, %x = %a) : {I32}, tensor<8x16xf32>
          cond {{ {compare("LT", rhs="%four")} stablehlo.return %go : tensor<i1> }}
          do {{ %end = stablehlo.add %i, %one : {I32}
            %s:2 = stablehlo.while(%j = %zero, %y = %x) : {I32}, tensor<8x16xf32>
              cond {{ {compare("LT", "%j", "%end")} stablehlo.return %go : tensor<i1> }}
              do {{ %k = stablehlo.add %j, %one : {I32} %z = stablehlo.tanh %y : tensor<8x16xf32>
                stablehlo.return %k, %z : {I32}, tensor<8x16xf32> }}
            stablehlo.return %end, %s#1 : {I32}, tensor<8x16xf32> }}
        return %r#1 : tensor<8x16xf32>"""
    )
    assert repeat_of_body(text) == 1 + 2 + 3 + 4
