"""Constraints that ask for nothing are not read: jax writes one after every op of a manual computation that leaves axes free."""

from autoshard.mlir.read import read
from autoshard.mlir.source import resolve_mesh
from tests.mlir.modules import main_of, source_of

T = "tensor<8x16xf32>"


def test_open_constraints_without_axes_are_dropped() -> None:
    """In loops too; those that close a dimension or name an axis stay."""
    source = source_of(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %o = sdy.sharding_constraint %a <@mesh, [{{?}}, {{?}}]> : {T}
            %s = sdy.sharding_constraint %o <@mesh, [{{"x", ?}}, {{?}}]> : {T}
            %c = sdy.sharding_constraint %s <@mesh, [{{?}}, {{}}]> : {T}
            %r:2 = stablehlo.while(%i = %zero, %x = %c) : tensor<i32>, {T}
              cond {{ %j = sdy.sharding_constraint %i <@mesh, []> : tensor<i32>
                      %go = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ %w = stablehlo.sine %x : {T} %y = sdy.sharding_constraint %w <@mesh, [{{?}}, {{?}}]> : {T}
                    stablehlo.return %i, %y : tensor<i32>, {T} }}
            return %r#1 : {T}"""
        )
    )
    listing, _ = read(source, resolve_mesh(source, None))
    names = [op.name.removeprefix("stablehlo.") for op in listing.ops]
    assert names == ["constant", "sdy.sharding_constraint", "sdy.sharding_constraint", "compare", "sine"]
