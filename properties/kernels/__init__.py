"""The kernel laws: they hold for the plain kernels and each seeded bug breaks its own."""
