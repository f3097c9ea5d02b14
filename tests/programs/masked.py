"""Heads of attention whose scores are masked in float32, and what goes back to queries and values."""


def masked_heads(*, batch: int = 16, words: int = 512, queries: int = 1, is_plain: bool = True) -> str:
    """Eight heads of keys with so many heads of queries each; of one each, without the dimension of these where `is_plain`."""
    q, k = f"tensor<{batch}x{words}x8x{queries}x64xbf16>", f"tensor<{batch}x{words}x8x64xbf16>"
    made = f"tensor<{batch}x8x{words}x{words}x{queries}xbf16>"
    plain = f"tensor<{batch}x8x{words}x{words}xbf16>"
    scores = f"tensor<{batch}x{8 * queries}x{words}x{words}xbf16>"
    wide, rows = scores.replace("bf16", "f32"), f"tensor<{batch}x{8 * queries}x{words}xf32>"
    turned = f"tensor<{batch}x8x{queries}x{words}x{words}xbf16>"
    one = f"tensor<{batch}x{words}x8x64xbf16>"
    if queries == 1 and is_plain:
        product = f"""%q1 = stablehlo.reshape %q : ({q}) -> {one}
      %n = stablehlo.dot_general %q1, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : ({one}, {k}) -> {plain}"""
    else:
        product = f"""%n0 = stablehlo.dot_general %k, %q, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [4] : ({k}, {q})
        -> tensor<{batch}x8x{words}x{words}x{queries}xbf16>
      %n1 = stablehlo.transpose %n0, dims = [0, 1, 4, 3, 2] : ({made}) -> {turned}
      %n = stablehlo.reshape %n1 : ({turned}) -> {scores}"""
    values = f"tensor<{batch}x{8 * queries}x{words}x64xbf16>"
    square, mask = f"tensor<{words}x{words}xi1>", wide.replace("f32", "i1")
    over = "batching_dims = [0, 1] x [0, 1]"
    return f"""
    sdy.mesh @mesh = <["x"=4, "y"=4]>
    func.func @main(%q: {q}, %k: {k}, %v: {values}, %g: {values}, %mask: {square})
        -> ({values}, {values}, {scores}) {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %least = stablehlo.constant dense<-1.0e30> : {wide}
      {product}
      %w = stablehlo.convert %n : ({scores}) -> {wide}
      %masks = stablehlo.broadcast_in_dim %mask, dims = [2, 3] : ({square}) -> {mask}
      %s = stablehlo.select %masks, %w, %least : {mask}, {wide}
      %max = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [3] : ({wide}, tensor<f32>) -> {rows}
      %maxima = stablehlo.broadcast_in_dim %max, dims = [0, 1, 2] : ({rows}) -> {wide}
      %less = stablehlo.subtract %s, %maxima : {wide}
      %exp = stablehlo.exponential %less : {wide}
      %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add across dimensions = [3] : ({wide}, tensor<f32>) -> {rows}
      %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1, 2] : ({rows}) -> {wide}
      %share = stablehlo.divide %exp, %sums : {wide}
      %p = stablehlo.convert %share : ({wide}) -> {scores}
      %o = stablehlo.dot_general %p, %v, {over}, contracting_dims = [3] x [2] : ({scores}, {values}) -> {values}
      %dv = stablehlo.dot_general %p, %g, {over}, contracting_dims = [2] x [2] : ({scores}, {values}) -> {values}
      %dp = stablehlo.dot_general %g, %v, {over}, contracting_dims = [3] x [3] : ({values}, {values}) -> {scores}
      %dw = stablehlo.convert %dp : ({scores}) -> {wide}
      %parts = stablehlo.multiply %dw, %exp : {wide}
      %part = stablehlo.reduce(%parts init: %zero) applies stablehlo.add across dimensions = [3] : ({wide}, tensor<f32>) -> {rows}
      %whole = stablehlo.broadcast_in_dim %part, dims = [0, 1, 2] : ({rows}) -> {wide}
      %beyond = stablehlo.subtract %dw, %whole : {wide}
      %both = stablehlo.multiply %beyond, %share : {wide}
      %ds = stablehlo.convert %both : ({wide}) -> {scores}
      return %o, %dv, %ds : {values}, {values}, {scores}
    }}"""
