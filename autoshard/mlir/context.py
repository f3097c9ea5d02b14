"""An MLIR context that knows StableHLO, CHLO and Shardy, made from jaxlib's bindings without importing jax."""

from functools import cache
from typing import TYPE_CHECKING

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, mhlo, mpmd, sdy, stablehlo

__all__ = ["BlockArgument", "Value", "chlo", "func", "ir", "new_context", "sdy", "stablehlo"]

if TYPE_CHECKING:
    Value = ir.Value[ir.Type]
    BlockArgument = ir.BlockArgument[ir.Type]
else:
    Value, BlockArgument = ir.Value, ir.BlockArgument


@cache
def _registry() -> ir.DialectRegistry:
    """The upstream dialects; registering them also registers every pass, which the process may do once only."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    stablehlo.register_stablehlo_passes()
    return registry


def new_context() -> ir.Context:
    context = ir.Context()
    context.append_dialect_registry(_registry())
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    for dialect in (sdy, mpmd, chlo, stablehlo):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context
