"""Watching a training from its run folder, without torch: what it has written, and a page that shows it."""
