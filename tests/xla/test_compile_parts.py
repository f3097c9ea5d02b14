"""The parts of `compile` that need no compiler: targets, memory, schedules, labels, predictions, differences."""

from pathlib import Path

import pytest

from autoshard import AutoshardError
from autoshard.plans import EmittedCollective, Plan, PlannedCollective, Price
from autoshard.xla.beside import by_kind, differences
from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.compiling import dumped_file
from autoshard.xla.interconnect import scheduler_ns
from autoshard.xla.memory import memory_of_assignment, out_of_memory
from autoshard.xla.prediction import PredictedCollective, predicted_collectives
from autoshard.xla.schedule import read_schedule
from autoshard.xla.targets import parse_target


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cpu:8", 8),
        ("tpu:v5e:4x4", 16),
        ("tpu:v5p:2x2x4", 16),
        ("tpu:v4:2x2x1", 4),
        ("tpu:tpu7x:2x2x1", 8),
        ("gpu:h100:2x8", 16),
    ],
)
def test_targets(text: str, devices: int) -> None:
    """Devices as libtpu makes them: a chip of v4 is one, one of tpu7x two."""
    target = parse_target(text)
    assert (str(target), target.num_devices) == (text, devices)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu:h100", "cannot read the number of GPUs ''"),
        ("gpu:a1:8", r"no GPU 'a1'\n.*a100, h100, h200, b200"),
        ("npu", r"no such target 'npu'\n.*tpu:FAMILY:TOPOLOGY"),
        ("cpu:none", "as in cpu:8"),
        ("cpu:0", "from 1 on"),
        ("tpu:v9:4x4", r"no TPU family 'v9'\n.*v5e, v5p, v6e"),
        ("tpu:v5e", "cannot read the topology ''"),
        ("tpu:v5e:16", "cannot read the topology '16'"),
        ("tpu:v5e:4x0", "cannot read the topology '4x0'"),
        ("tpu:v5e:4x4x4", "has 3 dimensions, the torus 2"),
        ("tpu:v5e:32x32", "longer than 16 chips"),
    ],
)
def test_targets_that_do_not_exist(text: str, message: str) -> None:
    """The error lists those that do."""
    with pytest.raises(AutoshardError, match=message):
        parse_target(text)


def test_the_module_among_its_dumps(tmp_path: Path) -> None:
    """For tpu7x, XLA takes collectives out of a module and compiles them by themselves, with dumps of the same endings."""
    for number, name in ((2, "extracted"), (0, "mlp")):
        (tmp_path / f"module_{number:04}.{name}.cl_1.after_optimizations-buffer-assignment.txt").touch()
    (tmp_path / "module_0002.extracted.cl_1.after_all.txt").touch()
    found = dumped_file(tmp_path, "after_optimizations-buffer-assignment.txt")
    assert found is not None
    assert found.name.startswith("module_0000.mlp")
    assert dumped_file(tmp_path, "after_all.txt") is None


ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, page 0, thread-local:
allocation 1: size 4096, page 0, parameter 0, shape |f32[32,32]| at ShapeIndex {}:
 value: <1 p @0> (size=4096,offset=0): f32[32,32]
