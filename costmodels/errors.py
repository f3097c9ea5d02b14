"""What a user of the cost models can do wrong."""


class HardwareError(ValueError):
    """A hardware profile, a topology or a group of mesh axes that cannot be honoured as written.

    `where` is the place (a file and line, or an argument), `reason` what is wrong with it, `fix` what to do.
    """

    def __init__(self, reason: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        first = f"{self.where}: {self.reason}" if self.where else self.reason
        return f"{first}\n  {self.fix}" if self.fix else first
