"""Plans and checks as text and JSON."""

from autoshard.report.breakdown import breakdown_data, print_breakdown
from autoshard.report.clash import clash_data, clash_lines, clash_text
from autoshard.report.comparison import comparison_data, comparison_text
from autoshard.report.held import held_data, print_held
from autoshard.report.sensitivity import sensitivity_data, sensitivity_text
from autoshard.report.summary import print_summary, shape_text, summary, summary_data
from autoshard.report.units import bytes_text, parse_bytes, time_text
from autoshard.report.why import why_data, why_text

__all__ = [
    "breakdown_data",
    "bytes_text",
    "clash_data",
    "clash_lines",
    "clash_text",
    "comparison_data",
    "comparison_text",
    "held_data",
    "parse_bytes",
    "print_breakdown",
    "print_held",
    "print_summary",
    "sensitivity_data",
    "sensitivity_text",
    "shape_text",
    "summary",
    "summary_data",
    "time_text",
    "why_data",
    "why_text",
]
