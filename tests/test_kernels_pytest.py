"""`kvproof.kernel_tests` and `--kv-target` for kernels: one item for each law."""

import pytest

from kvproof import kernel_tests
from kvproof.fuzz.kernels_check import missing
from kvproof.models.laws import KERNEL_LAWS

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")

KERNELS = """
    from kvproof.kernels.plain.torch_kernels import PlainTorch


    class Right(PlainTorch):
        pass


    class Late(PlainTorch):
        def attend(self, pool, query, block_tables, seq_lens, **options):
            return super().attend(pool, query, block_tables, (seq_lens - 1).clamp(min=0), **options)
"""


@pytest.fixture
def project(pytester):
    pytester.makepyfile(own=KERNELS)
    return pytester


def test_each_law_of_kernels_is_an_item(project):
    project.makepyfile(test_it="from kvproof import kernel_tests\nfrom own import Right\n\nTestRight = kernel_tests(Right)\n")
    result = project.runpytest("-v", "-rs", "--kv-budget=0.1")

    result.assert_outcomes(passed=7, skipped=len(KERNEL_LAWS) - 7)
    result.stdout.fnmatch_lines_random(
        [
            "test_it.py::TestRight::test_law?garbage-independent? PASSED*",
            "*in-bounds is not applicable: no Triton kernel was launched, so no access was seen",
            "kvproof own:Right: * cases, 0 launches in * s, seed 0",
        ]
    )


def test_a_broken_law_of_kernels_fails_with_its_case(project):
    project.makepyfile(test_it="from kvproof import kernel_tests\nfrom own import Late\n\nTestLate = kernel_tests(Late)\n")
    result = project.runpytest("--kv-budget=0.1")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["paged-equals-contiguous is broken: *", "*The smallest case found is Case('attend'):", "*Run it again: kvproof replay .kvproof*"]
    )
    assert list((project.path / ".kvproof/failures").glob("paged-equals-contiguous-*.json"))


def test_kernels_are_named_on_the_command_line(project):
    result = project.runpytest("--kv-target=own.py:Right", "--kv-budget=0.1", "-k", "padding-inert or rename-invariant")

    result.assert_outcomes(passed=2, deselected=len(KERNEL_LAWS) - 2)


def test_a_class_that_is_no_kernels_is_refused_early():
    with pytest.raises(TypeError, match=r"caches go to cache_tests\(\)"):
        kernel_tests(dict)
    with pytest.raises(TypeError, match="without building it"):
        kernel_tests("own.py:Right")  # type: ignore[arg-type]
