"""What a user can do wrong, as exceptions that carry what was written, where, why it cannot be, and what to do.

Anything else that is raised is our own fault.
"""


class AutoshardError(Exception):
    """A request that cannot be honoured as written; the command line prints it as one block and exits with 2."""

    def __init__(self, reason: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.reason}" if self.where else self.reason]
        if self.fix:
            lines.append(f"  {self.fix}")
        return "\n".join(lines)


class ClashError(AutoshardError):
    """Demands that contradict each other, whatever the budget; `autoshard explain --infeasible` finds the fewest of them."""


class NativeAbortError(AutoshardError):
    """A native compiler pass killed its worker process; `reason` names the pass and what it printed."""
