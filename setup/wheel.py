"""Leaves modules out of the wheel that need packages which it does not declare, or the rest of the repository."""

from setuptools.command.build_py import build_py

LEFT_OUT = {
    "dlgs_bench": {"describe", "rehearse"},
    "dlgs_bench.timemodel": {"advice", "costs", "estimate", "predict"},
}


class BuildPy(build_py):
    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if one[1] not in LEFT_OUT.get(package, ())]
