"""Plotly figures, one file for each question that they answer.

Backgrounds are transparent and lines mid-toned, so that one figure serves a light and a dark page. Traces carry their
method as `legendgroup`, by which the page shows and hides methods.
"""

from indexmem.report.figures.curves import AXES, score_curve
from indexmem.report.figures.tradeoffs import score_by_bytes
from indexmem.report.figures.training import loss_curve

__all__ = ["AXES", "loss_curve", "score_by_bytes", "score_curve"]
