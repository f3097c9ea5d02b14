"""Arguments and results of the entry function: names, demands, donation."""

from collections.abc import Mapping, Sequence

from autoshard.mlir.context import ir
from autoshard.mlir.listing import Argument, Result
from autoshard.mlir.locations import Locations
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.walk import SHARDING, Walked
from autoshard.sharding import TensorSharding

ALIASING = "tf.aliasing_output"
DONOR = "jax.buffer_donor"


def attributes_of(function: ir.Operation, key: str, count: int) -> Sequence[Mapping[str, ir.Attribute]]:
    """The attributes of each argument (`arg_attrs`) or result (`res_attrs`)."""
    if key not in function.attributes:
        return [{}] * count
    each = map(ir.DictAttr, ir.ArrayAttr(function.attributes[key]))
    return [{named.name: named.attr for named in one} for one in each]


def arguments(walked: Walked, shardings: Shardings, locations: Locations) -> tuple[Argument, ...]:
    values = walked.block.arguments
    listed: list[Argument] = []
    for index, attributes in enumerate(attributes_of(walked.main, "arg_attrs", len(values))):
        name = (
            _text(attributes.get("jax.arg_name")) or locations.name(values[index].location) or f"arg{index}"
        )
        alias = attributes.get(ALIASING)
        listed.append(
            Argument(
                walked.ids[values[index]],
                name,
                _demand(attributes, values[index].type, shardings, name),
                alias is not None or _is_true(attributes.get(DONOR)),
                None if alias is None else ir.IntegerAttr(alias).value,
                locations.text(values[index].location),
            )
        )
    return tuple(listed)


def results(walked: Walked, shardings: Shardings, locations: Locations) -> tuple[Result, ...]:
    values = walked.terminator.operands
    listed: list[Result] = []
    where = locations.text(walked.main.location)
    for index, attributes in enumerate(attributes_of(walked.main, "res_attrs", len(values))):
        name = _text(attributes.get("jax.result_info")) or f"result{index}"
        demand = _demand(attributes, values[index].type, shardings, name)
        listed.append(Result(walked.ids[values[index]], name, demand, where))
    return tuple(listed)


def _text(attribute: ir.Attribute | None) -> str:
    return ir.StringAttr(attribute).value if isinstance(attribute, ir.StringAttr) else ""


def _is_true(attribute: ir.Attribute | None) -> bool:
    return attribute is not None and (not isinstance(attribute, ir.BoolAttr) or attribute.value)


def _demand(
    attributes: Mapping[str, ir.Attribute], type_: ir.Type, shardings: Shardings, where: str
) -> TensorSharding | None:
    attribute = attributes.get(SHARDING)
    return None if attribute is None else shardings.read(attribute, type_, where)


def set_attributes(function: ir.Operation, key: str, each: Sequence[Mapping[str, ir.Attribute]]) -> None:
    """Write back what `attributes_of` reads."""
    context = function.context
    dictionaries = [ir.DictAttr.get(dict(one), context) for one in each]
    function.attributes[key] = ir.ArrayAttr.get(dictionaries, context)
