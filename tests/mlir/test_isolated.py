"""What a pass does to its process never reaches ours."""

import pytest

from autoshard.errors import AutoshardError, NativeAbortError
from autoshard.mlir.isolated import run_isolated
from tests.mlir.modules import main_of, source_of

TEXT = main_of("return %a : tensor<8x16xf32>")


def test_the_module_comes_back_with_names_and_locations() -> None:
    text = TEXT.replace(
        "%a: tensor<8x16xf32>", '%a: tensor<8x16xf32> {jax.arg_name = "w"} loc("w"("f.py":1:2))'
    )
    source = source_of(text)
    done = run_isolated(source.module.operation, "canonicalize")
    assert done.operation.get_asm(enable_debug_info=True) == source.module.operation.get_asm(
        enable_debug_info=True
    )


def test_an_abort_is_an_error_that_names_the_pass() -> None:
    """Propagation looks up @main and dies where there is none."""
    text = TEXT.replace("@main", "@one") + "\nfunc.func @two() { return }"
    module = source_of(text.replace("@one", "@main")).module
    renamed = str(module).replace("@main", "@one")
    from autoshard.mlir.context import ir, new_context

    with pytest.raises(NativeAbortError, match=r"(?s)sdy-propagation-pipeline died \(SIG(ABRT|SEGV)\).*main"):
        run_isolated(ir.Module.parse(renamed, new_context()).operation, "sdy-propagation-pipeline")


def test_endless_recursion_in_a_pass_is_an_error_too() -> None:
    text = main_of(
        """%0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32> }
        func.func private @f(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
          %0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
          return %0 : tensor<8x16xf32>"""
    )
    with pytest.raises(NativeAbortError, match="sdy-flatten-call-graph died"):
        run_isolated(source_of(text).module.operation, "sdy-flatten-call-graph")


def test_a_refusal_says_what_mlir_said() -> None:
    twice = "sdy-add-data-flow-edges,sdy-add-data-flow-edges"
    text = main_of("%0 = stablehlo.optimization_barrier %a : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>")
    with pytest.raises(AutoshardError, match="expected input"):
        run_isolated(source_of(text).module.operation, twice)


def test_a_pass_that_does_not_end_is_given_up() -> None:
    with pytest.raises(NativeAbortError, match="did not end within"):
        run_isolated(source_of(TEXT).module.operation, "canonicalize", timeout_s=0.01)
