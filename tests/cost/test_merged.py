"""Readers that ask for the same change of sharding get one collective, as XLA merges equal operations."""

import pytest

from autoshard.check.merging import Asked, carried_out
from autoshard.cost.graph import Edge
from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.loops import Loop
from autoshard.cost.lowering import CollectivePrices, Lowering
from autoshard.cost.merged import Move, emitted_once
from autoshard.cost.reshard import ReshardPrices
from autoshard.mlir.passes import decompose_reshards
from autoshard.sharding import Mesh, TensorType, parse_sharding
from tests.cost.priced import HARDWARE, communication

MESH = Mesh.of([("x", 4), ("y", 4)])
WIDE, NARROW = TensorType((64, 1024), "f32"), TensorType((64, 1024), "bf16")
BODY = Loop(3, 9, 2)
SPLIT, ROWS, WHOLE = '[{"x", "y"}, {}]', '[{"x"}, {}]', "[{}, {}]"
Reader = tuple[str, TensorType, tuple[Loop, ...]]


def sent(readers: list[Reader], lowering: Lowering = "xla-tpu") -> list[list[int]]:
    """Operand bytes of what is emitted for each reader of one value, whose rows are split over both axes."""
    layouts = LayoutsByRank()
    layouts[2].ids_of([parse_sharding(text, MESH) for text in (SPLIT, ROWS, WHOLE)])
    reshards = ReshardPrices(
        MESH, CollectivePrices(communication(MESH), HARDWARE, lowering), layouts, decompose_reshards
    )
    origin = layouts[2].ids_of([parse_sharding(SPLIT, MESH)])
    targets = [layouts[2].ids_of([parse_sharding(target, MESH)]) for target, _, _ in readers]
    for target in targets:
        reshards.want(2, origin, target)
    reshards.resolve()
    moves = [
        Move(
            Edge(0, 0, 1 + i, 0, WIDE, travels, 1, 0, 1, ((i, 0),), 7, loops), int(origin[0]), int(target[0])
        )
        for i, ((_, travels, loops), target) in enumerate(zip(readers, targets, strict=True))
    ]
    return [[one.bytes for step in steps for one in step] for steps in emitted_once(reshards, moves)]


HELD = 16 * 1024  # bytes of f32 on a device
CASES: dict[str, tuple[list[Reader], list[list[int]]]] = {
    "the same": ([(WHOLE, WIDE, ()), (WHOLE, WIDE, ())], [[HELD], []]),
    "one of them wide": ([(WHOLE, NARROW, ()), (WHOLE, WIDE, ())], [[HELD], []]),
    "all narrow": ([(WHOLE, NARROW, ()), (WHOLE, NARROW, ())], [[HELD // 2], []]),
    "to different shardings": ([(WHOLE, WIDE, ()), (ROWS, WIDE, ())], [[HELD], [HELD]]),
    "in different bodies": ([(WHOLE, WIDE, ()), (WHOLE, WIDE, (BODY,))], [[HELD], [HELD]]),
}


@pytest.mark.parametrize(("readers", "expected"), CASES.values(), ids=CASES)
def test_equal_changes_are_carried_out_once(readers: list[Reader], expected: list[list[int]]) -> None:
    """In one body, as wide as the widest reader takes it."""
    assert sent(readers) == expected


def test_shardys_passes_merge_nothing() -> None:
    assert sent([(WHOLE, WIDE, ()), (WHOLE, WIDE, ())], "shardy") == [[HELD], [HELD]]


def test_the_checker_merges_first_steps_too() -> None:
    """A reader that goes on from where another one ends, and one of another value."""
    split, rows, whole = (parse_sharding(text, MESH) for text in (SPLIT, ROWS, WHOLE))
    asked = [
        Asked(1, frozenset(), (split, rows), NARROW),
        Asked(1, frozenset(), (split, rows, whole), WIDE),
        None,
        Asked(2, frozenset(), (split, rows), NARROW),
    ]
    assert carried_out(asked) == [[WIDE], [None, WIDE], [], [NARROW]]
