"""Environments with packages of the Python Package Index, in pinned versions, made once and kept in a build folder."""
import fcntl
import glob
import os
import subprocess
import venv

# What torch's wheel links of CUDA, and CPU code never calls: two gigabytes, for which empty libraries stand in. They
# work because nothing in the wheel asks for its functions before it calls them; the one variable is given room.
CUDA_LIBRARIES = ['libcublas.so.13', 'libcublasLt.so.13', 'libcudnn.so.9', 'libcufft.so.12', 'libcufile.so.0',
                  'libcupti.so.13', 'libcusparse.so.12', 'libcusparseLt.so.0', 'libnccl.so.2', 'libnvrtc.so.13']
NVSHMEM = 'libnvshmem_host.so.3'


def shared_library(folder, name, source, *options):
    subprocess.run([os.environ.get('CXX', 'c++'), '-shared', '-x', 'c', '-', '-o', os.path.join(folder, name),
                    '-Wl,-soname,' + name, *options], input=source, text=True, check=True)


def make_stand_ins(folder, packages):
    os.makedirs(folder, exist_ok=True)
    for name in CUDA_LIBRARIES:
        shared_library(folder, name, '')
    versions = os.path.join(folder, 'nvshmem.map')
    with open(versions, 'w', encoding='utf-8') as file:
        file.write('NVSHMEM { global: *; };\n')
    shared_library(folder, NVSHMEM, 'char nvshmem_selected_device_transport[4096];\n', '-Wl,--version-script=' + versions)
    runtime = glob.glob(os.path.join(packages, 'nvidia', '*', 'lib', 'libcudart.so.13'))[0]
    link = os.path.join(folder, 'libcudart.so.13')
    if not os.path.lexists(link):
        os.symlink(runtime, link)


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def installed(folder, requirements):
    """The interpreter of the environment in `folder` if it has what the file `requirements` lists, else None."""
    stamp = os.path.join(folder, 'installed.txt')
    if os.path.exists(stamp) and read(stamp) == read(requirements):
        return os.path.join(folder, 'bin', 'python')
    return None


def install(folder, requirements):
    """The same, installed first where it is not there; raises where that cannot be done."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + '.lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python := installed(folder, requirements):
            return python
        venv.create(folder, with_pip=True, clear=True)
        python = os.path.join(folder, 'bin', 'python')
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-compile',
                        '--disable-pip-version-check', '--requirement', requirements], check=True, stdin=subprocess.DEVNULL)
        if 'torch==' in read(requirements):
            make_stand_ins(os.path.join(folder, 'stand_ins'), glob.glob(os.path.join(folder, 'lib', 'python*', 'site-packages'))[0])
        with open(os.path.join(folder, 'installed.txt'), 'w', encoding='utf-8') as file:
            file.write(read(requirements))
        return python


def variables(folder):
    """What programs of the environment in `folder` want of their own environment."""
    stand_ins = os.path.join(folder, 'stand_ins')
    return dict(os.environ, LD_LIBRARY_PATH=stand_ins) if os.path.exists(stand_ins) else dict(os.environ)
