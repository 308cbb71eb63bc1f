"""Words and pictures: the HTML report, its Markdown sister, and a run's progress in a terminal."""

from __future__ import annotations

from clam_dist.reporting.markdown import markdown_report
from clam_dist.reporting.report import write_report

__all__ = ["markdown_report", "write_report"]
