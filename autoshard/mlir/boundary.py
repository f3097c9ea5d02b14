"""What Shardy's verifier lets through at the boundary of the entry function and no compiler takes: uneven arguments and results."""

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.locations import Locations
from autoshard.mlir.meshes import all_meshes, mesh_of
from autoshard.mlir.signature import attributes_of
from autoshard.mlir.walk import SHARDING, function_named
from autoshard.sharding import TensorSharding, parse_sharding, total_size


def refuse_uneven(module: ir.Operation, entry: str, file: str) -> None:
    """Raises AutoshardError at the first argument or result with a dimension that its shards do not divide."""
    function = function_named(module, entry)
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arguments = function.regions[0].blocks[0].arguments
    locations = Locations(file)
    meshes = {mesh.name: mesh for mesh in all_meshes(module)}
    here = locations.text(function.location) or file
    for kind, key, types in (
        ("argument", "arg_attrs", type_.inputs),
        ("result", "res_attrs", type_.results),
    ):
        for index, attributes in enumerate(attributes_of(function, key, len(types))):
            attribute = attributes.get(SHARDING)
            tensor = types[index]
            if (
                attribute is None
                or not isinstance(tensor, ir.RankedTensorType)
                or not tensor.has_static_shape
            ):
                continue
            if not sdy.TensorShardingAttr(attribute).dimension_shardings:
                continue
            at = (locations.text(arguments[index].location) or here) if kind == "argument" else here
            sharding = parse_sharding(str(attribute), mesh_of(attribute, meshes))
            _refuse_uneven(f"{kind} {index}", tensor, sharding, at)


def _refuse_uneven(what: str, tensor: ir.RankedTensorType, sharding: TensorSharding, where: str) -> None:
    for number, (dim, size) in enumerate(zip(sharding.dims, tensor.shape, strict=True)):
        shards = total_size(dim.axes)
        if size % shards:
            raise AutoshardError(
                f"{what} of type {tensor} is to be {sharding}: its dimension {number} of size {size} does not divide into {shards} shards",
                where=where,
                fix="shard another dimension, or pad it; only values inside the program may be uneven",
            )
