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
    """sdy sharding attributes both ways: of the plan's mesh, and of the others that it knows."""

    def __init__(self, mesh: Mesh, meshes: Sequence[Mesh], context: ir.Context) -> None:
        """`meshes` are all that the module has; those that are alike are one."""
        self.mesh, self._context = mesh, context
        self._meshes = {one.name: one for one in meshes}
        self._names = {one: one.name for one in mesh.others} | {mesh: ""}
        self._read: dict[ir.Attribute, TensorSharding] = {}
        self._written: dict[TensorSharding, ir.Attribute] = {}
        self._written_each: dict[tuple[TensorSharding, ...], ir.Attribute] = {}

    def read(self, attribute: ir.Attribute, type_: ir.Type, where: str) -> TensorSharding:
        """The sharding of a value of this type.

        Raises:
            AutoshardError: the demand is on a mesh of other devices, or is a partial sum on another mesh.
        """
        if attribute not in self._read:
            self._read[attribute] = self._parse(attribute, where)
        found = self._read[attribute]
        if not self.mesh.named(found.mesh).is_one_device:
            return found
        rank = type_.rank if isinstance(type_, ir.RankedTensorType) else 0
        return TensorSharding.replicated_closed(rank).on_mesh(found.mesh)

    def read_each(
        self, attribute: ir.Attribute, types: Sequence[ir.Type], where: str
    ) -> tuple[TensorSharding, ...]:
        """The shardings of an op's results."""
        each = sdy.TensorShardingPerValueAttr(attribute).shardings
        return tuple(self.read(one, type_, where) for one, type_ in zip(each, types, strict=False))

    def read_at(self, attribute: ir.Attribute, index: int, type_: ir.Type, where: str) -> TensorSharding:
        """The sharding of one of an op's results."""
        return self.read(sdy.TensorShardingPerValueAttr(attribute).shardings[index], type_, where)

    def device_of(self, per_value: ir.Attribute, where: str) -> str:
        """The name of the mesh of one device that an op is to run on (as a host callback does); "" where it is to run on all.

        Raises:
            AutoshardError: its results are to be on several devices, or some on one and some on all.
        """
        each = sdy.TensorShardingPerValueAttr(per_value).shardings
        named = {self.mesh.named(self._name_of(one, where)) for one in each}
        devices = sorted((mesh for mesh in named if mesh.is_one_device), key=lambda mesh: mesh.name)
        if devices and len(named) > 1:
            raise AutoshardError(
                f"results of one op on {' and '.join(sorted(mesh.symbol for mesh in named))}: it runs on one device or on all",
                where=where,
                fix="put all results on the same device, or take the shardings on one device off",
            )
        return devices[0].name if devices else ""

    def _name_of(self, attribute: ir.Attribute, where: str) -> str:
        """The name among the plan's other meshes; "" for its own, and for one without axes and devices."""
        name = _mesh_named(attribute)
        mesh = self._meshes.get(name)
        if mesh is None or not (mesh.axes or mesh.is_one_device):
            return ""
        known = self._names.get(mesh)
        if known is None:
            raise AutoshardError(
                f"a sharding on mesh {mesh.symbol} in a plan for mesh {self.mesh.symbol} {self.mesh}",
                where=where,
                fix="write all shardings on one mesh",
            )
        return known

    def _parse(self, attribute: ir.Attribute, where: str) -> TensorSharding:
        name = self._name_of(attribute, where)
        sharding = parse_sharding(str(attribute), self.mesh.named(name)).on_mesh(name)
        if name and sharding.unreduced:
            raise AutoshardError(
                f"{attribute} is a partial sum on another mesh than the plan's {self.mesh.symbol}",
                where=where,
                fix="demand the sum there, or the partial sum on the plan's mesh",
            )
        return sharding

    def attribute(self, sharding: TensorSharding) -> ir.Attribute:
        if sharding not in self._written:
            text = f"#sdy.sharding{sharding.definition(self.mesh)}"
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
