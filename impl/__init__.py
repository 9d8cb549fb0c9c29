"""Implementations under test: the adapter contract, the production cache, and adapters to other caches."""
