"""XLA as judge: compiles with the Shardy partitioner and runs on virtual CPU devices, in child processes."""

from autoshard.xla.compare import Row
from autoshard.xla.hlo import collectives_of
from autoshard.xla.report import VerifyReport
from autoshard.xla.verify import run, verify

__all__ = ["Row", "VerifyReport", "collectives_of", "run", "verify"]
