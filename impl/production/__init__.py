"""The production cache."""
