"""Plans of a load: the ranges of offsets that it reads, and the window that is replaced."""
