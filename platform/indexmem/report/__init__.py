"""Pages, figures and files of results."""

from indexmem.extras import need

need("report", "plotly")
