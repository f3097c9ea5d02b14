"""Plans and demands in the sharding dialect of upstream MLIR, which jaxlib's bindings do not know: `mesh`, later renamed `shard`."""
