"""Models from and for other tools."""
