"""What an engine would do with a checkpoint, from its headers and text files; no torch."""
