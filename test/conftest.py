"""Puts this folder on the path of every test: `covering` is shared by all rooms."""
