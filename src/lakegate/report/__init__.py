"""The report of a pipeline's turns and commits: one HTML file that needs neither a server nor a network."""

from lakegate.report.data import COMPARISON, CommitRow, Comparison, ComparisonColumn, Outcome, ReportData, TurnRow
from lakegate.report.html_file import render

__all__ = ["COMPARISON", "CommitRow", "Comparison", "ComparisonColumn", "Outcome", "ReportData", "TurnRow", "render"]
