"""Over which range of a hardware figure a plan stays the best, as post-optimal analysis (ranging) of linear programs asks it."""

from autoshard.ranging.bracket import Look, Side, search_side
from autoshard.ranging.figures import FIGURES, ScaledFigure, figures_of_plan
from autoshard.ranging.sensitivity import sensitivity_of

__all__ = [
    "FIGURES",
    "Look",
    "ScaledFigure",
    "Side",
    "figures_of_plan",
    "search_side",
    "sensitivity_of",
]
