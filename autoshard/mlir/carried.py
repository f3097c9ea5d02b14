"""What loops carry unchanged, as XLA has it: read in the loop's body from outside, and handed to the loop again once shardings are known.

A value that one sharding is asked of there, by however many constraints, is handed to the loop so, and carried so; where several are
asked of it, or none, it is carried as it comes. What the body hands on behind a constraint is not unchanged. Where what is handed is a
product without a constraint of its own, XLA may gather what is multiplied in its place. Seen in what libtpu 0.0.51 compiles for v5e 4x4:
eight small loops, and plans of recurrent cells whose stacks one loop gathered once and the next in every trip.
"""

from autoshard.mlir.context import ir
from autoshard.mlir.walk import Flow, Walked

_CONSTRAINT = "sdy.sharding_constraint"


def constrain_what_loops_are_handed(walked: Walked) -> None:
    """Put the constraint on a value that a loop carries unchanged before the loop, in place, where all in the loop are the same."""
    asked = [(flow, found) for flow in walked.flows if (found := _asked(flow)) is not None]
    for flow, sharding in asked:
        operand = flow.owner.operands[flow.index]
        made = ir.Operation.create(
            _CONSTRAINT,
            [operand.type],
            [operand],
            {"sharding": sharding},
            loc=flow.owner.location,
            ip=ir.InsertionPoint(flow.owner),
        )
        flow.owner.operands[flow.index] = made.result


def _asked(flow: Flow) -> ir.Attribute | None:
    """The one sharding that constraints in a loop ask of what it carries unchanged."""
    if flow.kind != "while" or any(source.value != flow.target for source in flow.sources[1:]):
        return None
    carried = [region.blocks[0].arguments[flow.index] for region in flow.owner.regions]
    users = [use.owner for value in carried for use in value.uses]
    asked = {user.attributes["sharding"] for user in users if user.name == _CONSTRAINT}
    return asked.pop() if len(asked) == 1 else None
