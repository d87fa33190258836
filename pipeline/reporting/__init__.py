"""Results as people read them: tables, plots, pages, and MLflow's view."""
