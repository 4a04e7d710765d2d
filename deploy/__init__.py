"""From a checkpoint and a machine to a running server."""
