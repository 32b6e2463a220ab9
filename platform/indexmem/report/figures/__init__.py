"""Plotly figures, one file for each question that they answer.

Backgrounds are transparent and lines mid-toned, so that one figure serves a light and a dark page. Traces carry their
method as `legendgroup`, by which the page shows and hides methods.
"""