allocation 2: size 1024, page 0, parameter 1, shape |f32[256]| at ShapeIndex {}, maybe-live-out:
allocation 3: size 64, page 0, parameter 2, shape |f32[16]| at ShapeIndex {}:
allocation 4: size 128, page 0, output shape is |(f32[256], f32[8])|, maybe-live-out:
allocation 5: size 2048, page 0, preallocated-temp:
allocation 6: size 9999, color 1, page 0, preallocated-temp:
"""


def test_memory_of_a_buffer_assignment() -> None:
    """Argument + output - alias + temporary is the sum of the allocations in main memory, those local to a thread left out."""
    memory = memory_of_assignment(ASSIGNMENT)
    assert (memory.argument_bytes, memory.output_bytes, memory.alias_bytes) == (5184, 1152, 1024)
    assert memory.temporary_bytes == 2048
    assert memory.total_bytes == 4096 + 1024 + 64 + 128 + 2048
    assert memory_of_assignment(ASSIGNMENT, ignored_parameter=2).argument_bytes == 5120


def test_out_of_memory() -> None:
    """Both of the ways in which XLA:TPU says so, and other words, which say nothing of it."""
    early = "the total memory required for HLO temporaries (2.50G) exceeds available HBM (1.00G)."
    late = "Ran out of memory in memory space hbm. Used 3.00M of 2.00M hbm. Exceeded hbm capacity by 1.00M."
    assert out_of_memory(early) == (2684354560, 1 << 30)
    assert out_of_memory(late) == (3 << 20, 2 << 20)
    assert out_of_memory("Used 3.00M of 2.00M vmem") is None


def collective(
    name: str, kind: str = "all-reduce", *, buffers: tuple[int, ...] = (64,), **others: object
) -> CompiledCollective:
    fields: dict[str, object] = {
        "kind": kind,
        "name": name,
        "priced_as": name,
        "dtype": "f32",
        "buffers": buffers,
        "result_bytes": sum(buffers),
        "group_size": 4,
        "groups": 4,
        "group": (0, 1, 2, 3),
        "times": 1,
        "is_asynchronous": False,
        "where": (name,) * len(buffers),
    }
    return CompiledCollective(**{**fields, **others})  # type: ignore[arg-type]


SCHEDULE = """hlo_module {
  name: "m"
  entry_computation_name: "main"
  computations {
    name: "inner"
    instructions {
      name: "sum"
      opcode: "all-reduce"
      id: 1
    }
    id: 10
  }
  computations {
    name: "body"
    instructions {
      name: "fused"
      opcode: "fusion"
      id: 2
      called_computation_ids: 10
    }
    id: 11
  }
  computations {
    name: "main"
    instructions {
      name: "both"
      opcode: "all-to-all"
      id: 3
    }
    instructions {
      name: "loop"
      opcode: "while"
      id: 4
      called_computation_ids: 11
    }
    id: 12
  }
}
computation_schedules {
  computation_id: 11
  instructions {
    id: 2
    start_timestamp_cycles: 100
    end_timestamp_cycles: 400
  }
  scheduler_statistics {
    all_gather_wasted_cycles: 50
    total_wasted_cycles: 50
    total_cycles: 400
  }
  cycles_per_microsecond: 1000
}
computation_schedules {
  computation_id: 12
  instructions {
    id: 3
    end_timestamp_cycles: 70
  }
  instructions {
    id: 4
    start_timestamp_cycles: 70
    end_timestamp_cycles: 470
  }
  scheduler_statistics {
    total_cycles: 470
  }
  cycles_per_microsecond: 1000
}
"""


def test_schedule() -> None:
    """Loops count as often as they run, fusions by what is in them, combined collectives (priced as their first buffer) with all."""
    found = read_schedule(SCHEDULE, [collective("both", "all-to-all", buffers=(30, 40))], {"loop": 3})
    assert found.synchronous_ns == {"all-reduce": 900, "all-to-all": round(70 * 70 / 30)}
    assert found.exposed_ns == {"all-gather": 150}
    assert found.total_ns == 470
    assert found.scheduled == {"fused", "both", "loop"}


def test_constraints_stand_for_their_readers() -> None:
    """A plan names the op that reads; the module as written has the constraint in between, which its own price names."""
    compiled = [collective("one", where=("constraint",))]
    readers = {"constraint": "reader"}
    assert differences([predicted("all-reduce", 64, "reader")], compiled, readers) == ()
    (smaller,) = differences([predicted("all-reduce", 60, "constraint")], compiled, readers)
    assert (smaller.predicted_where, smaller.compiled_where) == ("constraint", "constraint")


def test_price_of_what_has_no_schedule() -> None:
    """An all-reduce moves everything twice over the axes that its group fills; one over part of an axis fills none."""
    target = parse_target("tpu:v5e:4x4")
    size = 93_300
    along = collective("a", buffers=(size,))
    square = collective("b", buffers=(size,), group=tuple(range(16)), group_size=16)
    ids = range(16)
    assert scheduler_ns(along, target, ids) == pytest.approx(2000)
    assert scheduler_ns(square, target, ids) == pytest.approx(1000)
    permute = collective("c", "collective-permute", buffers=(size,))
    assert scheduler_ns(permute, target, ids) == pytest.approx(2000)
    assert scheduler_ns(along, parse_target("tpu:v3:2x2x1"), ids) is None


def planned(*collectives: PlannedCollective, lowering: str = "shardy") -> Plan:
    price = Price(10, 4, 6, 100, collectives)
    return Plan(
        "", (("x", 4), ("y", 8)), "mesh", "tpu-v5e", (4, 8), "xla", lowering, None, (), "feasible", "", price, 0, 0, (), (), {}, (), ()
    )  # fmt: skip


def test_predictions_in_the_compilers_terms() -> None:
    """What the plan says that is emitted, and nothing for what sends nothing."""
    plan = planned(
        PlannedCollective(
            "all_gather",
            ("x", "y:(2)4"),
            1600,
            1,
            3,
            "a",
            emitted=(EmittedCollective("all_gather", 16, 100),),
        ),
        PlannedCollective("all_slice", ("x",), 1600, 1, 1, "b"),
        PlannedCollective(
            "halo_exchange", ("y",), 32, 1, 2, "c", emitted=(EmittedCollective("collective_permute", 8, 32),)
        ),
        PlannedCollective(
            "reduce_scatter", ("y",), 64, 1, 1, "d", emitted=(EmittedCollective("all_reduce", 8, 64),)
        ),
        PlannedCollective(
            "all_gather", ("one",), 64, 0, 1, "e", emitted=(EmittedCollective("all_gather", 1, 64),)
        ),
    )
    gather, halo, scatter = predicted_collectives(plan)
    assert (gather.kind, gather.group_size, gather.operand_bytes, gather.total_bytes) == (
        "all-gather",
        16,
        100,
        300,
    )
    assert (halo.kind, halo.total_bytes) == ("collective-permute", 64)
    assert (scatter.kind, scatter.operand_bytes) == ("all-reduce", 64)


def predicted(kind: str, size: int, where: str, group_size: int = 4) -> PredictedCollective:
    return PredictedCollective(kind, ("x",), group_size, size, 1, where)


def test_differences_of_combined_collectives() -> None:
    """What XLA combines and names after one op is told apart by its bytes."""
    expected = [
        predicted("all-reduce", 64, "a"),
        predicted("all-reduce", 32, "b"),
        predicted("all-reduce", 4, "c"),
    ]
    compiled = [collective("combined", buffers=(32, 64, 5), where=("a",))]
    found = differences(expected, compiled)
    assert [(side.difference_bytes, side.predicted_where, side.compiled_where) for side in found] == [
        (5, "", "a"),
        (-4, "c", ""),
    ]


def test_differences_op_by_op() -> None:
    """The same op first, then the same bytes, then each side alone; the largest difference leads."""
    expected = [
        predicted("all-reduce", 64, "a"),
        predicted("all-reduce", 32, "b"),
        predicted("all-gather", 100, "c"),
        predicted("all-gather", 8, "d"),
    ]
    compiled = [
        collective("combined", buffers=(64, 40), where=("a", "b")),
        collective("elsewhere", "all-gather", buffers=(100,), where=("c2",)),
        collective("more", "all-to-all", buffers=(500,), where=("e",)),
    ]
    found = differences(expected, compiled)
    assert [
        (side.kind, side.difference_bytes, side.predicted_where or side.compiled_where) for side in found
    ] == [
        ("all-to-all", 500, "e"),
        ("all-gather", -8, "d"),
        ("all-reduce", 8, "b"),
    ]
    kinds = by_kind(expected, compiled[:1])
    assert [(side.kind, side.predicted.count, side.compiled.count) for side in kinds] == [
        ("all-gather", 2, 0),
        ("all-reduce", 2, 1),
    ]


def test_other_groups_are_a_difference() -> None:
    """The same bytes for the same op among other devices are told of, on both sides; permutes have pairs, whatever the prediction says."""
    expected = [predicted("all-reduce", 64, "a", 16), predicted("collective-permute", 8, "b", 16)]
    compiled = [
        collective("one", where=("a",)),
        collective("two", "collective-permute", buffers=(8,), group_size=2, where=("b",)),
    ]
    assert [
        (side.kind, side.group_size, side.difference_bytes) for side in differences(expected, compiled)
    ] == [
        ("all-reduce", 4, 64),
        ("all-reduce", 16, -64),
    ]
    assert [(side.kind, side.group_size) for side in by_kind(expected, compiled)] == [
        ("all-reduce", 4),
        ("all-reduce", 16),
        ("collective-permute", 0),
    ]
