"""Engines as targets, without a network: names, the cache folder, the import hook and its stubs, and a registry in which nothing is named in vain."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from kvproof.answer import Answer
from kvproof.fuzz.verdicts import Report
from kvproof.fuzz.zoo.cases import CASES, UNREACHED
from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.foreign import fetched, loading
from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.fetched import MANIFEST, Manifest
from kvproof.impl.foreign.hook import EngineHook
from kvproof.impl.foreign.registry import ENGINES, find_release
from kvproof.impl.foreign.releases import BadRelease, Engine, Release, Variant, in_order, is_known, parse
from kvproof.impl.foreign.stubs import Stub, StubModule, StubUsed, Watch, is_stub
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.models.laws import BY_NAME

ROOT = Path(__file__).parents[1]

TOY = Engine(
    name="toy",
    package="toyengine",
    sources=("toy-small", "toy"),
    keep=("toyengine/",),
    real=("toyengine.core",),
    variants={"full": Variant("module:Class", "a toy", "toyengine.core"), "other": Variant("module:Other", "another", "toyengine.more")},
    oldest="1.0",
    newest="2.0",
)


# -- names ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "variant"), [("toy", "2.0", ""), ("toy==1.0", "1.0", ""), ("toy[other]==1.5.post1", "1.5.post1", "other")]
)
def test_a_release_is_named_as_in_a_requirement(text, version, variant):
    found = parse(text, {"toy": TOY})
    assert found is not None
    assert (found.version, found.variant) == (version, variant)


@pytest.mark.parametrize("text", ["production", "mypkg.kv:Adapter", "path/to/file.py:Class", "bug:canary", "toys"])
def test_other_targets_name_no_release(text):
    assert parse(text, {"toy": TOY}) is None


def test_an_engine_or_variant_that_is_not_there_is_told():
    with pytest.raises(BadRelease, match="There is no engine 'nothing'; kvproof drives toy"):
        parse("nothing==1", {"toy": TOY})
    with pytest.raises(BadRelease, match="toy is not driven as 'third'; its variants are full, other"):
        parse("toy[third]==1.0", {"toy": TOY})


def test_an_engine_that_is_nearly_named_is_suggested():
    with pytest.raises(BadRelease, match=r"There is no engine 'nano-vllm'; did you mean nano-vllm-fork or nano-vllm-npu\?"):
        find_release("nano-vllm==1")
    with pytest.raises(BadRelease, match=r"There is no engine 'sgland'; did you mean sglang\?"):
        find_release("sgland==1")


@pytest.mark.parametrize(
    ("version", "known"), [("1.0", True), ("1.10", True), ("2.0", True), ("2.0.1", False), ("0.9.post1", False), ("10.0", False)]
)
def test_releases_outside_those_that_are_known_are_told(version, known):
    assert is_known(Release(TOY, version)) == known


def test_versions_are_sorted_by_their_numbers():
    assert sorted(["0.10.0", "0.9.2", "0.4.2", "0.9.0.1", "0.33.0"], key=in_order) == ["0.4.2", "0.9.0.1", "0.9.2", "0.10.0", "0.33.0"]


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (["no_such_party"], "toy needs no_such_party; run `pip install 'kvproof[engines]'`."),
        (["torch"], "toy needs torch; run `pip install torch` (a build for CPUs is enough)."),
    ],
)
def test_what_an_engine_lacks_is_told_with_the_way_to_get_it(needs, words, monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(loading, "_LOADED", [])
    with pytest.raises(BadRelease) as told:
        loading.load(Release(msgspec.structs.replace(TOY, needs=needs), "1.0"))
    assert str(told.value) == words


# -- the cache folder -------------------------------------------------------------------------------------------------------------------------


def wheel(place: Path, **files: str) -> Path:
    path = place / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return path


class Pip:
    """Stands for pip: knows one wheel of one distribution."""

    def __init__(self, source: str, built: Path, digest: str | None = None) -> None:
        self.source = source
        self.built = built
        self.digest = digest or hashlib.sha256(built.read_bytes()).hexdigest()

    def __call__(self, *arguments: str) -> str:
        if arguments[-1] != f"{self.source}==1.0":
            raise fetched.NotThere(f"there is no wheel of {arguments[-1]}")
        if arguments[0] == "download":
            place = Path(arguments[arguments.index("--dest") + 1])
            (place / self.built.name).write_bytes(self.built.read_bytes())
            return ""
        info = {"url": f"https://index/{self.built.name}", "archive_info": {"hashes": {"sha256": self.digest}}}
        return json.dumps({"install": [{"download_info": info}]})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


def test_only_the_python_files_that_are_needed_are_kept(tmp_path, cache, monkeypatch):
    built = wheel(tmp_path, **{"toyengine/core.py": "x = 1", "toyengine/big.so": "binary", "other/thing.py": "y = 2"})
    monkeypatch.setattr(fetched, "_pip", Pip("toy", built))
    folder, manifest = fetched.provide(Release(TOY, "1.0"))
    assert folder == cache / "toy-1.0"
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [MANIFEST, "toyengine/core.py"]
    assert (manifest.source, manifest.files, manifest.wheel) == ("toy==1.0", 1, built.name)
    assert [path.name for path in cache.iterdir()] == ["toy-1.0"], "the wheel and the scratch folder are gone"


def test_a_release_is_fetched_once(tmp_path, cache, monkeypatch):
    built = wheel(tmp_path, **{"toyengine/core.py": "x = 1"})
    monkeypatch.setattr(fetched, "_pip", Pip("toy-small", built))
    fetched.provide(Release(TOY, "1.0"))
    monkeypatch.setattr(fetched, "_pip", lambda *arguments: pytest.fail("pip was asked again"))
    assert fetched.provide(Release(TOY, "1.0"))[1].source == "toy-small==1.0"


def test_a_wheel_with_another_hash_is_not_kept(tmp_path, cache, monkeypatch):
    built = wheel(tmp_path, **{"toyengine/core.py": "x = 1"})
    monkeypatch.setattr(fetched, "_pip", Pip("toy", built, digest="0" * 64))
    with pytest.raises(BadRelease, match="nothing was kept"):
        fetched.provide(Release(TOY, "1.0"))
    assert list(cache.iterdir()) == []


def test_a_release_that_nobody_has_is_told_with_those_that_are_known(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(fetched, "_pip", Pip("toy", wheel(tmp_path, **{"toyengine/core.py": ""})))
    with pytest.raises(BadRelease, match=r"toy 9 cannot be fetched: .*toy-small==9.*toy==9.*Releases 1.0 to 2.0 are known"):
        fetched.provide(Release(TOY, "9"))


def test_a_wheel_whose_layout_moved_is_told(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(fetched, "_pip", Pip("toy", wheel(tmp_path, **{"elsewhere/core.py": ""})))
    with pytest.raises(BadRelease, match="its layout moved"):
        fetched.provide(Release(TOY, "1.0"))


def test_the_least_recently_used_releases_go_first(cache):
    for age, version in enumerate(("1.0", "1.1", "1.2")):
        folder = cache / f"toy-{version}"
        folder.mkdir(parents=True)
        (folder / "core.py").write_text("x" * 1000)
        (folder / MANIFEST).write_text("{}")
        os.utime(folder / MANIFEST, (1000 + age, 1000 + age))
    assert fetched.shrink(2100, but=cache / "toy-1.0") == ["toy-1.1"]
    assert sorted(path.name for path in cache.iterdir()) == ["toy-1.0", "toy-1.2"]


def test_a_folder_of_another_format_is_fetched_again(cache):
    folder = cache / "toy-1.0"
    folder.mkdir(parents=True)
    manifest = Manifest(fetched.FORMAT + 1, "toy", "1.0", "toy==1.0", "w", "0", 1, 1, 1)
    (folder / MANIFEST).write_bytes(fetched.msgspec.json.encode(manifest))
    assert fetched.read_manifest(folder) is None


def test_a_folder_of_an_older_edition_is_fetched_again_and_used_where_it_cannot_be(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(fetched, "_pip", Pip("toy", wheel(tmp_path, **{"toyengine/core.py": "x = 1", "toyengine/more.py": "y = 2"})))
    fetched.provide(Release(msgspec.structs.replace(TOY, keep=("toyengine/core.py",)), "1.0"))
    newer = Release(msgspec.structs.replace(TOY, edition=2), "1.0")
    assert fetched.provide(newer)[1].files == 2
    monkeypatch.setattr(fetched, "_pip", Pip("elsewhere", tmp_path / "toy-1.0-py3-none-any.whl"))
    assert fetched.provide(Release(msgspec.structs.replace(TOY, edition=3), "1.0"))[1].edition == 2


# -- stubs ------------------------------------------------------------------------------------------------------------------------------------


def test_a_stub_serves_an_import_and_refuses_an_answer():
    watch = Watch(frozenset({"toy.logger"}), {})
    stub = Stub("toy.thing", watch)
    with watch.open():
        assert is_stub(stub.attribute("x")[3] | None)
        assert not stub

        @stub
        def decorated():
            return 7

        class Child(stub.Base, stub.Mixin, option=1):
            pass

    assert decorated() == 7
    assert isinstance(Child(), Child)
    for ask in (lambda: stub(), lambda: bool(stub), lambda: stub == 3, lambda: isinstance(3, stub), lambda: stub < 3, lambda: stub + 1):
        with pytest.raises(StubUsed, match=r"the engine used toy\.thing"):
            ask()
    assert is_stub(Stub("toy.logger.info", watch)("nothing depends on this"))
    assert stub == Stub("toy.thing", watch)
    assert not is_stub(3)


ENGINE = {
    "toyengine/__init__.py": "raise ImportError('the package itself must not run')",
    "toyengine/core/__init__.py": "",
    "toyengine/core/cache.py": """
        import json
        import missing_party.deep as deep
        from missing_party import Tensor
        from toyengine import heavy
        from toyengine.config import get_config
        from toyengine.core import helper
        from toyengine.logger import init_logger

        logger = init_logger(__name__)

        class Cache(heavy.Base):
            def __init__(self, size: Tensor | None = None):
                self.size = json.loads(helper.SIZE)

            def configured(self):
                return get_config()

            def honest(self):
                logger.info("asked")
                return self.size

            def lie(self):
                return deep.count(self)
    """,
    "toyengine/core/helper.py": "SIZE = '4'",
    "toyengine/heavy.py": "raise ImportError('this module must be a stub')",
}

USE = """
    import sys
    from pathlib import Path
    from kvproof.impl.foreign.hook import EngineHook, hooked
    from kvproof.impl.foreign.stubs import StubUsed, Watch, is_stub
    watch = Watch(frozenset({"toyengine.logger"}), {"toyengine.config.get_config": lambda: None})
    hooked(EngineHook("toyengine", Path(sys.argv[1]), ["toyengine.core"], [], watch))
    with watch.open():
        from toyengine.core.cache import Cache, heavy
    assert is_stub(heavy) and not is_stub(Cache)
    cache = Cache()
    assert cache.honest() == 4
    assert cache.configured() is None
    assert "missing_party" not in sys.modules, "a stub was left for others"
    try:
        import missing_party
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("only the engine gets stubs")
    try:
        cache.lie()
    except StubUsed as told:
        assert "missing_party.deep.count" in str(told)
    else:
        raise AssertionError("a stub answered")
    print("as it should be")
