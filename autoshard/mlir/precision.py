"""Whether a matrix product leaves its precision to the hardware."""

from autoshard.mlir.context import ir

_DEFAULT = frozenset(f"#{dialect}<precision DEFAULT>" for dialect in ("stablehlo", "chlo"))


def has_default_precision(op: ir.Operation) -> bool:
    """Of a dot, convolution or ragged dot: no algorithm, and no operand for which more than the default is asked."""
    if "algorithm" in op.attributes:
        return False
    if "precision_config" not in op.attributes:
        return True
    return all(str(one) in _DEFAULT for one in ir.ArrayAttr(op.attributes["precision_config"]))
