"""Whether two files of logits differ by at most BOUND of the largest magnitude. logits-near.py ONE OTHER BOUND"""
import array
import json
import struct
import sys


def logits(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        begin, end = json.loads(f.read(size))["logits"]["data_offsets"]
        f.seek(8 + size + begin)
        values = array.array("f")
        values.frombytes(f.read(end - begin))
        return values


one, other = logits(sys.argv[1]), logits(sys.argv[2])
worst = max(abs(x - y) for x, y in zip(one, other)) / max(map(abs, one))
print("%g of the largest logit" % worst)
sys.exit(len(one) != len(other) or not worst <= float(sys.argv[3]))
