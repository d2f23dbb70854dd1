#!/usr/bin/env python3
"""Makes tests/data/quant: blocks of every quantized type with their dequantized floats, and floats with their quantized
blocks, both computed by the PyPI package gguf (0.19; F8_E4M3 by torch, which the package lacks).

  NAME.blocks -> NAME.floats     dequantizing
  input.floats -> NAME.quantized rounding to plain floats

Usage: make-quant-data.py OUTPUT-FOLDER        (needs numpy, gguf, torch)
"""
import os
import sys

import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

rng = np.random.default_rng(20240229)

# type, byte offsets of the half-precision members of a block
DEQUANTIZED = {"f16": T.F16, "bf16": T.BF16}
# half-precision values that every type is tested with: zeros, subnormals, one, the largest, infinities, a NaN
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00],
                   dtype=np.uint16)


def random_blocks(qtype, halves):
    elems, size = GGML_QUANT_SIZES[qtype]
    n = len(EXTREME) + (24 if elems == 32 else 8)
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    blocks[1], blocks[2] = 0, 255
    for at in halves:
        sane = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        sane[: len(EXTREME)] = EXTREME if at == halves[0] else rng.permutation(EXTREME)
        blocks[:, at: at + 2] = sane.view(np.uint8).reshape(n, 2)
    if qtype == T.IQ1_M:  # the half has four bits in the top of each of four words
        sane = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        sane[: len(EXTREME)] = EXTREME
        words = blocks[:, 48:56].copy().view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0fff) | ((sane >> 4 * i & 15) << 12)
        blocks[:, 48:56] = words.view(np.uint8)
    if qtype == T.MXFP4:
        blocks[:8, 0] = [0, 1, 2, 3, 126, 127, 254, 255]
        blocks[8:, 0] = rng.integers(100, 140, n - 8)
    return blocks


def inputs():
    rows = [rng.standard_normal(32) * s for s in (1, 1e-3, 0.02, 30, 1e4, 7e4, 1e-6, 1e-9)]
    rows += [np.zeros(32), np.full(32, 0.5), np.full(32, -0.5), np.arange(32) - 16.0, np.arange(32) * 1.0]
    rows += [np.where(np.arange(32) == 7, v, 0.0) for v in (1.0, -1.0, 65504.0, 65520.0, 1e-7)]
    rows += [np.tile([1.0, -1.0], 16), np.tile([-1.0, 1.0], 16)]          # ties of the largest magnitude
    rows += [rng.integers(-127, 128, 32) / 2.0 for _ in range(8)]         # codes that are exactly between two integers
    rows += [rng.integers(-8, 8, 32) * 0.25 for _ in range(4)]
    rows += [rng.standard_t(2, 32) for _ in range(24)]
    return np.stack(rows).astype(np.float32)


def main(folder):
    os.makedirs(folder, exist_ok=True)

    def write(name, array):
        np.ascontiguousarray(array).tofile(os.path.join(folder, name))

    for name, (qtype, halves) in DEQUANTIZED.items():
        blocks = random_blocks(qtype, halves)
        with np.errstate(all="ignore"):
            floats = quants.dequantize(blocks, qtype)
        write(name + ".blocks", blocks)
        write(name + ".floats", floats.astype(np.float32))
    every = np.arange(256, dtype=np.uint8)
    write("f8_e4m3.blocks", every)
    write("f8_e5m2.blocks", every)
    write("f8_e5m2.floats", torch.from_numpy(every).view(torch.float8_e5m2).float().numpy())
    write("f8_e4m3.floats", torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy())

    x = inputs()
    write("input.floats", x)
    for name, qtype in QUANTIZED.items():
        with np.errstate(all="ignore"):
            write(name + ".quantized", quants.quantize(x, qtype))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
