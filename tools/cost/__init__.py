"""The modelled times of the kernels, their goals, and published numbers beside them."""
