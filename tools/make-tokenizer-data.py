#!/usr/bin/env python3
"""Makes tests/data/tokenizer-json: small tokenizers trained with HF's `tokenizers` (PyPI, tested with 0.23), and its
results for some texts.

  make-tokenizer-data.py OUT [--random N]     N random texts more a tokenizer (default 40)

NAME.json is a tokenizer.json, NAME.cases a JSON list of
  {"text", "ids" (special tokens are plain text), "special" (special tokens parsed, template added), "decoded"}."""
import argparse
import base64
import json
import os
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """The quick brown fox jumps over the lazy dog. It's what we've been told: they'll say I'm wrong, he'd agree.
In 1984 there were 12,345 people in 67 towns; 3.14159 isn't 22/7 exactly, but 355/113 is close enough (1e-6).
def main(argv):\n    for i in range(10):\n\t\tprint("Hello, world!", i * 2)\n    return {'a': 1, "b": [2, 3]}
Größe, Straße, Übermut, naïve café, señor, coração, żółć, Ελληνικά κείμενο, Привет мир, как дела? Добрый день.
こんにちは世界。今日は良い天気ですね。 你好,世界!我想在苹果工作1314151天~ 안녕하세요 세계 Cửa Việt សួស្តី नमस्ते दुनिया
مرحبا بالعالم שלום עולם สวัสดีชาวโลก 🚀 (normal) 😶‍🌫️ ✅ 🦙🦙 ½ ¼ ² Ⅳ ① ﬁ ﬂ Å Å e\u0301 a\u0300\u0327 ẛ̣ ...   trailing
UPPER lower MixedCase camelCase HTTPServer HelloWORLDfoo I'VE DON'T y'all \u017fmall 'ſ
"""
PIECES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u180e",
          "'s", "'S", "'ll", "'", "1", "22", "333", "4444", "½", "Ⅳ", "٣", "a", "the", " Hello", "World", "é", "e\u0301",
          "\u0301", "\u0327", "ß", "İ", "ſ", "Ǆ", "ﬁ", "Å", "Ω", "中", "文字", "が", "か\u3099", "한", "한", "ก็", "नि",
          "🚀", "😶‍🌫️", "🇩🇪", "!", "?!", "...", "$", "+", "_", "-", "#", "<s>", "</s>", "<mask>", "[x]", "wor", " wor",
          "<|end|>", "▁", "▁▁", "\u0000", "\u007f", "\ufffd", "\ue000", "\U0010ffff", "\u0378", "\U0002ebf0", "ⓐ", "🄰",
          "\u200d", "\u200c", "·", "‿", "a\u0300\u0327\u0301", "\U0001d15f", "ﷺ", "ＡＢ", "ｶﾞ", "㌀"]


def texts(seed, n):
    rng = random.Random(seed)
    out = ["", " ", "  ", "a", " a", "a ", "Hello world", " Hello  world ", "\n", " \n \n", "<s>", "a<s>b", " <mask> x", "x <mask>",
           "[x]", "a[x]b", "a [x] b", "<|end|>  z", "'ſ 'S x'Ll", "wor", " wor wort", "x" * 90, "ab " * 30]
    out += [line for line in CORPUS.split("\n") if line]
    for _ in range(n):
        if rng.random() < 0.7:
            out.append("".join(rng.choice(PIECES) for _ in range(rng.randint(1, 14))))
        else:
            c = [rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x250, 0x3000), rng.randrange(0x3000, 0xD800),
                             rng.randrange(0xE000, 0x20000), rng.randrange(0x20000, 0x32000)]) for _ in range(rng.randint(1, 12))]
            out.append("".join(map(chr, c)))
    return out


def bpe(pre, norm=None, dec=None, size=420, added=(), post=None, alphabet=None, **model):
    t = Tokenizer(models.BPE(**model))
    if norm:
        t.normalizer = norm
    if pre:
        t.pre_tokenizer = pre
    special = ["<unk>"] if model.get("unk_token") else []
    if model.get("byte_fallback"):
        special += ["<0x%02X>" % b for b in range(256)]
        size += 256
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=alphabet or [])
    t.train_from_iterator(CORPUS.split("\n") * 3, trainer)
    if model.get("byte_fallback"): # byte tokens are part of the vocabulary, not special
        j = json.loads(t.to_str())
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
        t = Tokenizer.from_str(json.dumps(j))
    return finish(t, dec, added, post)


