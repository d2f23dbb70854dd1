#!/usr/bin/env python3
"""Writes a deepseek2 GGUF file in the absorbed form of latent attention, as llama.cpp's converter does today:
attn_k_b [heads, low, plain] and attn_v_b [heads, values, low] in place of attn_kv_b, and head sizes of the rows of
low rank beside those of the heads.

    tools/make-absorbed-gguf.py IN.gguf OUT.gguf        (needs numpy, gguf)

tests/data/arch-gguf/deepseek2-absorbed.gguf is arch-extra/deepseek_v2-dense, by `nibble quantize --type bf16` and this.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

r = GGUFReader(sys.argv[1])
keys = {k: (f.types[0], f.contents()) for k, f in r.fields.items() if not k.startswith("GGUF.")}
arch = keys.pop("general.architecture")[1]


def number(name):
    return keys[f"{arch}.{name}"][1]


n_head, low, rotated = number("attention.head_count"), number("attention.kv_lora_rank"), number("rope.dimension_count")
plain, values = number("attention.key_length") - rotated, number("attention.value_length")
w = GGUFWriter(sys.argv[2], arch)
changed = {"head_count_kv": 1, "key_length": low + rotated, "value_length": low, "key_length_mla": plain + rotated,
           "value_length_mla": values}
for name, value in changed.items():
    keys[f"{arch}.attention.{name}"] = (GGUFValueType.UINT32, value)
for name, (kind, value) in keys.items():
    if kind == GGUFValueType.ARRAY:
        w.add_array(name, value)
    else:
        w.add_key_value(name, value, kind)
for t in r.tensors:
    wide = t.tensor_type != GGMLQuantizationType.BF16
    parts = {t.name: t.data}
    if t.name.endswith("attn_kv_b.weight"):
        kv = (t.data if wide else t.data.view(np.uint16)).reshape(n_head, plain + values, low)
        parts = {t.name.replace("kv_b", "k_b"): kv[:, :plain].transpose(0, 2, 1),
                 t.name.replace("kv_b", "v_b"): kv[:, plain:]}
    for name, data in parts.items():
        data = np.ascontiguousarray(data)
        w.add_tensor(name, data if wide else data.view(np.uint8), raw_dtype=None if wide else t.tensor_type)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
