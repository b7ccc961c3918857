"""Builds the extension against the library's headers: with CUDA where nvcc, a CUDA build of torch and a GPU are, else
without.

MICROSCALE_TORCH_CUDA=0 leaves CUDA out, =1 insists on it; TORCH_CUDA_ARCH_LIST, which stands in for the GPU, and
MAX_JOBS are torch's own.
"""

import os
from pathlib import Path

import torch
from setuptools import setup
from torch.utils import cpp_extension

here = Path(__file__).resolve().parent
root = Path(os.environ.get("MICROSCALE_ROOT", here.parent.parent))
if not (root / "include/microscale/microscale.hpp").exists():
    raise SystemExit(f"no include/microscale under {root}: set MICROSCALE_ROOT to the library's folder")

wanted = os.environ.get("MICROSCALE_TORCH_CUDA", "")
can_cuda = torch.version.cuda is not None and cpp_extension.CUDA_HOME is not None
if wanted == "1" and not can_cuda:
    raise SystemExit("MICROSCALE_TORCH_CUDA=1, but there is no nvcc or no CUDA in this torch")
knows_gpus = torch.cuda.is_available() or "TORCH_CUDA_ARCH_LIST" in os.environ
if wanted == "1" and not knows_gpus:
    raise SystemExit("MICROSCALE_TORCH_CUDA=1 without a GPU here: TORCH_CUDA_ARCH_LIST says for which, 9.0 for Hopper")
with_cuda = can_cuda and knows_gpus and wanted != "0"

sources = sorted(str(p.relative_to(here)) for p in (here / "csrc").glob("*.cpp"))
if with_cuda:
    sources += sorted(str(p.relative_to(here)) for p in (here / "csrc").glob("*.cu"))
options = {
    "name": "microscale_torch._C",
    "sources": sources,
    "include_dirs": [str(root / "include"), str(here / "csrc")],
    "define_macros": [("MICROSCALE_TORCH_CUDA", "1")] if with_cuda else [],
    "extra_compile_args": {"cxx": ["-std=c++20", "-O2"], "nvcc": ["-std=c++20", "-O3"]},
}
if with_cuda:
    extension = cpp_extension.CUDAExtension(**options, libraries=["cublas"])
else:
    extension = cpp_extension.CppExtension(**options)

setup(
    name="microscale-torch",
    version="0.1.0",
    description="microscaled number formats and FP4 training recipes for PyTorch",
    license="Apache-2.0",
    packages=["microscale_torch"],
    package_dir={"": "python"},  # not beside pretrain.py, which would import it from there, without what was built
    python_requires=">=3.10",
    install_requires=["torch>=2.8"],
    ext_modules=[extension],
    cmdclass={"build_ext": cpp_extension.BuildExtension.with_options(use_ninja=True)},
)
