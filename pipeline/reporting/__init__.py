"""Presentation of results: tables on terminals, and the report's pages, plots and CSV files.

``loading.load`` reads a folder of results into frames, ``content.compose`` computes the report's content, and
``report_page.page`` lays it out. ``headlines`` decides which row of a point is shown. Sweeps, finals,
comparisons and MLflow show their results through the same ``tables``, ``cells`` and ``lines``.
"""