def unigram(pre, norm=None, dec=None, added=(), byte_fallback=False, size=300):
    t = Tokenizer(models.Unigram())
    if norm:
        t.normalizer = norm
    if pre:
        t.pre_tokenizer = pre
    special = ["<unk>"] + (["<0x%02X>" % b for b in range(256)] if byte_fallback else [])
    trainer = trainers.UnigramTrainer(vocab_size=size + len(special), special_tokens=special, unk_token="<unk>",
                                      show_progress=False)
    t.train_from_iterator(CORPUS.split("\n") * 3, trainer)
    j = json.loads(t.to_str())
    j["model"]["byte_fallback"] = byte_fallback
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    return finish(Tokenizer.from_str(json.dumps(j)), dec, added, None)


def finish(t, dec, added, post):
    if dec:
        t.decoder = dec
    for token in added:
        if token.special:
            t.add_special_tokens([token])
        else:
            t.add_tokens([token])
    if post:
        t.post_processor = processors.TemplateProcessing(single=post, special_tokens=[
            (name, t.token_to_id(name)) for name in ("<s>", "</s>") if name in post])
    return t


def darts(entries):
    """A precompiled charsmap (sentencepiece's layout) of {characters: replacement}."""
    blob, keys = b"", []
    for key, value in sorted((k.encode(), v.encode()) for k, v in entries.items()):
        keys.append((key, len(blob)))
        blob += value + b"\0"
    units = {}
    used = set()

    def place(node, depth, items):
        labels = []
        for key, value in items:
            c = key[depth] if depth < len(key) else 0
            if not labels or labels[-1][0] != c:
                labels.append((c, []))
            labels[-1][1].append((key, value))
        base = 1
        while any((base ^ c) in used or (base ^ c) == 0 for c, _ in labels) or (base ^ node) >= 1 << 21:
            base += 1
        for c, _ in labels:
            used.add(base ^ c)
        offset = base ^ node
        units[node] = units.get(node, 0) | offset << 10
        for c, rest in labels:
            if c == 0:
                units[node] |= 1 << 8
                units[base] = 1 << 31 | rest[0][1]
            else:
                units[base ^ c] = c
                place(base ^ c, depth + 1, rest)

    used.add(0)
    place(0, 0, keys)
    n = (max(units) // 256 + 1) * 256
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(n))
    return struct.pack("<I", len(trie)) + trie + blob


ALPHABET = pre_tokenizers.ByteLevel.alphabet()
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = [AddedToken("<s>", special=True), AddedToken("</s>", special=True),
            AddedToken("<mask>", special=True, lstrip=True), AddedToken("<|end|>", special=True, rstrip=True),
            AddedToken("[x]", special=False), AddedToken("wor", special=False, single_word=True)]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*steps, prefix=False, use_regex=False, **more):
    pre = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)])
    return bpe(pre, dec=decoders.ByteLevel(), alphabet=ALPHABET, added=SPECIALS, **more)


def chars(pre, norm=None, dec=None, **more):
    return bpe(pre, norm, dec, added=SPECIALS, unk_token="<unk>", **more)


