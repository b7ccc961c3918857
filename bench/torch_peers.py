#!/usr/bin/env python3
"""NVFP4 quantization of a BF16 tensor as PyTorch users write it, to time next to quantize_cuda_bench on the same GPU:
eager and torch.compile'd in the style of torchao's nvfp4_quantize (two-level scaling, given tensor amax), and a Triton
kernel.

    python3 bench/torch_peers.py [rows cols]

Needs torch and triton. Prints milliseconds, GB/s of the bytes that must move (BF16 in, half a byte of codes and a
sixteenth of scales an element out), and the time over that of a device-to-device copy of the same tensor.
"""
import sys

import torch
import triton
import triton.language as tl


def quantize_like_torchao(x, amax):
    """x: rows x cols BF16; amax: the tensor's. Block amax / 6 / (amax / 2688) to FP8, elements to E2M1 by rounding the
    scaled values to the grid, two codes a byte."""
    rows, cols = x.shape
    blocks = x.float().view(rows, cols // 16, 16)
    tensor_scale = amax / 2688.0
    block_scale = blocks.abs().amax(dim=-1) / 6.0 / tensor_scale
    scale = block_scale.clamp(2.0**-6, 448.0).to(torch.float8_e4m3fn)
    y = blocks * ((1.0 / tensor_scale) / scale.float()).unsqueeze(-1)
    y = y.clamp(-6.0, 6.0)
    # Round to nearest, ties to even, by adding and taking away a power of two whose last place is the step.
    m = y.abs()
    step = torch.where(m < 2.0, 0.5, torch.where(m < 4.0, 1.0, 2.0))
    v = torch.round(m / step) * step
    code = torch.where(v <= 2.0, 2.0 * v, torch.where(v <= 4.0, v + 2.0, 0.5 * v + 4.0)).to(torch.uint8)
    code = code | (torch.signbit(y).to(torch.uint8) << 3)
    code = code.view(rows, cols // 2, 2)
    return code[..., 0] | (code[..., 1] << 4), scale


@triton.jit
def quantize_kernel(x_ptr, codes_ptr, scales_ptr, amax_ptr, blocks_total, BLOCKS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block < blocks_total
    offsets = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    tensor_scale = tl.load(amax_ptr) / 2688.0
    amax = tl.max(tl.abs(x), axis=1)
    scale = tl.minimum(tl.maximum(amax / 6.0 / tensor_scale, 0.015625), 448.0).to(tl.float8e4nv)
    tl.store(scales_ptr + block, scale.to(tl.uint8, bitcast=True), mask=inside)
    y = x * ((1.0 / tensor_scale) / scale.to(tl.float32))[:, None]
    m = tl.minimum(tl.abs(y), 6.0)
    # The code counts the midpoints passed; a tie goes to the even code.
    code = (m > 0.25).to(tl.int32) + (m >= 0.75).to(tl.int32) + (m > 1.25).to(tl.int32) + (m >= 1.75).to(tl.int32)
    code += (m > 2.5).to(tl.int32) + (m >= 3.5).to(tl.int32) + (m > 5.0).to(tl.int32)
    code = code | tl.where(y < 0, 8, 0)
    even, odd = tl.split(tl.reshape(code, (BLOCKS, 8, 2)))
    out = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(codes_ptr + out, (even | (odd << 4)).to(tl.uint8), mask=inside[:, None])


def quantize_triton(x, amax, codes, scales, blocks_a_program):
    total = x.numel() // 16
    quantize_kernel[(triton.cdiv(total, blocks_a_program),)](x, codes, scales, amax, total, BLOCKS=blocks_a_program)
    return codes, scales


def main():
    rows, cols = (int(a) for a in sys.argv[1:3]) if len(sys.argv) > 2 else (8192, 8192)
    torch.manual_seed(1)
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(x)
    amax = x.abs().amax().float()
    codes = torch.empty(rows, cols // 2, device="cuda", dtype=torch.uint8)
    scales = torch.empty(rows, cols // 16, device="cuda", dtype=torch.uint8)
    compiled = torch.compile(quantize_like_torchao, fullgraph=True)
    bytes_moved = x.numel() * (2 + 0.5 + 1 / 16)

    reference = compiled(x[:256].contiguous(), amax)
    mine = quantize_triton(x[:256].contiguous(), amax, codes[:256], scales[:256], 128)
    differing = (reference[0] != mine[0]).float().mean().item()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, {rows}x{cols}")
    print(f"bytes of codes in which the two differ: {differing:.2e}")

    copy_ms = triton.testing.do_bench(lambda: other.copy_(x), return_mode="median")
    peers = {"copy_": (lambda: other.copy_(x), 4 * x.numel())}
    if rows * cols <= 1 << 26:
        peers["eager, like torchao"] = (lambda: quantize_like_torchao(x, amax), bytes_moved)
    peers["torch.compile, like torchao"] = (lambda: compiled(x, amax), bytes_moved)
    for blocks in (32, 64, 128, 256):
        peers[f"triton, {blocks} blocks a program"] = (
            lambda blocks=blocks: quantize_triton(x, amax, codes, scales, blocks), bytes_moved)
    for name, (run, moved) in peers.items():
        ms = triton.testing.do_bench(run, return_mode="median")
        print(f"{name:34s} {ms:9.4f} ms {moved / ms * 1e-6:8.0f} GB/s  {ms / copy_ms:6.2f} copies")


if __name__ == "__main__":
    main()
