"""Calls of XLA's linear algebra that Shardy's rules would end the process for."""

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh

MATRIX, BATCH, ROW, ONE = (f"tensor<{shape}f32>" for shape in ("8x8x", "2x8x8x", "8x", ""))
REFLECTORS = "ProductOfElementaryHouseholderReflectors"


def listed(called: str, operands: list[str], results: list[str]) -> Listing:
    arguments = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(operands))
    names = ", ".join(f"%a{number}" for number in range(len(operands)))
    made, types = f"%r:{len(results)}", ", ".join(results)
    text = f"""sdy.mesh @mesh = <["x"=4]>
    func.func @main({arguments}) -> {results[0]} {{
      {made} = stablehlo.custom_call @{called}({names}) : ({", ".join(operands)}) -> ({types})
      return %r#0 : {results[0]}
    }}"""
    source = load(text.encode())
    return read(source, resolve_mesh(source, None))[0]


@pytest.mark.parametrize(
    ("called", "operands", "results"),
    [
        ("Qr", [ONE], [ONE, ONE]),
        ("Qr", [ROW], [ROW, ROW]),
        ("Qr", [MATRIX], [MATRIX]),
        ("Qr", [MATRIX], [MATRIX, ONE]),
        ("Qr", [MATRIX], [MATRIX, ROW, ROW]),
        ("Qr", [BATCH], [MATRIX, ROW]),
        ("Eigh", [ONE], [ONE, ONE]),
        ("Eigh", [BATCH], [MATRIX, ROW]),
        (REFLECTORS, [MATRIX], [MATRIX]),
        (REFLECTORS, [MATRIX, ROW], [ROW]),
    ],
)
def test_malformed_calls_are_refused(called: str, operands: list[str], results: list[str]) -> None:
    with pytest.raises(AutoshardError, match=f"a custom call of {called} with"):
        listed(called, operands, results)


@pytest.mark.parametrize(
    ("called", "operands", "results"),
    [
        ("Qr", [MATRIX], [MATRIX, ROW]),
        ("Qr", [BATCH], [BATCH, "tensor<2x8xf32>"]),
        ("Eigh", [MATRIX], [MATRIX, ROW]),
        ("Eigh", [MATRIX], [MATRIX]),
        (REFLECTORS, [MATRIX, ROW], [MATRIX]),
    ],
)
def test_what_jax_writes_has_a_rule(called: str, operands: list[str], results: list[str]) -> None:
    (op,) = (op for op in listed(called, operands, results).ops if op.name == "stablehlo.custom_call")
    assert op.rule is not None
