"""Shardy's passes as functions of records: what to ask of Shardy, in one place."""

from autoshard.mlir.explicit import collectives
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.propagate import propagation
from autoshard.mlir.reshards import decompose_reshards

__all__ = ["collectives", "decompose_reshards", "propagation", "run_isolated"]
