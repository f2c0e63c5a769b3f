"""Builds the wheel of the package: in a new folder, without modules that need more than the wheel declares."""

from tempfile import TemporaryDirectory

from setuptools.command.build import build
from setuptools.command.build_py import build_py

LEFT_OUT = {
    "dlgs_bench": {"describe", "rehearse"},
    "dlgs_bench.timemodel": {"advice", "costs", "estimate", "predict"},
}


class Build(build):
    """Does not use the folder ``build`` of the project, whose old files setuptools would put into the wheel."""

    def initialize_options(self):
        super().initialize_options()
        self._folder = TemporaryDirectory()  # it is removed with this object
        self.build_base = self._folder.name


class BuildPy(build_py):
    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if one[1] not in LEFT_OUT.get(package, ())]
