#!/usr/bin/env python3
"""Writes src/numbers/grids.c: the grids of the IQ types, constants of the file format, from the values that the PyPI
package gguf (0.19) has.

    tools/make-grids.py | clang-format > src/numbers/grids.c        (needs numpy, gguf)
"""
import numpy as np
from gguf import quants

GRIDS = [("iq2_xxs", quants.IQ2_XXS), ("iq2_xs", quants.IQ2_XS), ("iq2_s", quants.IQ2_S), ("iq1", quants.IQ1_S),
         ("iq3_xxs", quants.IQ3_XXS), ("iq3_s", quants.IQ3_S)]

print("/* grids.c - see grids.h. Made by tools/make-grids.py. */\n#include \"numbers/grids.h\"")
for name, of in GRIDS:
    of.init_grid()
    n, each = of.grid_shape
    grid = of.grid.reshape(n, each)
    values = sorted(of.grid_map)
    codes = np.searchsorted(values, grid)
    entries = [sum(int(c) << 16 // each * i for i, c in enumerate(row)) for row in codes]
    print(f"\nconst uint16_t grid_{name}[{n}] = {{")
    for i in range(0, n, 12):
        print("    " + " ".join(f"0x{e:04x}," for e in entries[i:i + 12]))
    print("};")
