#!/usr/bin/env python3
"""Makes tests/data/tokenizer/NAME.damaged: the token ids that llama.cpp computes for texts that are no UTF-8, with the
vocabularies there, and the small Unigram vocabulary among them (unigram.gguf.gz, from
tests/data/tokenizer-json/unigram-charsmap.json).

  make-damaged-data.py OUT        OUT: tests/data/tokenizer

Needs the PyPI packages gguf and llama-cpp-python (bench/install-llama.sh; tested with 0.3.36). A line of NAME.damaged is
one text: its bytes in hexadecimal, a colon, its ids (no BOS or EOS added, special tokens are plain text)."""
import argparse
import base64
import ctypes
import glob
import gzip
import json
import os
import random
import tempfile

import gguf
import llama_cpp

UNIGRAM = "tests/data/tokenizer-json/unigram-charsmap.json"
# Truncated characters, bytes that begin no character, overlong forms, surrogates. No number above U+10FFFF: llama.cpp
# ends there.
DAMAGED = [b"\xff", b"\xfe", b"\x80", b"\xbf\xbf", b"\xc3", b"\xc2", b"\xe2\x82", b"\xe3", b"\xf0\x9f\xa6", b"\xf0\x9f", b"\xf0",
           b"\xc0\x80", b"\xc1\x81", b"\xc0\xa0", b"\xe0\x80\xa0", b"\xe0\x81\x81", b"\xf0\x80\x81\x81", b"\xed\xa0\x80",
           b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf8\x88\x80\x80\x80", b"\xfc", b"\xe2\x96", b"\xc3(", b"\xe2(\xa1",
           b"\xf0(\x8c\xbc", b"Gr\xfc\xdfe", b"na\xefve caf\xe9", b"\x93quoted\x94", b"\x1b\xff", b"\x00\x80"]
WHOLE = [" ", "  ", "\n", "a", "the", " Hello", "it's", "123", "é", "ß", "中文", "🦙", "\u2581", "\u0301", "\u00a0", "\ufffd", "!?", "½"]


def texts():
    rng = random.Random(1)
    out = list(DAMAGED)
    out += [b"a" + d + b" b" for d in DAMAGED]
    for _ in range(60):
        parts = [rng.choice(DAMAGED) if rng.random() < 0.4 else rng.choice(WHOLE).encode() for _ in range(rng.randint(2, 10))]
        out.append(b"".join(parts))
    return out


def write_unigram(path):
    """As convert_hf_to_gguf.py writes a T5 vocabulary."""
    with open(UNIGRAM) as f:
        source = json.load(f)
    types = {False: gguf.TokenType.USER_DEFINED, True: gguf.TokenType.CONTROL}
    tokens = [(text, score, gguf.TokenType.NORMAL) for text, score in source["model"]["vocab"]]
    for added in sorted(source["added_tokens"], key=lambda a: a["id"]):
        if added["id"] == len(tokens):
            tokens.append((added["content"], 0.0, types[added["special"]]))
    unk = source["model"]["unk_id"]
    tokens[unk] = tokens[unk][:2] + (gguf.TokenType.UNKNOWN,)
    writer = gguf.GGUFWriter(path, "t5")
    writer.add_tokenizer_model("t5")
    writer.add_token_list([t[0] for t in tokens])
    writer.add_token_scores([t[1] for t in tokens])
    writer.add_token_types([t[2] for t in tokens])
    writer.add_unk_token_id(unk)
    writer.add_eos_token_id([t[0] for t in tokens].index("</s>"))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(False)
    writer.add_precompiled_charsmap(base64.b64decode(source["normalizer"]["precompiled_charsmap"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@llama_cpp.llama_log_callback
def silent(level, text, user):
    pass


def tokenize(vocabulary, text):
    ids = (llama_cpp.llama_token * (4 * len(text) + 16))()
    n = llama_cpp.llama_tokenize(vocabulary, text, len(text), ids, len(ids), False, False)
    return list(ids[:n])


def write_damaged(gguf_path, out_path):
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(gguf_path.encode(), params)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    with open(out_path, "w") as f:
        for text in texts():
            f.write("%s:%s\n" % (text.hex(), "".join(" %d" % i for i in tokenize(vocabulary, text))))
    llama_cpp.llama_model_free(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    args = parser.parse_args()
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vocabulary.gguf")
        write_unigram(path)
        with open(path, "rb") as f, open(os.path.join(args.out, "unigram.gguf.gz"), "wb") as out:
            with gzip.GzipFile("", "wb", 9, out, 0) as packed:
                packed.write(f.read())
        for packed in sorted(glob.glob(os.path.join(args.out, "*.gguf.gz"))):
            with gzip.open(packed) as f, open(path, "wb") as out:
                out.write(f.read())
            write_damaged(path, packed[: -len(".gguf.gz")] + ".damaged")


if __name__ == "__main__":
    main()
