"""Are our plans at most what people write by hand, in the compiler's estimate?

Three plans that fit on a line each, written on a module by the shapes of its arguments alone, with x and y the mesh axes:

- `data parallel`: the batch dimension of the batch over x and y;
- `FSDP`: beside that every array of at least 64 Ki elements that is no batch over x and y, on its largest dimension that they divide;
- `Megatron`: the batch over x; of arrays of two dimensions or more the one over y that alternates, rows after columns, where both are
  of one size, and the larger one otherwise (wide layers by columns, narrow ones by rows).

Results that are fed back are sharded as the arguments that they become. `+c` adds a constraint on the batch dimension after every
product whose result has it first. The judge prices those and the plan that autoshard makes of the unannotated module.

python experiments/fidelity/handwritten.py PROGRAM.mlir.gz... --folder FOLDER --judge PATH --judge-python PYTHON [--target tpu:v5e:4x4]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from jaxlib.mlir import ir
from plans import Judge, add_options, ask, draw, judge, load_program, program_name, setting_of

from autoshard.loading import Loaded
from autoshard.program import batch_arguments

RESULTS = Path(__file__).parent / "results"
STYLES = ("data parallel", "FSDP", "FSDP+c", "Megatron", "Megatron+c")
LARGE = 1 << 16

Dims = list[list[str]]  # the axes of each dimension


def fsdp_dims(shape: tuple[int, ...], axes: dict[str, int]) -> Dims:
    """All axes on the largest dimension that they divide."""
    dims: Dims = [[] for _ in shape]
    count = 1
    for size in axes.values():
        count *= size
    divided = [d for d, size in enumerate(shape) if size % count == 0]
    if divided:
        dims[max(divided, key=lambda d: shape[d])] = list(axes)
    return dims


def megatron_dims(shape: tuple[int, ...], axes: dict[str, int], turn: int) -> Dims:
    """The last axis on the larger of the last two dimensions, or in turn on one and the other."""
    dims: Dims = [[] for _ in shape]
    name, size = list(axes.items())[-1]
    if len(shape) >= 2:
        rows, columns = shape[-2:]
        dim = len(shape) - (1 if columns > rows or (columns == rows and turn % 2 == 0) else 2)
        if shape[dim] % size == 0:
            dims[dim] = [name]
    return dims


def annotated(loaded: Loaded, style: str, axes: dict[str, int]) -> str:
    """The module with a hand-written plan on it."""
    with loaded.source.context, ir.Location.unknown():
        module = ir.Module.parse(str(loaded.source.module))
        sizes = ", ".join(f'"{name}"={size}' for name, size in axes.items())
        with ir.InsertionPoint.at_block_begin(module.body):
            ir.Operation.parse(f"sdy.mesh @mesh = <[{sizes}]>").clone()
        batch_axes = list(axes)[:-1] if style.startswith("Megatron") else list(axes)
        batch = {flow.value for flow in batch_arguments(loaded.program)}
        main = next(op for op in module.body.operations if _name(op) == loaded.source.main)
        arguments = _arguments(loaded, style, axes, batch, batch_axes)
        _set(main, "arg_attrs", arguments)
        carried = {result: arguments[argument] for result, argument in loaded.program.carried_pairs}
        _set(main, "res_attrs", [carried.get(i, "") for i in range(len(loaded.listing.results))])
        if style.endswith("+c"):
            size = next(loaded.listing.values[value].type for value in batch)
            assert size is not None
            parameters = {
                t.shape
                for a in loaded.listing.arguments
                if a.value not in batch and (t := loaded.listing.values[a.value].type) is not None
            }
            for product in list(_products(module.operation)):
                _constrain(product, size.shape[0], batch_axes, parameters)
        assert module.operation.verify()
        return str(module)


def _arguments(
    loaded: Loaded, style: str, axes: dict[str, int], batch: set[int], batch_axes: list[str]
) -> list[str]:
    found: list[str] = []
    turn = 0
    for argument in loaded.listing.arguments:
        type_ = loaded.listing.values[argument.value].type
        shape = () if type_ is None else type_.shape
        dims: Dims = [[] for _ in shape]
        elements = 1
        for size in shape:
            elements *= size
        if argument.value in batch:
            dims[0] = batch_axes
        elif style.startswith("FSDP") and elements >= LARGE:
            dims = fsdp_dims(shape, axes)
        elif style.startswith("Megatron") and elements >= LARGE:
            dims, turn = megatron_dims(shape, axes, turn), turn + 1
        found.append("" if type_ is None else _sharding(dims))
    return found


def _sharding(dims: Dims) -> str:
    each = ", ".join("{" + ", ".join(f'"{axis}"' for axis in dim) + "}" for dim in dims)
    return f"#sdy.sharding<@mesh, [{each}]>"


def _name(operation: Any) -> str:
    attributes = operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def _set(main: Any, key: str, shardings: list[str]) -> None:
    """Shardings beside what each argument or result says already; "" leaves it open."""
    if key in main.attributes:
        old = [{a.name: a.attr for a in ir.DictAttr(d)} for d in ir.ArrayAttr(main.attributes[key])]
    else:
        old = [{} for _ in shardings]
    new = [
        {**attributes, "sdy.sharding": ir.Attribute.parse(sharding)} if sharding else attributes
        for attributes, sharding in zip(old, shardings, strict=True)
    ]
    main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(attributes) for attributes in new])


def _products(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
                    yield inner.operation
                yield from _products(inner.operation)


def _constrain(product: Any, batch: int, axes: list[str], parameters: set[tuple[int, ...]]) -> None:
    """The first dimension over the batch axes, where that is the batch or the batch times positions, and the result is no gradient."""
    result = product.results[0]
    shape = tuple(ir.RankedTensorType(result.type).shape)
    if not shape or shape[0] % batch or shape in parameters or shape[::-1] in parameters:
        return
    dims: Dims = [axes, *[[] for _ in shape[1:]]]
    constraint = ir.Operation.create(
        "sdy.sharding_constraint",
        results=[result.type],
        operands=[result],
        attributes={"sharding": ir.Attribute.parse(_open(dims))},
        ip=ir.InsertionPoint.after(product)
        if hasattr(ir.InsertionPoint, "after")
        else ir.InsertionPoint(_next(product)),
    )
    result.replace_all_uses_except(constraint.results[0], constraint)


def _next(operation: Any) -> Any:
    found = list(operation.block.operations)
    return found[
        next(i for i, op in enumerate(found) if op.operation == operation) + 1
    ]  # a product ends no block


def _open(dims: Dims) -> str:
    """The dimensions without axes stay open, for a tensor's other dimensions are not the batch's business."""
    each = ", ".join("{" + ", ".join(f'"{axis}"' for axis in dim) + "}" if dim else "{?}" for dim in dims)
    return f"#sdy.sharding<@mesh, [{each}]>"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.judge is None:
        parser.error("name the judge: --judge PATH")
    setting = setting_of(arguments)
    by = Judge(arguments.judge, arguments.judge_python)
    rows: list[dict[str, Any]] = []
    for program in arguments.programs:
        loaded = load_program(program, setting)
        drawn = {one.name: one for one in draw(program, setting, arguments.folder, 0, arguments.seed)}
        answers = {"autoshard": judge(drawn["best"], setting.target, by)} if "best" in drawn else {}
        for style in STYLES:
            file = arguments.folder / program_name(program) / f"hand-{style.replace(' ', '-')}.mlir"
            file.write_text(annotated(loaded, style, dict(setting.mesh)))
            answers[style] = ask(file, setting.target, by)
        for style, said in answers.items():
            rows.append(_row(program_name(program), style, said))
            print(rows[-1], flush=True)
        RESULTS.mkdir(exist_ok=True)
        pd.DataFrame(rows).to_csv(RESULTS / "handwritten.csv", index=False)


def _row(program: str, style: str, said: dict[str, Any]) -> dict[str, Any]:
    if not said.get("ok"):
        return {"program": program, "plan": style, "error": said.get("error", "")[:60]}
    return {
        "program": program,
        "plan": style,
        "est_step_us": said["est_step_us"],
        "matmul_us": said["matmul_us"],
        "exposed_us": said["lhs"]["comm_us"],
        "serial_us": said["comm_serial_us"],
        "hbm_gb": round(said["memory"]["hbm_total"] / 1e9, 2),
    }


if __name__ == "__main__":
    main()
