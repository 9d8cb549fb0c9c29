"""Imports a few modules of an engine from its unpacked wheel, for the scripts beside this file. Uses no kvproof.

    load("wheel", "vllm", ["vllm.v1.core", "vllm.v1.request"])

The named modules, and all that lies below them, are the engine's own files. Whatever else they import is a placeholder: it can be called, inherited from and subscripted, so
that the import succeeds; nothing that the scripts do depends on what one answers. Third parties in `keep` are those that are installed, if they are.
"""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path


class Placeholder:
    """Stands for a name that is not loaded."""

    def __init__(self, name):
        self.__name__ = self.name = name

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.name}.{name}")

    def __call__(self, *arguments, **options):
        decorates = len(arguments) == 1 and not options and isinstance(arguments[0], types.FunctionType | type)
        return arguments[0] if decorates else self

    def __mro_entries__(self, bases):
        return (Inherited,) if bases[0] is self else ()

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __mul__ = __rmul__ = __or__

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __instancecheck__(self, instance):
        return False


class Inherited:
    """What a class inherits in place of a placeholder."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__()


class Shell(types.ModuleType):
    """A module that is not loaded, or a package of which only some modules are."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}")


class Finder:
    """Finds the engine's modules in its wheel, and makes shells of the rest."""

    def __init__(self, wheel, package, real, keep):
        self.wheel, self.package, self.real = Path(wheel), package, real
        self.keep = {name for name in keep if importlib.util.find_spec(name)} | {*sys.stdlib_module_names}

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == self.package:
            base = self.wheel.joinpath(*name.split("."))
            for file in (base / "__init__.py", base.with_suffix(".py")):
                if file.is_file() and any(name == real or name.startswith(f"{real}.") for real in self.real):
                    places = [str(file.parent)] if file.name == "__init__.py" else None
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
        elif top in self.keep or not self._asked_by_engine():
            return None
        return ModuleSpec(name, self, is_package=True)

    def _asked_by_engine(self):
        frame = sys._getframe(2)
        while frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
            frame = frame.f_back
        return frame.f_globals.get("__name__", "").partition(".")[0] == self.package

    def create_module(self, spec):
        return Shell(spec.name)

    def exec_module(self, module):
        pass


def load(wheel, package, real, keep=()):
    """From now on `package` is imported from the folder `wheel`, as far as its modules are named in `real`."""
    if not Path(wheel, package).is_dir():
        sys.exit(f"There is no {package} in {wheel}: give the folder that the wheel was unpacked into.")
    sys.meta_path.insert(0, Finder(wheel, package, real, keep))
