"""What nobody reads is dropped before planning."""

from autoshard.mlir.read import read
from autoshard.mlir.source import resolve_mesh
from tests.mlir.modules import main_of, source_of

T = "tensor<8x16xf32>"


def test_only_what_is_read_or_asked_for_is_planned() -> None:
    """A chain that ends in nothing goes, in loops too; what has a sharding of the user's stays."""
    source = source_of(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %d0 = stablehlo.tanh %a : {T}
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %d1 = stablehlo.reduce(%d0 init: %z) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> tensor<8xf32>
            %k = stablehlo.cosine %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : {T}
            %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {T}
              cond {{ %go = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ %w = stablehlo.sine %x : {T} %y = stablehlo.abs %x : {T} stablehlo.return %i, %y : tensor<i32>, {T} }}
            return %r#1 : {T}"""
        )
    )
    mesh = resolve_mesh(source, None)
    listing, _ = read(source, mesh, drops_dead=True)
    names = [op.name.removeprefix("stablehlo.") for op in listing.ops]
    assert names == ["constant", "cosine", "compare", "abs"]
    assert len(read(source, mesh)[0].ops) == len(names) + 4
