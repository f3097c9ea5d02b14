"""Equal changes of one value, against Shardy's own passes."""

from autoshard import pipeline


def test_changes_beside_readers_of_what_there_is() -> None:
    """Two products read a value in another sharding, other kernels as it settles: both changes are paid, and one is written."""
    wide, narrow = "tensor<4096x512xf32>", "tensor<512x512xf32>"
    rows, columns = '#sdy.sharding<@mesh, [{"x", "y"}, {}]>', '#sdy.sharding<@mesh, [{}, {"x", "y"}]>'
    text = f"""
      sdy.mesh @mesh = <["x"=2, "y"=4]>
      func.func @main(%a: {wide} {{sdy.sharding = {columns}}}, %b: {wide} {{sdy.sharding = {rows}}}, %c: {narrow})
          -> ({wide} {{sdy.sharding = {columns}}}, tensor<512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}]>}},
              {narrow} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}, {wide} {{sdy.sharding = {rows}}}) {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.add %a, %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{"x", "y"}}]>]>}} : {wide}
        %1 = stablehlo.exponential %0 : {wide}
        %2 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
          : ({wide}, tensor<f32>) -> tensor<512xf32>
        %3 = stablehlo.dot_general %0, %b, contracting_dims = [0] x [0] : ({wide}, {wide}) -> {narrow}
        %4 = stablehlo.dot_general %0, %c, contracting_dims = [1] x [0] : ({wide}, {narrow}) -> {wide}
        return %1, %2, %3, %4 : {wide}, tensor<512xf32>, {narrow}, {wide}
      }}"""
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), pipeline.Request(hardware="tpu-v5e")))
    changes = [len(one.emitted) for one in plan.price.collectives if one.kind == "all_to_all"]
    assert changes == [1, 0]
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed
