"""The collectives of an annotated module, as Shardy's passes make them: the oracle for what a plan is predicted to send."""

from autoshard.mlir.collective import Collective
from autoshard.mlir.context import Value, ir
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.locations import Locations
from autoshard.mlir.meshes import module_meshes
from autoshard.mlir.read import read
from autoshard.mlir.repeats import scope_repeats
from autoshard.mlir.reshards import StepParser, is_collective
from autoshard.mlir.signature import attributes_of
from autoshard.mlir.source import SourceModule
from autoshard.mlir.tensors import Shardings, TensorTypes
from autoshard.mlir.walk import SHARDING, Walked, walk
from autoshard.sharding import Mesh, TensorSharding

EXPLICIT = (
    "sdy-close-shardings,func.func(sdy-sharding-constraint-to-reshard,"
    "sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives),canonicalize"
)


def collectives(source: SourceModule, mesh: Mesh) -> list[Collective]:
    """What Shardy's passes make explicit in a module that is annotated throughout (an unannotated value is replicated).

    Bytes are of one device; an all_slice is in the list, though it moves nothing.

    Raises:
        NativeAbortError: Shardy's passes died on the module.
    """
    _, handles = read(source, mesh)
    done = walk(run_isolated(handles.walked.module, EXPLICIT).operation, handles.entry)
    locations = Locations(source.name)
    repeats, _ = scope_repeats(done, locations)
    known = _handed_in(done, mesh)
    types, parser = TensorTypes(), StepParser(mesh)
    shardings = Shardings(mesh, module_meshes(done.module), done.module.context)
    found: list[Collective] = []
    for op, scope in zip(done.ops, done.op_scopes, strict=True):
        if not is_collective(op):
            for value, sharding in _made(op, shardings).items():
                known[done.ids[value]] = sharding
            continue
        type_ = types[op.result.type]
        assert type_ is not None
        before = known.get(done.ids[op.operands[0]], TensorSharding.replicated_closed(type_.rank))
        step = parser.step(op, before)
        known[done.ids[op.result]] = step.out_sharding
        bytes_ = before.local_bytes(type_), step.out_sharding.local_bytes(type_)
        found.append(Collective(step.kind, step.axes, *bytes_, repeats[scope], locations.text(op.location)))
    return found


def _made(op: ir.Operation, shardings: Shardings) -> dict[Value, TensorSharding]:
    if op.name in ("sdy.reshard", "sdy.sharding_constraint"):
        return {op.result: shardings.read(op.attributes["sharding"], "")}
    attribute = op.attributes.get(SHARDING)
    if attribute is None or shardings.is_maximal(attribute):
        return {}
    return dict(zip(op.results, shardings.read_each(attribute, ""), strict=True))


def _handed_in(walked: Walked, mesh: Mesh) -> dict[int, TensorSharding]:
    """Shardings of arguments and of what data-flow ops carry, by value number."""
    shardings = Shardings(mesh, module_meshes(walked.module), walked.module.context)
    found: dict[int, TensorSharding] = {}
    for number, attributes in enumerate(attributes_of(walked.main, "arg_attrs", len(walked.block.arguments))):
        if SHARDING in attributes:
            found[number] = shardings.read(attributes[SHARDING], "")
    for flow in walked.flows:
        attribute = flow.owner.attributes.get(flow.sharding_attribute)
        if attribute is not None:
            found[flow.target] = shardings.read_each(attribute, "")[flow.index]
    return found
