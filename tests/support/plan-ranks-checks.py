"""Plans of ranks by the rates of files: plan-ranks-checks.py NIBBLE FOLDER"""
import json
import subprocess
import sys

from server import check, finish

nibble, folder = sys.argv[1:]


def profile(name, times):
    """A hardware profile of a machine that is `times` as fast."""
    def rate(best):
        return {"best": best * times, "median": best * times, "worst": best * times}
    path = "%s/%s.json" % (folder, name)
    with open(path, "w") as f:
        json.dump({"nibble_hardware": 1, "machine": {}, "seconds": 1, "barrier_s": 1e-7, "pack": rate(1e9),
                   "memory": [{"threads": 1, "read": rate(1e10)}], "threads": 4,
                   "disk": {"folder": "/", "ring": True, "direct": True,
                            "rates": [{"depth": 8, "block": 1 << 20, "read": rate(1e9)}]},
                   "products": [{"bits": b, "asym": False, "one_row": rate(1e10), "one_thread": rate(4e9),
                                 "two_rows": rate(1e10), "many_rows": rate(2e11)} for b in (4, 8)]}, f)
    return path


def plan(shape, lines, *more):
    path = folder + "/cluster"
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    p = subprocess.run([nibble, "plan", "synth:" + shape, "--hosts", path, "--json", *more], capture_output=True, text=True)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr


fast, slow = profile("fast", 4), profile("slow", 1)
many = ("--parallel", "32", "-c", "256")


def blocks(p):
    return [r["blocks"][1] - r["blocks"][0] + 1 for r in p["ranks"]]


def whole(p):
    """The stages are all blocks, one after the other."""
    ends = [r["blocks"] for r in p["ranks"]]
    return ends[0][0] == 0 and all(a[1] + 1 == b[0] for a, b in zip(ends, ends[1:])) and p["ranks"][-1]["last"] == "head"


try:
    a = plan("llama-3.2-1b", ["10.0.0.1 rates=" + fast, "b rates=" + slow], *many)
    b = plan("llama-3.2-1b", ["10.0.0.1 rates=" + slow, "b rates=" + fast], *many)
    check("a fast host gets more blocks, first or last", whole(a) and whole(b) and blocks(a)[0] > 2 * blocks(a)[1]
          and blocks(b)[1] > 2 * blocks(b)[0], (a, b))
    check("a plan without hosts says so", a["simulated"] and a["ranks"][0]["rates"] == "file", a)
    check("both are busy", all(r["busy"] > 0.8 for p in (a, b) for r in p["ranks"]), (a, b))
    same = plan("llama-3.2-1b", ["10.0.0.1 rates=" + slow, "b rates=" + slow], *many)
    check("the fast host makes it faster", a["predicted"]["tok_s"] > 1.5 * same["predicted"]["tok_s"], (a, same))
    check("equal hosts are cut so that the slowest is within a layer's time",
          max(r["pass_s"] for r in same["ranks"]) - min(r["pass_s"] for r in same["ranks"])
          < 3 * same["ranks"][0]["pass_s"] / blocks(same)[0], same)
    capped = plan("llama-3.2-1b", ["10.0.0.1 ram=400M rates=" + slow, "b rates=" + slow], *many)
    check("a cap leaves the rest to the other host", whole(capped) and capped["ranks"][0]["tiers"]["ram"] <= 400 << 20
          and blocks(capped)[0] < blocks(same)[0], capped)
    large = plan("opt-175b", ["10.0.0.1 cpu,cpu,cpu,cpu rates=" + slow]
                 + ["h%d cpu,cpu,cpu,cpu rates=%s" % (i, fast if i % 2 else slow) for i in range(15)], "-c", "256",
                 "--parallel", "256")
    check("a cluster of 16 hosts by simulation", whole(large) and len(large["ranks"]) == 64 and large["simulated"], large)
    said = subprocess.run([nibble, "plan", "synth:opt-125m", "--hosts", folder + "/cluster"], capture_output=True,
                          text=True)
    check("more ranks than blocks", said.returncode == 2 and "can be cut into at most" in said.stderr, said)
except (KeyError, TypeError, IndexError) as e:
    check("plans of ranks have their parts", False, repr(e))
here = subprocess.run([nibble, "plan", "synth:opt-125m", "--devices", "cpu,cpu"], capture_output=True, text=True)
check("a plan of devices, as text", here.returncode == 0 and "rank 1" in here.stdout and "simulated" not in here.stdout,
      here)
finish()
