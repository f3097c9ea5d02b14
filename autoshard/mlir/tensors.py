"""MLIR types and sdy attributes as autoshard's values and back, each distinct one converted once."""

from collections.abc import Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.sharding import Mesh, TensorSharding, TensorType, parse_sharding

_WITHOUT_BYTES = frozenset({"!stablehlo.token", "tuple<>", "none"})


class TensorTypes:
    """Ranked tensor types by MLIR type; tokens are None, anything else is refused."""

    def __init__(self) -> None:
        self._known: dict[ir.Type, TensorType | None] = {}

    def __getitem__(self, type_: ir.Type) -> TensorType | None:
        if type_ not in self._known:
            self._known[type_] = _tensor_type(type_)
        return self._known[type_]


def _tensor_type(type_: ir.Type) -> TensorType | None:
    if not isinstance(type_, ir.RankedTensorType):
        if str(type_) in _WITHOUT_BYTES:
            return None
        if isinstance(type_, ir.UnrankedTensorType):
            raise AutoshardError(
                f"{type_} has no known rank", fix="lower the program with the shapes that it will run on"
            )
        raise AutoshardError(f"values of type {type_} are not supported", fix="use ranked tensors and tokens")
    if not type_.has_static_shape:
        raise AutoshardError(
            f"{type_} has a dynamic shape", fix="lower the program with the shapes that it will run on"
        )
    return TensorType(tuple(type_.shape), str(type_.element_type))


class Shardings:
    """sdy sharding attributes of one mesh, both ways."""

    def __init__(self, mesh: Mesh, meshes: Sequence[Mesh], context: ir.Context) -> None:
        self.mesh, self._context = mesh, context
        self._same_axes = {m.name for m in meshes if m.axes == mesh.axes} | {mesh.name}
        self._others = {m.name for m in meshes} - self._same_axes
        self._read: dict[ir.Attribute, TensorSharding] = {}
        self._written: dict[TensorSharding, ir.Attribute] = {}
        self._written_each: dict[tuple[TensorSharding, ...], ir.Attribute] = {}

    def read(self, attribute: ir.Attribute, where: str) -> TensorSharding:
        """Raises AutoshardError where the demand is on another mesh."""
        if attribute not in self._read:
            self._read[attribute] = self._parse(attribute, where)
        return self._read[attribute]

    def read_each(self, attribute: ir.Attribute, where: str) -> tuple[TensorSharding, ...]:
        return tuple(self.read(a, where) for a in sdy.TensorShardingPerValueAttr(attribute).shardings)

    def is_maximal(self, per_value: ir.Attribute) -> bool:
        """Whether the op is to run on one device alone (a host callback): its shardings name a mesh without axes."""
        each = sdy.TensorShardingPerValueAttr(per_value).shardings
        return any(_mesh_named(sharding) not in self._same_axes | self._others for sharding in each)

    def _parse(self, attribute: ir.Attribute, where: str) -> TensorSharding:
        mesh = _mesh_named(attribute)
        if mesh in self._others:
            raise AutoshardError(
                f"a sharding on mesh @{mesh} in a plan for mesh @{self.mesh.name} {self.mesh}",
                where=where,
                fix="write all shardings on one mesh",
            )
        return parse_sharding(str(attribute), self.mesh)

    def attribute(self, sharding: TensorSharding) -> ir.Attribute:
        if sharding not in self._written:
            text = f"#sdy.sharding<{self.mesh.symbol}, {sharding}>"
            self._written[sharding] = ir.Attribute.parse(text, self._context)
        return self._written[sharding]

    def per_value(self, shardings: Sequence[TensorSharding]) -> ir.Attribute:
        key = tuple(shardings)
        if key not in self._written_each:
            attributes = [self.attribute(sharding) for sharding in key]
            self._written_each[key] = sdy.TensorShardingPerValueAttr.get(attributes, self._context)
        return self._written_each[key]


def _mesh_named(attribute: ir.Attribute) -> str:
    return str(sdy.TensorShardingAttr(attribute).mesh_or_ref).removeprefix("@").strip('"')
