"""Results as people read them: tables on terminals, and the report's pages, plots and files of data.

``loading.load`` reads a folder of results into frames, ``content.compose`` works out everything that the
report says, and ``report_page.page`` lays it out. ``headlines`` decides which row of a point counts. Sweeps,
finals, comparisons and MLflow show their results by the same ``tables``, ``cells`` and ``lines``.
"""
