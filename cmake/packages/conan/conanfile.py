"""Conan 2 recipe of microscale, from the source tree that it lies in.

    conan create cmake/packages/conan
"""

import os
import re

from conan import ConanFile
from conan.tools.files import copy, load

SOURCE = os.path.join("..", "..", "..")


class Microscale(ConanFile):
    name = "microscale"
    description = "Microscaled number formats (NVFP4, UE5M3, MX) for host and device, header-only C++20"
    license = "Apache-2.0"
    topics = ("fp4", "nvfp4", "microscaling", "quantization", "header-only")
    package_type = "header-library"
    no_copy_source = True

    def set_version(self):
        lists = load(self, os.path.join(self.recipe_folder, SOURCE, "CMakeLists.txt"))
        self.version = re.search(r"^ *VERSION ([0-9.]+)$", lists, re.MULTILINE).group(1)

    def export_sources(self):
        source = os.path.join(self.recipe_folder, SOURCE)
        copy(self, "LICENSE", source, self.export_sources_folder)
        copy(self, "include/*", source, self.export_sources_folder)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "*", os.path.join(self.source_folder, "include"), os.path.join(self.package_folder, "include"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_target_name", "microscale::microscale")
