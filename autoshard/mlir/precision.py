"""Whether a matrix product leaves its precision to the hardware."""

from autoshard.mlir.context import ir

_DEFAULT = "#stablehlo<precision DEFAULT>"


def has_default_precision(op: ir.Operation) -> bool:
    """Of a dot or convolution: no algorithm, and no operand for which more than the default is asked."""
    if "algorithm" in op.attributes:
        return False
    if "precision_config" not in op.attributes:
        return True
    return all(str(one) == _DEFAULT for one in ir.ArrayAttr(op.attributes["precision_config"]))
