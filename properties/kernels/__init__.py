"""The kernel laws: they hold for the plain kernels and each seeded fault breaks its own."""
