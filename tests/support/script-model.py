"""Makes a folder with a model that always gives the same answer: after the token that begins an answer the pieces of a
text follow each other, then the end. Its layers add nothing to the residual stream, and the output head's row of each
piece is the embedding of the one before it. With a template of its own, so turns and templates are real.
   python3 script-model.py OUT TEXT-FILE"""
import json
import random
import re
import struct
import sys

D, D_FF, D_HEAD, LAYERS = 64, 32, 16, 1


def pieces_of(text):
    """Words with the white space before them, all distinct: a repeated piece is joined with the next one."""
    found, piece = [], ""
    for part in re.findall(r"\s*\S+|\s+$", text):
        piece += part
        if piece not in found:
            found.append(piece)
            piece = ""
    return found + [piece] if piece else found


def byte_names():
    """The 256 bytes in GPT-2's form."""
    shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    names = {b: chr(b) for b in shown}
    names.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in shown)})
    return names


def write_tokenizer(path, special, pieces):
    names = byte_names()
    added = [(t, True) for t in special] + [(t, False) for t in pieces]
    entries = [{"id": 256 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": s} for i, (t, s) in enumerate(added)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "normalizer": None, "post_processor": None, "added_tokens": entries,
                   "pre_tokenizer": level, "decoder": level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                             "vocab": {names[b]: b for b in range(256)}, "merges": []}}, file)


def write_safetensors(path, tensors):
    """tensors: {name: (shape, numbers)}, each number 0, 1 or -1, in bf16."""
    header, data = {}, b""
    bits = {0: 0, 1: 0x3F80, -1: 0xBF80}
    for name, (shape, numbers) in tensors.items():
        packed = struct.pack(f"<{len(numbers)}H", *(bits[n] for n in numbers))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def tensors_of(n_vocab, after):
    """after: {token: the one that follows}."""
    draw = random.Random(1)
    embed = [[draw.choice((1, -1)) for _ in range(D)] for _ in range(n_vocab)]
    head = [[0] * D for _ in range(n_vocab)]
    for token, following in after.items():
        head[following] = embed[token]
    flat = lambda rows: [n for row in rows for n in row]
    tensors = {"model.embed_tokens.weight": ([n_vocab, D], flat(embed)), "lm_head.weight": ([n_vocab, D], flat(head)),
               "model.norm.weight": ([D], [1] * D)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = ([D], [1] * D)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{at}self_attn.{name}.weight"] = ([D, D], [0] * D * D)
        for name, shape in (("gate_proj", [D_FF, D]), ("up_proj", [D_FF, D]), ("down_proj", [D, D_FF])):
            tensors[f"{at}mlp.{name}.weight"] = (shape, [0] * D * D_FF)
    return tensors


def main():
    out, text_file = sys.argv[1:]
    with open(text_file, encoding="utf-8") as file:
        pieces = pieces_of(file.read())
    special = ["<s>", "<u>", "<a>", "<e>"]
    answer, end, first = 258, 259, 260
    chain = [answer, *range(first, first + len(pieces)), end]
    n_vocab = first + len(pieces)
    write_tokenizer(f"{out}/tokenizer.json", special, pieces)
    write_safetensors(f"{out}/model.safetensors", tensors_of(n_vocab, dict(zip(chain, chain[1:]))))
    with open(f"{out}/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<e>"}, file)
    with open(f"{out}/config.json", "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": D_FF,
                   "num_hidden_layers": LAYERS, "num_attention_heads": D // D_HEAD, "num_key_value_heads": D // D_HEAD,
                   "head_dim": D_HEAD, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
                   "max_position_embeddings": 4096, "vocab_size": n_vocab, "eos_token_id": end,
                   "tie_word_embeddings": False}, file)


main()
