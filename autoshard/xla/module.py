"""What `main` of a module takes and gives, as the runs need it: types, names, donated buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir
from autoshard.mlir.meshes import lift_inlined, module_meshes
from autoshard.mlir.signature import ALIASING, attributes_of
from autoshard.mlir.source import SourceModule, load
from autoshard.mlir.walk import function_named
from autoshard.sharding import TensorType

Ports = Sequence[Mapping[str, ir.Attribute]]
Model = str | Path | bytes | SourceModule
"""A module as `autoshard.mlir.source.load` takes it (a path, or MLIR text or bytecode as bytes) or returns it."""


@dataclass(frozen=True, slots=True)
class Port:
    """An argument or a result of `main`."""

    name: str
    type: TensorType
    alias: int | None = None  # of a donated argument: the result that takes over its buffer


@dataclass(frozen=True, slots=True)
class Program:
    """A module that is about to be run; preparing it changes `module` in place."""

    name: str
    module: ir.Operation
    main: ir.Operation
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]
    num_mesh_devices: int | None  # of the largest mesh

    @property
    def is_annotated(self) -> tuple[list[bool], list[bool]]:
        """Which arguments and which results carry a sharding."""
        arguments, results = _attributes(self.main)
        return ["sdy.sharding" in one for one in arguments], ["sdy.sharding" in one for one in results]


def read_program(model: Model, role: str) -> Program:
    """`role` names it in errors where it has no path ("the planned module").

    Raises:
        AutoshardError: as `load`, or a type that is not a tensor of known shape.
    """
    source = model if isinstance(model, SourceModule) else load(model)
    name = role if source.name.startswith("<") else source.name
    module = source.module.operation.clone()
    lift_inlined(module)
    main = function_named(module, source.main)
    arguments, results = _attributes(main)
    type_ = _function_type(main)
    return Program(
        name,
        module,
        main,
        tuple(
            Port(
                _text(attributes, "jax.arg_name", f"argument {i}"),
                _tensor_type(one, f"{name}, argument {i}"),
                ir.IntegerAttr(attributes[ALIASING]).value if ALIASING in attributes else None,
            )
            for i, (one, attributes) in enumerate(zip(type_.inputs, arguments, strict=True))
        ),
        tuple(
            Port(
                _text(attributes, "jax.result_info", f"result {i}"), _tensor_type(one, f"{name}, result {i}")
            )
            for i, (one, attributes) in enumerate(zip(type_.results, results, strict=True))
        ),
        max((mesh.num_devices for mesh in module_meshes(module)), default=None),
    )


def _attributes(main: ir.Operation) -> tuple[Ports, Ports]:
    type_ = _function_type(main)
    return (
        attributes_of(main, "arg_attrs", len(type_.inputs)),
        attributes_of(main, "res_attrs", len(type_.results)),
    )


def _function_type(main: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)


def _text(attributes: Mapping[str, ir.Attribute], key: str, default: str) -> str:
    return ir.StringAttr(attributes[key]).value if key in attributes else default


def _tensor_type(type_: ir.Type, where: str) -> TensorType:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise AutoshardError(f"{type_} is not a tensor of known shape", where=where)
    return TensorType(tuple(type_.shape), str(type_.element_type))
