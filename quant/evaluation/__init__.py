"""Quality of a quantised checkpoint against the one it was made from, layer by layer."""