"""


def test_the_hook_runs_what_is_real_and_stubs_the_rest(tmp_path):
    for name, text in ENGINE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(USE), str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "as it should be", done.stderr


def test_what_lies_outside_the_real_modules_is_not_real(tmp_path):
    (tmp_path / "toyengine").mkdir()
    (tmp_path / "toyengine" / "core.py").write_text("")
    (tmp_path / "toyengine" / "corely.py").write_text("")
    hook = EngineHook("toyengine", tmp_path, ["toyengine.core"], [], Watch(frozenset(), {}))
    assert hook.is_real("toyengine.core")
    assert not hook.is_real("toyengine.corely")
    assert not hook.is_real("toyengine.core.absent")


# -- the registry -----------------------------------------------------------------------------------------------------------------------------

EXEMPT: dict[str, str] = {
    "vllm[hybrid-deferred]": "it exists for one case of the zoo, B22",
    "vllm[paused]": "it exists for one case of the zoo, B19",
    "vllm[remote-send]": "it exists for one case of the zoo, B26",
    "vllm[v0-swap]": "it exists for two cases of the zoo, B07 and swap-abort",
    "vllm[v0-same-tick]": "it exists for one case of the zoo, B08",
}
"""Variants that no test of tests/test_engines.py exercises, and why."""


def named() -> list[str]:
    """Every engine in every variant, as it is typed."""
    return [f"{engine.name}[{variant}]" for engine in ENGINES.values() for variant in engine.variants]


@pytest.mark.parametrize("name", named())
def test_every_variant_has_an_adapter(name):
    release = find_release(name)
    assert release is not None
    module, _, attribute = release.engine.variants[release.variant].adapter.partition(":")
    adapter = getattr(importlib.import_module(module), attribute)
    assert issubclass(adapter, CacheAdapter)
    assert adapter.__doc__


def test_every_variant_is_exercised_or_exempt():
    test_engines = importlib.import_module("test_engines")
    exercised = {name.partition("==")[0] for name in (*test_engines.SMALL, *test_engines.NIGHTLY)}
    missing = [name for name in named() if name not in exercised and name not in EXEMPT]
    assert missing == []
    assert set(EXEMPT) <= set(named()), "an exemption names no variant"
    assert exercised.isdisjoint(EXEMPT), "an exemption is not needed any more"


def test_the_exempt_variants_are_in_the_zoo():
    assert {case.faulty.partition("==")[0] for case in CASES} >= set(EXEMPT)


def test_every_case_of_the_zoo_can_be_run():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for case in CASES:
        assert find_release(case.faulty) is not None
        assert not case.fixed or find_release(case.fixed) is not None
        assert set(case.laws) | set(case.also) <= set(BY_NAME), case.name
        assert case.laws, case.name
        assert bool(case.program) == (case.pool is not None), case.name
    assert {bug.name for bug in UNREACHED}.isdisjoint(names)


def test_every_bug_of_the_list_is_a_case_or_has_a_reason():
    listed = set(re.findall(r"^\| (B\d+) \|", (ROOT / "docs/bugs.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed
    assert listed <= {case.name for case in CASES} | {bug.name for bug in UNREACHED}


def test_a_stub_module_has_the_special_attributes_that_it_has_an_answer_for():
    module = StubModule("torch", Watch(frozenset(), {"torch.__version__": "0"}))
    assert module.__version__ == "0"
    with pytest.raises(AttributeError):
        _ = module.__wrapped__


# -- whose failure it is ----------------------------------------------------------------------------------------------------------------------


class Scheduler(EngineAdapter):
    """An adapter to nothing."""


ENGINE_CODE = """
class Request:
    pass

