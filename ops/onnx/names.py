"""Domain and versions of the exported functions."""

from __future__ import annotations

DOMAIN = "glm5.ascend"
DOMAIN_VERSION = 1
# The oldest that has every operator used: bitwise operators and reductions over given axes are 18.
OPSET = 18
# The oldest with functions; 9 only adds default values of their attributes.
IR_VERSION = 8
HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}, "{DOMAIN}" : {DOMAIN_VERSION}]>'
