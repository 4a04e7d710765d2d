"""How much is done to refine rotations; the dry run counts it, so no torch here."""

# Tokens of the float pass over the text.
TOKENS = 8192
# Elements of the activations of one axis that are learned from, and of all weights of an axis if
# they are looked at.
ELEMENTS = 1 << 24
# Steps with half of the rows, and half as many with all: 97 % of what 160 gain.
STEPS = 60
# Order of the largest blocks.
BLOCK = 256
