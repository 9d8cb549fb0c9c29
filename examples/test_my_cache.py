"""A cache in a test suite: one line, one test for each law.

python -m pytest examples/test_my_cache.py --kv-budget 3
"""

from kvproof import cache_tests
from kvproof.impl.production.adapter import SynchronousAdapter

TestProduction = cache_tests(SynchronousAdapter)