def tokenizers():
    P, N, D = pre_tokenizers, normalizers, decoders
    llama_norm = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
    llama_dec = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    charsmap = base64.b64encode(darts({"ﬁ": "fi", "ﬂ": "fl", "Å": "Å", "½": "1⁄2", "Ａ": "A", "Ｂ": "B", "ｶ": "カ", "ｶﾞ": "ガ",
                                       "e\u0301": "é", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\n": " ", "\t": " ",
                                       "ﷺ": "صلى الله عليه وسلم"})).decode()
    yield "gpt2", byte_level(use_regex=True)
    yield "gpt2-prefix-template", byte_level(use_regex=True, prefix=True, post="<s> $A </s>")
    yield "llama3", byte_level(split(LLAMA3), ignore_merges=True, post="<s> $A")
    yield "qwen2-nfc", byte_level(split(QWEN2), norm=N.NFC())
    yield "qwen35", byte_level(split(QWEN35), norm=N.NFC())
    yield "gpt-4o", byte_level(split(O200K))
    yield "deepseek3", byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3))
    yield "deepseek-coder", byte_level(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                                       P.Digits(individual_digits=True))
    yield "starcoder", byte_level(P.Digits(individual_digits=True), use_regex=True)
    yield "falcon", byte_level(P.Punctuation("contiguous"), P.Digits(), split("[0-9][0-9][0-9]"), use_regex=True)
    yield "bloom", byte_level(split(r" ?[^(\s|[.,!?…。，、।۔،])]+") if False else split(" ?[^(\\s|.,!?…。，、।۔،)]+"))
    yield "groups-of-three", byte_level(split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"))
    yield "nfkc-lower", byte_level(split(r"\w+|[^\w\s]+"), norm=N.Sequence([N.NFKC(), N.Lowercase(), N.Strip()]))
    yield "nfkd-accents", byte_level(split(r"\b"), norm=N.Sequence([N.NFKD(), N.StripAccents()]))
    yield "nfd", byte_level(split(r"\p{M}+", "removed"), norm=N.NFD())
    yield "llama-like", chars(None, llama_norm, llama_dec, byte_fallback=True, fuse_unk=True, post="<s> $A")
    yield "gemma-like", chars(P.Split(" ", "merged_with_previous"), N.Replace(" ", "▁"),
                              D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]), byte_fallback=True, fuse_unk=True)
    yield "metaspace-first", chars(P.Metaspace("▁", "first"), None, D.Metaspace("▁", "first"))
    yield "metaspace-always-whole", chars(P.Metaspace("▁", "always", split=False), None, D.Metaspace("▁", "always"), fuse_unk=True)
    yield "metaspace-never", chars(P.Metaspace("_", "never"), None, D.Metaspace("_", "never"))
    yield "whitespace", chars(P.Whitespace())
    yield "whitespace-split", chars(P.Sequence([P.WhitespaceSplit(), P.Punctuation("merged_with_next")]))
    yield "bert-pre", chars(P.BertPreTokenizer(), N.NFC())
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield "split-" + behavior, chars(split(r"[\s\d]", behavior))
        yield "split-invert-" + behavior, chars(split(r"\p{L}+", behavior, True))
    yield "split-string", chars(P.Sequence([P.Split("a", "merged_with_previous"), P.Split("o", "merged_with_next"), P.CharDelimiterSplit("e")]))
    yield "replace-regex", chars(P.Punctuation("removed"), N.Sequence([N.Replace(Regex(r"\s+"), " "), N.Replace(Regex("(?<=a)"), "_"),
                                                                       N.Strip(True, False)]))
    yield "unigram", unigram(P.Metaspace("▁", "always"), N.NFKC(), D.Metaspace("▁", "always"), SPECIALS)
    yield "unigram-bytes", unigram(P.Metaspace("▁", "first"), None, D.Sequence([D.ByteFallback(), D.Metaspace("▁", "first")]),
                                   SPECIALS, True)
    yield "unigram-charsmap", unigram(P.Metaspace("▁", "always"), N.Precompiled(base64.b64decode(charsmap)), D.Metaspace("▁", "always"), SPECIALS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--random", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name, t in tokenizers():
        path = os.path.join(args.out, name)
        t.no_padding()
        with open(path + ".json", "w") as f:
            json.dump(json.loads(t.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_file(path + ".json")
        cases = []
        for text in texts(args.seed, args.random):
            t.encode_special_tokens = True
            ids = t.encode(text, add_special_tokens=False).ids
            t.encode_special_tokens = False
            special = t.encode(text, add_special_tokens=True).ids
            bos = t.token_to_id("<s>")
            if special[:2] == [bos, bos] and t.encode("").ids[:1] == [bos]: # a text that brings its own BOS gets no second one
                special = special[1:]
            cases.append({"text": text, "ids": ids, "special": special, "decoded": t.decode(ids, skip_special_tokens=True)})
        with open(path + ".cases", "w") as f:
            f.write("[" + ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
