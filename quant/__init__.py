"""The quantiser: checkpoint in, checkpoint out."""
