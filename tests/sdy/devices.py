"""What a module with explicit collectives computes, device by device, in numpy: the meaning of its shardings spelled out.

Reads the written module only. Every device holds its part of each value; a value that is unreduced over an axis is the sum of what the
devices along it hold. Ops run on the parts as they are, collectives do what their names say. Whole axes only, each dividing its dimension.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.mlir.context import ir, new_context

Array = NDArray[np.float64]
Parts = list[Array]  # of one value, by device
_AXIS = re.compile(r'"([^"]+)"')


class Sharding:
    """Axes of each dimension and unreduced axes, from the text of an attribute."""

    def __init__(self, text: str) -> None:
        begin, end = text.index("["), text.rindex("]")
        self.dims = [_AXIS.findall(dim) for dim in re.findall(r"\{([^{}]*)\}", text[begin:end])]
        found = re.search(r"unreduced=\{([^}]*)\}", text[end:])
        self.unreduced = _AXIS.findall(found[1]) if found else []


class Devices:
    def __init__(self, text: str, seed: int = 0) -> None:
        self.module = ir.Module.parse(text, new_context())
        mesh = re.search(r"sdy\.mesh @\w+ = <\[([^\]]*)\]", text)
        assert mesh is not None
        self.axes = {name: int(size) for name, size in re.findall(r'"(\w+)"=(\d+)', mesh[1])}
        self.coordinates = [
            dict(zip(self.axes, at, strict=True))
            for at in itertools.product(*(range(size) for size in self.axes.values()))
        ]
        self.random = np.random.default_rng(seed)
        self.shardings: dict[object, Sharding] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The results of main, put together from the parts."""
        main = next(op.operation for op in self.module.body.operations if op.operation.name == "func.func")
        block = main.regions[0].blocks[0]
        values: dict[object, Parts] = {}
        for argument, whole, sharding in zip(
            block.arguments, inputs, _of_function(main, "arg_attrs"), strict=True
        ):
            self.shardings[argument] = sharding
            values[argument] = self.handed_out(whole, sharding)
        returned = self.block(block, values)
        return [
            self.put_together(parts, sharding)
            for parts, sharding in zip(returned, _of_function(main, "res_attrs"), strict=True)
        ]

    def handed_out(self, whole: Array, sharding: Sharding) -> Parts:
        """Each device's part; of a partial sum, random addends."""
        parts = [self.part(whole, sharding, at) for at in self.coordinates]
        for axis in sharding.unreduced:
            for at, device in zip(self.coordinates, range(len(parts)), strict=True):
                if at[axis]:
                    first = self.index({**at, axis: 0})
                    addend = self.random.standard_normal(parts[device].shape)
                    parts[first] = parts[first] - addend
                    parts[device] = addend
        return parts

    def put_together(self, parts: Parts, sharding: Sharding) -> Array:
        for axis in sharding.unreduced:
            parts = self.all_reduce(parts, [axis])
        wholes = self.wholes(parts, sharding)
        for whole in wholes[1:]:
            np.testing.assert_allclose(whole, wholes[0], err_msg="devices disagree", rtol=1e-9, atol=1e-9)
        return wholes[0]

    def index(self, at: Mapping[str, int]) -> int:
        return self.coordinates.index(dict(at))

    def place(self, axes: Sequence[str], at: Mapping[str, int]) -> tuple[int, int]:
        """Which of how many shards a device has, axes major to minor."""
        number, count = 0, 1
        for axis in axes:
            number, count = number * self.axes[axis] + at[axis], count * self.axes[axis]
        return number, count

    def part(self, whole: Array, sharding: Sharding, at: Mapping[str, int]) -> Array:
        for dim, axes in enumerate(sharding.dims):
            number, count = self.place(axes, at)
            whole = np.split(whole, count, dim)[number]
        return whole

    def wholes(self, parts: Parts, sharding: Sharding) -> Parts:
        """By device: the value put together from the devices that differ from it along the splitting axes only."""
        used = [axis for dim in sharding.dims for axis in dim]
        found: Parts = []
        for at in self.coordinates:
            shape = [
                size * self.place(axes, at)[1]
                for size, axes in zip(parts[0].shape, sharding.dims, strict=True)
            ]
            whole = np.zeros(shape)
            for other, mine in zip(self.coordinates, parts, strict=True):
                if all(other[axis] == at[axis] for axis in self.axes if axis not in used):
                    slices = []
                    for size, axes in zip(mine.shape, sharding.dims, strict=True):
                        number, _ = self.place(axes, other)
                        slices.append(slice(number * size, (number + 1) * size))
                    whole[tuple(slices)] = mine
            found.append(whole)
        return found

    def moved(self, parts: Parts, before: Sharding, after: Sharding) -> Parts:
        wholes = self.wholes(parts, before)
        return [self.part(whole, after, at) for whole, at in zip(wholes, self.coordinates, strict=True)]

    def all_reduce(self, parts: Parts, axes: Sequence[str]) -> Parts:
        def together(at: Mapping[str, int], other: Mapping[str, int]) -> bool:
            return all(at[axis] == other[axis] for axis in self.axes if axis not in axes)

        return [
            sum(
                (p for p, other in zip(parts, self.coordinates, strict=True) if together(at, other)),
                np.zeros(()),
            )
            for at in self.coordinates
        ]

    def collective(self, op: ir.Operation, parts: Parts) -> Parts:
        before, after = self.shardings[op.operands[0]], Sharding(str(op.attributes["out_sharding"]))
        kind = op.name.removeprefix("sdy.")
        match kind:
            case "all_reduce":
                return self.all_reduce(parts, _AXIS.findall(str(op.attributes["reduction_axes"])))
            case "reduce_scatter":
                summed = self.all_reduce(parts, _AXIS.findall(str(op.attributes["reduce_scatter_axes"])))
                return self.moved(summed, before, after)
            case "replicated_to_unreduced" | "sharded_to_unreduced":
                axes = _AXIS.findall(str(op.attributes["axes"]))
                wholes = self.moved(parts, before, after)
                mine = self.moved([np.ones_like(part) for part in parts], before, after)
                if kind == "sharded_to_unreduced":
                    mine = [
                        self._own(before, after, part, at)
                        for part, at in zip(wholes, self.coordinates, strict=True)
                    ]
                else:
                    mine = [
                        m * all(at[a] == 0 for a in axes)
                        for m, at in zip(mine, self.coordinates, strict=True)
                    ]
                return [whole * mask for whole, mask in zip(wholes, mine, strict=True)]
            case _:
                assert kind in ("all_gather", "all_slice", "all_to_all", "collective_permute"), kind
                return self.moved(parts, before, after)

    def _own(self, before: Sharding, after: Sharding, part: Array, at: Mapping[str, int]) -> Array:
        """Ones where a device had the element before."""
        numbers = np.indices(part.shape)
        mask = np.ones(part.shape, dtype=bool)
        for dim, (had, has) in enumerate(zip(before.dims, after.dims, strict=True)):
            number, count = self.place(had[len(has) :], at)
            mask &= numbers[dim] // (part.shape[dim] // count) == number
        return mask.astype(np.float64)

    def block(self, block: ir.Block, values: dict[object, Parts]) -> list[Parts]:
        for view in block.operations:
            op = view.operation
            operands = [values[operand] for operand in op.operands]
            if op.name.endswith("return"):
                return operands
            if op.name == "stablehlo.while":
                results = self.loop(op, operands, values)
            elif op.name.startswith("sdy."):
                results = [self.collective(op, operands[0])]
            else:
                shapes = self.local_shapes(op)
                results = [
                    [
                        _LOCAL[op.name](op, shapes, *(o[device] for o in operands))
                        for device in range(len(self.coordinates))
                    ]
                ]
            for result, parts, sharding in zip(op.results, results, _shardings_of(op), strict=True):
                values[result], self.shardings[result] = parts, sharding
        raise AssertionError("blocks end in a return")

    def loop(self, op: ir.Operation, state: list[Parts], values: dict[object, Parts]) -> list[Parts]:
        condition, body = (region.blocks[0] for region in op.regions)
        for block in (condition, body):
            self.shardings.update(zip(block.arguments, _shardings_of(op), strict=True))
        while True:
            (goes_on,) = self.block(
                condition, {**values, **dict(zip(condition.arguments, state, strict=True))}
            )
            if not goes_on[0]:
                return state
            state = self.block(body, {**values, **dict(zip(body.arguments, state, strict=True))})

    def local_shapes(self, op: ir.Operation) -> tuple[int, ...]:
        (sharding,) = _shardings_of(op)
        sizes = ir.RankedTensorType(op.results[0].type).shape
        counts = (self.place(axes, self.coordinates[0])[1] for axes in sharding.dims)
        return tuple(size // count for size, count in zip(sizes, counts, strict=True))


def _of_function(main: ir.Operation, key: str) -> list[Sharding]:
    return [Sharding(str(ir.DictAttr(each)["sdy.sharding"])) for each in ir.ArrayAttr(main.attributes[key])]


def _shardings_of(op: ir.Operation) -> list[Sharding]:
    for key in ("out_sharding", "sharding"):
        if key in op.attributes:
            return [Sharding(str(op.attributes[key]))]
    if "sdy.sharding" not in op.attributes:  # scalars
        return [Sharding("[]") for _ in op.results]
    each = re.findall(r"<@\w+, (\[.*?\](?:, \w+=\{[^}]*\})*)>", str(op.attributes["sdy.sharding"]))
    return [Sharding(text) for text in each]


Local = Callable[..., Array]


def _numbers(op: ir.Operation, key: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[key]))