def check(count):
    assert count >= 0, count

def look(table):
    return table[7]

def name(request):
    return request.lora_name

def call(function):
    return function()
"""


@pytest.fixture
def toyengine(monkeypatch):
    """A module of the engine's."""
    held = SimpleNamespace(release=Release(TOY, "1.0"))
    monkeypatch.setattr("kvproof.impl.foreign.adapter.loaded_engine", lambda: held)
    module = ModuleType("toyengine.core")
    exec(compile(ENGINE_CODE, "core.py", "exec"), module.__dict__)
    return module


def caught(call):
    with pytest.raises(Exception) as told:  # noqa: PT011 -- whatever it is
        call()
    return told.value


def test_what_the_engines_own_statement_raises_is_the_engines(toyengine):
    adapter = object.__new__(Scheduler)
    for call in (
        lambda: toyengine.check(-1),
        lambda: toyengine.look({}),
        lambda: toyengine.look([]),
        lambda: toyengine.name(None),
        lambda: toyengine.name(toyengine.Request()),
    ):
        assert adapter.raised_by_cache(caught(call))


def test_what_the_adapter_did_is_the_adapters(toyengine):
    adapter = object.__new__(Scheduler)
    for call in (
        lambda: {}[7],  # its own statement
        lambda: toyengine.call(lambda: {}[7]),  # its own, called by the engine
        lambda: toyengine.name(SimpleNamespace()),  # an object that it made
        lambda: toyengine.check(),  # an argument that moved
        lambda: toyengine.look(3),
    ):
        assert not adapter.raised_by_cache(caught(call))


# -- what was judged --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fetched", ["toy==1.0", ""])
def test_a_report_names_the_fetched_release_that_was_judged(fetched, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "_LOADED", [loading.LoadedEngine(Release(TOY, "1.0"), None, "from somewhere", fetched)])

    class Derived(EngineAdapter):
        pass

    report = Report(1, "toy", "held", {}, [], 1, 1, 1.0, 1)
    for adapter, named in ((Derived, fetched), (SynchronousAdapter, "")):
        Answer(report, adapter, {}, tmp_path, "--failures", 1.0).write(tmp_path / "report.json", None)
        assert json.loads((tmp_path / "report.json").read_text())["release"] == named
