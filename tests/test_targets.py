"""Finding the adapter that a name means, and saying what is wrong with one that means none."""

import subprocess
import sys

import pytest

from kvproof.fuzz import programs
from kvproof.fuzz.programs import local, portable
from kvproof.impl.foreign.registry import ENGINES
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.impl.production.batched_adapter import BatchedAdapter
from kvproof.targets import BUILT_IN, BUILT_IN_WORDS, BadTarget, find_target


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A current directory of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def complaint(name):
    with pytest.raises(BadTarget) as caught:
        find_target(name)
    message = str(caught.value)
    assert message[0].isupper() or message[0] in "'/" or message.startswith(name.partition(":")[0])
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


def test_built_in_targets():
    found = [find_target(name) for name in BUILT_IN if name.startswith("production")]

    assert found == [ProductionAdapter, HybridAdapter, SynchronousAdapter, BatchedAdapter]


def test_every_built_in_target_is_described():
    assert set(BUILT_IN_WORDS) == set(BUILT_IN)


def test_a_file_target_can_be_carried_elsewhere(place):
    (place / "sub").mkdir()

    assert portable("sub/../kv.py:Outer.Adapter") == f"{place.resolve()}/kv.py:Outer.Adapter"
    assert local(portable("sub/kv.py:Adapter")) == "sub/kv.py:Adapter"
    assert local("/elsewhere/kv.py:Adapter") == "/elsewhere/kv.py:Adapter"
    assert [portable(name) == local(name) == name for name in ("production", "bug:leak", "mypkg.kv:Adapter")] == [True] * 3


def test_an_engine_without_a_version_is_carried_elsewhere_as_the_release_that_was_judged(monkeypatch):
    newest = ENGINES["nano-vllm-npu"].newest
    assert portable("nano-vllm-npu") == f"nano-vllm-npu=={newest}"
    assert portable("no-engine==1") == "no-engine==1"
    assert portable("vllm[hybrid]==0.8.3") == "vllm[hybrid]==0.8.3"
    monkeypatch.setattr(
        programs, "installed", lambda engine: "1.0"
    )  # then it is whatever is installed where the file is replayed: a branch at work
    assert portable("nano-vllm-npu") == "nano-vllm-npu"


@pytest.mark.parametrize("name", ["homemade_kv", "sub/homemade_kv"])
def test_a_file_named_without_its_ending_asks_for_the_class(place, name):
    (place / "sub").mkdir()
    (place / f"{name}.py").write_text("class Adapter: pass\n")

    assert f"The target {name} names no class; write {name}.py:Adapter, if Adapter is your class." in complaint(name)


@pytest.mark.parametrize("name", [".", "sub", "sub/", "sub/deep", "sub/deep:Adapter"])
def test_a_directory_is_no_target(place, name):
    (place / "sub" / "deep").mkdir(parents=True)

    assert (
        f"The target {name.partition(':')[0]} is a directory; name one class in it, as module:Class or path/to/file.py:Class."
        in complaint(name)
    )


def test_module_in_the_current_directory(place):
    (place / "homemade_kv.py").write_text("class Outer:\n    class Adapter: pass\n")

    assert find_target("homemade_kv:Outer").__name__ == "Outer"
    assert find_target("homemade_kv:Outer.Adapter").__qualname__ == "Outer.Adapter"


def test_file_with_a_neighbour(place):
    (place / "sub").mkdir()
    (place / "sub" / "neighbour_kv.py").write_text("class Base: pass\n")
    (place / "sub" / "file_kv.py").write_text("from neighbour_kv import Base\nclass Adapter(Base): pass\n")

    found = find_target("sub/file_kv.py:Adapter")

    assert found.__mro__[1].__name__ == "Base"
    assert find_target("sub/file_kv.py:Adapter") is found
    assert sys.modules[found.__module__].Adapter is found


def test_file_whose_name_is_taken(place):
    (place / "json.py").write_text("class Adapter: pass\n")

    assert find_target("json.py:Adapter").__name__ == "Adapter"
    assert not hasattr(sys.modules["json"], "Adapter")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prodution", "did you mean production?"),
        (
            "zzz",
            "or one of production, production-hybrid, production-sync, production-batched, engine, kernels, kernels-torch, kernels-paged, kernels-paged-torch, kernels-vllm, kernels-vllm-decode, kernels-sglang.",
        ),
        ("kv.py", "names no class; write kv.py:Adapter"),
        ("kv.py:", "names no class; write kv.py:Adapter"),
        (":Adapter", "write module:Class"),
        ("no_such_kv:Adapter", "There is no module 'no_such_kv'"),
        ("json.no_such:Adapter", "There is no module 'json.no_such'"),
        ("no_such_kv.py:Adapter", "The file no_such_kv.py does not exist"),
        ("a b:Adapter", "is not the name of a module"),
        ("..x:Adapter", "is not the name of a module"),
        ("json:Adapter", "json has no Adapter; it has no class that derives from kvproof.CacheAdapter."),
        ("json:loads", "json:loads is of type function, not a class"),
        ("kvproof.impl.production.adapter:Adapter", "its adapters are ProductionAdapter, HybridAdapter, SynchronousAdapter."),
    ],
)
def test_names_that_mean_nothing(name, words):
    assert words in complaint(name)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\ny = x / 0\n", "raised ZeroDivisionError: division by zero, at {path}:2"),
        ("def f(:\n", "raised SyntaxError: invalid syntax, at {path}:1"),
        ("import not_installed_kv\n", "raised ModuleNotFoundError: No module named 'not_installed_kv', at {path}:1"),
        ("raise SystemExit(0)\n", "raised SystemExit: 0, at {path}:1"),
        ("raise RuntimeError\n", "raised RuntimeError, at {path}:1"),
        ("raise ValueError('first line\\nsecond line')\n", "raised ValueError: first line, at {path}:1"),
    ],
)
@pytest.mark.parametrize("name", ["raising_kv:Adapter", "raising_kv.py:Adapter"])
def test_module_that_raises(place, source, words, name):
    path = place / "raising_kv.py"
    path.write_text(source)

    assert words.format(path=path) in complaint(name)
    assert "raising_kv" not in sys.modules


def test_interrupt_passes(place):
    (place / "interrupted_kv.py").write_text("raise KeyboardInterrupt\n")

    with pytest.raises(KeyboardInterrupt):
        find_target("interrupted_kv.py:Adapter")


def test_seeded_bugs(monkeypatch):
    module = type(sys)("kvproof.fuzz.bugs")
    module.__spec__ = object()
    bug = type("Bug", (), {"adapter": ProductionAdapter})()
    module.BUGS = dict.fromkeys(("leak", "second-leak", "fence-is-late", "hash-is-short", "swap-stops"), bug)
    monkeypatch.setitem(sys.modules, "kvproof.fuzz.bugs", module)

    assert find_target("bug:leak") is ProductionAdapter
    assert "did you mean leak?" in complaint("bug:leek")
    assert "did you mean fence-is-late?" in complaint("bug:fence")
    assert "did you mean fence-is-late or hash-is-short?" in complaint("bug:is")
    assert "the closest names are " in complaint("bug:zzz")
    assert complaint("bug:zzz").count("-") <= 6


def test_seeded_bugs_without_a_registry(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert "this installation has no kvproof.fuzz.bugs" in complaint("bug:leak")


def test_without_torch_the_engine_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from kvproof.cli import main; sys.exit(main(['check', 'engine']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "torch, which is not installed; run `pip install 'kvproof[kernels]'`" in done.stderr