def _dot(op: ir.Operation, shape: tuple[int, ...], a: Array, b: Array) -> Array:
    lhs, rhs = (
        [int(n) for n in found.split(",")]
        for found in re.findall(
            r"contracting_dimensions = \[([\d, ]+)\]", str(op.attributes["dot_dimension_numbers"])
        )
    )
    return np.tensordot(a, b, (lhs, rhs))


def _constant(op: ir.Operation, shape: tuple[int, ...]) -> Array:
    value = str(ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()).split(" ", 1)[0]
    return np.full(shape, float(value))


def _broadcast(op: ir.Operation, shape: tuple[int, ...], a: Array) -> Array:
    dims = _numbers(op, "broadcast_dimensions")
    return np.broadcast_to(
        a.reshape([a.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]), shape
    )


def _unary(function: Callable[[Array], Array]) -> Local:
    def local(op: ir.Operation, shape: tuple[int, ...], a: Array) -> Array:
        return function(a)

    return local


def _binary(function: Callable[[Array, Array], Array]) -> Local:
    def local(op: ir.Operation, shape: tuple[int, ...], a: Array, b: Array) -> Array:
        return function(a, b)

    return local


def _transpose(op: ir.Operation, shape: tuple[int, ...], a: Array) -> Array:
    return np.transpose(a, _numbers(op, "permutation"))


_LOCAL: dict[str, Local] = {
    "stablehlo.add": _binary(np.add),
    "stablehlo.subtract": _binary(np.subtract),
    "stablehlo.multiply": _binary(np.multiply),
    "stablehlo.maximum": _binary(np.maximum),
    "stablehlo.compare": _binary(np.less),
    "stablehlo.negate": _unary(np.negative),
    "stablehlo.tanh": _unary(np.tanh),
    "stablehlo.transpose": _transpose,
    "stablehlo.dot_general": _dot,
    "stablehlo.constant": _constant,
    "stablehlo.broadcast_in_dim": _broadcast,
}
