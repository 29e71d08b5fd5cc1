"""The directory on disk: its layout and manifest; how files are written, checked and mapped; loading."""
