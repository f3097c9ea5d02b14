"""Plans and checks as text and JSON."""

from autoshard.report.clash import clash_data, clash_lines, clash_text
from autoshard.report.summary import print_summary, summary, summary_data
from autoshard.report.units import bytes_text, parse_bytes, time_text

__all__ = [
    "bytes_text",
    "clash_data",
    "clash_lines",
    "clash_text",
    "parse_bytes",
    "print_summary",
    "summary",
    "summary_data",
    "time_text",
]
