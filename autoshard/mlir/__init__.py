"""The only room that sees MLIR: reading modules, running Shardy's passes, writing plans back."""
