"""Splits a GGUF file into shards as llama.cpp's gguf-split names and numbers them; only the standard library.
   python3 split-gguf.py IN.gguf OUT-PREFIX SHARDS [--again SHARD]
--again: that shard (from 0) also carries the first tensor of the one before it."""
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT16, INT32, ALIGN = 2, 5, 32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def skip(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.take("I"), self.take("Q")
            for _ in range(n):
                self.skip(inner)
        else:
            self.at += SIZES[kind]


def key(name, kind, form, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I" + form, kind, value)


def read(path):
    with open(path, "rb") as file:
        r = Reader(file.read())
    assert r.take("I") == 0x46554747 and r.take("I") == 3
    n_tensor, n_key = r.take("Q"), r.take("Q")
    begin = r.at
    for _ in range(n_key):
        r.text()
        r.skip(r.take("I"))
    keys = r.data[begin:r.at]
    infos = []
    for _ in range(n_tensor):
        begin = r.at
        r.text()
        n_dim = r.take("I")
        r.at += 8 * n_dim + 4
        infos.append((r.data[begin:r.at], r.take("Q")))
    data = r.data[(r.at + ALIGN - 1) // ALIGN * ALIGN:]
    ends = sorted(offset for _, offset in infos) + [len(data)]
    tensors = [(head, data[offset:ends[ends.index(offset) + 1]]) for head, offset in infos]
    return n_key, keys, tensors


def write(path, n_key, keys, tensors):
    infos, data = b"", b""
    for head, content in tensors:
        infos += head + struct.pack("<Q", len(data))
        data += content + bytes(-len(content) % ALIGN)
    header = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), n_key) + keys + infos
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGN) + data)


def main(source, prefix, count, again):
    n_key, keys, tensors = read(source)
    for no in range(count):
        own = tensors[len(tensors) * no // count:len(tensors) * (no + 1) // count]
        if no == again:
            own = own + [tensors[len(tensors) * (no - 1) // count]]
        split = (key(b"split.no", UINT16, "H", no) + key(b"split.count", UINT16, "H", count) +
                 key(b"split.tensors.count", INT32, "i", len(tensors)))
        write(f"{prefix}-{no + 1:05}-of-{count:05}.gguf", (n_key if no == 0 else 0) + 3,
              (keys if no == 0 else b"") + split, own)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[5]) if len(sys.argv) > 4 else -1)
