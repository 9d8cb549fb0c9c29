"""Paged kernels, their reference, and the IR machine."""
