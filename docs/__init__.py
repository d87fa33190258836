"""Pages, and the scripts and exercises that belong to them."""
