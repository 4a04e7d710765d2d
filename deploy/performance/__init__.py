"""How fast is it: the time of a step, and a simulation of serving."""
