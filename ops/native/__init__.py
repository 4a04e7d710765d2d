"""CPU kernels in C++: built on demand, chosen by instruction set at run time."""
