"""Hand-written plans: the sharding of main's arguments in Shardy's notation, by argument name."""

from collections.abc import Mapping
from typing import Any

from autoshard.mlir.context import ir, new_context

MESH = '<["data"=4, "model"=2]>'


def data_parallel(text: str, *batch: str) -> bytes:
    """The arguments named in `batch` split in their first dimension over all eight devices, all else replicated."""
    return with_shardings(text, dict.fromkeys(batch, '[{"data", "model"}, *]'))


def with_shardings(text: str, shardings: Mapping[str, str], mesh: str = MESH) -> bytes:
    """Module text with `mesh` and a sharding on every argument and on every result that takes over an argument.

    `shardings` maps the beginning of a name to a sharding, in which `*` stands for the remaining dimensions unsplit.
    """
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main: Any = next(
            op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main"
        )
        ir.InsertionPoint.at_block_begin(module.body).insert(ir.Operation.parse(f"sdy.mesh @mesh = {mesh}"))
        results = [_entries(item) for item in main.attributes["res_attrs"]]
        arguments: list[Any] = []
        for item, type_ in zip(main.arg_attrs, main.type.inputs, strict=True):
            attributes = _entries(item)
            sharding = _sharding(attributes["jax.arg_name"].value, type_.rank, shardings)
            attributes["sdy.sharding"] = sharding
            if "tf.aliasing_output" in attributes:
                results[attributes["tf.aliasing_output"].value]["sdy.sharding"] = sharding
            arguments.append(ir.DictAttr.get(attributes))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
        main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in results])
        return str(module).encode()


def _entries(attributes: Any) -> dict[str, Any]:
    return {entry.name: entry.attr for entry in ir.DictAttr(attributes)}


def _sharding(name: str, rank: int, shardings: Mapping[str, str]) -> Any:
    dims = next((text for prefix, text in shardings.items() if name.startswith(prefix)), "[*]")
    written = dims.count("{")
    rest = ", ".join(["{}"] * (rank - written))
    filled = dims.replace("*", rest).replace(", ]", "]")
    return ir.Attribute.parse(f"#sdy.sharding<@mesh, {filled}>")
