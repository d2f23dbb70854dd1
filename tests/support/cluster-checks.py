"""Batches on several ranks: the answers of one process; a killed rank ends the run with a clear error, and the same
command continues. cluster-checks.py NIBBLE MODEL FOLDER DEVICES [OPTION...]: DEVICES are the most ranks"""
import os
import signal
import subprocess
import sys
import threading
import time

from batch_lines import answers, line
from server import Server, check, finish

nibble, model, folder, most = sys.argv[1:5]
split = sys.argv[5:]
last = most.count(",") # the number of the last rank
lists = ["cpu,cpu", most] if last > 1 else [most]


def batch(out, devices, *more, **how):
    more = list(more) + (["--devices", devices] + split if devices else [])
    return subprocess.Popen([nibble, "batch", model, "-o", out, "-c", "160", "-np", "5", *more],
                            stderr=subprocess.PIPE, text=True, **how)


def ranks_of(process):
    """Its children, whichever of its threads has started them."""
    found = []
    for task in os.listdir("/proc/%d/task" % process.pid):
        with open("/proc/%d/task/%s/children" % (process.pid, task)) as f:
            found += [int(p) for p in f.read().split()]
    return sorted(found)


# A rank that is stopped closes nothing. The wait for it overlaps with the other checks.
stopped = batch(folder + "/stopped", most, "-i", "-", stdin=subprocess.PIPE)
stopped.stdin.write(line(0))
stopped.stdin.flush()
while not (os.path.exists(folder + "/stopped") and os.path.getsize(folder + "/stopped")):
    time.sleep(0.01)
os.kill(ranks_of(stopped)[-1], signal.SIGSTOP)
stopped_at = time.monotonic()
stopped.stdin.write(line(1))
stopped.stdin.flush()
ended = []
waits = threading.Thread(target=lambda: ended.append((stopped.communicate()[1], time.monotonic() - stopped_at)))
waits.start()

requests = os.path.join(folder, "requests")
with open(requests, "w") as f:
    f.writelines(line(i) for i in range(16))
for devices in [""] + lists:
    more = ["--cache-size", "256"] if devices == most else [] # answers are preempted
    p = batch(folder + "/out" + devices, devices, "-i", requests, *more)
    said = p.communicate()[1]
    check("a batch on %s ends well" % (devices or "one process"), p.returncode == 0, said)
want = answers(folder + "/out")
for devices in lists:
    check("its answers on %s are those of one process" % devices, answers(folder + "/out" + devices) == want)

# The input stays open, so the rank dies while the batch runs.
out = folder + "/killed"
p = batch(out, most, "-i", "-", stdin=subprocess.PIPE)
p.stdin.write(line(0))
p.stdin.flush()
until = time.monotonic() + 20
while time.monotonic() < until and not (os.path.exists(out) and os.path.getsize(out)):
    time.sleep(0.01)
others = ranks_of(p)
os.kill(others[-1], signal.SIGKILL)
begun = time.monotonic()
said = p.communicate("".join(line(i) for i in range(1, 16)))[1]
check("a killed rank is named", p.returncode == 1 and "rank %d" % last in said and "signal 9" in said, said)
check("within seconds", time.monotonic() - begun < 5, time.monotonic() - begun)
check("no process is left", len(others) == last and not any(os.path.exists("/proc/%d" % i) for i in others), others)
p = batch(out, "cpu,cpu", "-i", requests)
said = p.communicate()[1]
check("the same batch continues on other ranks", p.returncode == 0 and "answered before" in said, said)
check("no line is lost", answers(out) == want)

s = Server(nibble, model, "--devices", "cpu,cpu", *split, "-c", "160")
ask = {"prompt": "a", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
first = s.post("/v1/completions", ask)[1]["choices"][0]["text"]
os.kill(ranks_of(s.child)[0], signal.SIGKILL)
status, then = s.post("/v1/completions", ask) # the server may not have seen it yet
again = s.post("/v1/completions", ask) if status >= 500 else (status, then)
check("a server starts its ranks again", again[0] == 200 and again[1]["choices"][0]["text"] == first, (then, again))
code, said = s.end()
check("and ends well", code == 0 and "opened again" in said, said)

waits.join()
said, seconds = ended[0]
check("a stopped rank is named", stopped.returncode == 1 and "rank %d" % last in said and "no sign of life" in said, said)
check("after the time without a sign of life", seconds < 8, seconds)
finish()
