"""sdy's sharding representation as immutable values that print and parse in Shardy's own notation."""

from autoshard.sharding.crossing import Crossing, without_axes
from autoshard.sharding.mesh import (
    AxisRef,
    Mesh,
    MeshAxis,
    axes_added,
    merge_sub_axes,
    parse_axes,
    total_size,
)
from autoshard.sharding.projection import FactorAxes, factor_axes_of, tensor_sharding
from autoshard.sharding.rule import Factor, FactorKind, OpShardingRule, TensorMapping, parse_rule
from autoshard.sharding.scattering import (
    CONVOLUTION,
    ONE_WAY,
    PRODUCT,
    batch_dims,
    cut_in_groups,
    cuts_rows,
    is_cut_over_all,
    is_gathered,
    is_scatter,
    is_split_over_all,
    is_whole,
    may_loop,
)
from autoshard.sharding.tensor import DimSharding, TensorSharding, TensorType, dtype_bits, parse_sharding
from autoshard.sharding.written import sharding_of_user

__all__ = [
    "CONVOLUTION",
    "ONE_WAY",
    "PRODUCT",
    "AxisRef",
    "Crossing",
    "DimSharding",
    "Factor",
    "FactorAxes",
    "FactorKind",
    "Mesh",
    "MeshAxis",
    "OpShardingRule",
    "TensorMapping",
    "TensorSharding",
    "TensorType",
    "axes_added",
    "batch_dims",
    "cut_in_groups",
    "cuts_rows",
    "dtype_bits",
    "factor_axes_of",
    "is_cut_over_all",
    "is_gathered",
    "is_scatter",
    "is_split_over_all",
    "is_whole",
    "may_loop",
    "merge_sub_axes",
    "parse_axes",
    "parse_rule",
    "parse_sharding",
    "sharding_of_user",
    "tensor_sharding",
    "total_size",
    "without_axes",
]
