"""Ranks on several hosts, which are network namespaces: the answers of one process, over a network that delays and
loses; ranks that die or cannot be reached, and a batch that continues; callers without the secret, other builds and
other models. hosts-checks.py NIBBLE TESTS FOLDER PREFIX"""
import ctypes
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

from batch_lines import answers, line
from network import Network
from server import check, finish

nibble, tests, folder, prefix = sys.argv[1:5] if sys.argv[1] != "fake" else [""] * 4
model, dense = folder + "/chat", tests + "/data/arch/llama"
GREETING, PROOF = 8 + 64 + 32, 8 + 64 + 32 + 16 + 32  # src/cluster/connect.c


def enter(fd):
    """This process moves to a namespace of the network."""
    if ctypes.CDLL(None).setns(fd, 0x40000000):
        raise OSError("setns")


def hosts(name, *lines):
    path = "%s/%s" % (folder, name)
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    return path


def host(i, more=""):
    return "%s program=%s %s" % (net.names[i], nibble, more)


def start(*args, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen([*net.within(0), nibble, *args], text=True, **how)


def tokens(*more):
    """(exit code, tokens of an answer, messages)"""
    p = start("run", dense, "--tokens", "5,6,7", "-n", "12", "--temp", "0", "--ignore-eos", "-q", *more)
    out, said = p.communicate()
    return p.returncode, out, said


def batch(out, *more, **how):
    return start("batch", model, "-o", out, "-c", "160", "-np", "5", *more, **how)


def command(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            return f.read().decode().split("\0")
    except OSError:
        return []


def find_rank(port, rank):
    """The process of a rank of the run that listens at this port."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = command(int(pid))
        if len(words) == 4 and words[1] == "--rank" and words[2].startswith("tcp:%d,%d," % (port, rank)):
            return int(pid)
    return 0


def children(pid):
    found = []
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, task)) as f:
            found += [int(p) for p in f.read().split()]
    return found


def port_of(p):
    """The port of the first rank, from the command of one that it has started."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for child in children(p.pid):
            got = re.search(r"tcp:(\d+),", " ".join(command(child)))
            if got:
                return int(got.group(1))
        time.sleep(0.01)
    return 0


def running(name, where):
    """A batch whose input stays open, when its first answer is there."""
    out = folder + "/" + name
    with open(out + ".said", "w") as said: # which a rank that outlives its launcher holds open
        p = batch(out, "-i", "-", *where, stdin=subprocess.PIPE, stderr=said)
    p.stdin.write(line(0))
    p.stdin.flush()
    until = time.monotonic() + 20
    while time.monotonic() < until and not (os.path.exists(out) and os.path.getsize(out)):
        time.sleep(0.01)
    return p, out


def end(p, out):
    """Gives the rest of the lines. Returns (messages, seconds)."""
    begun = time.monotonic()
    p.stdin.write("".join(line(i) for i in range(1, 16)))
    p.stdin.close()
    p.wait()
    with open(out + ".said") as f:
        return f.read(), time.monotonic() - begun


def script(name, text):
    path = "%s/%s" % (folder, name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def exact(s, n):
    got = b""
    while len(got) < n:
        part = s.recv(n - len(got))
        if not part:
            return got
        got += part
    return got


def call(address, port, secret, kind, rank, build=None):
    """Calls a rank with a proof by this secret. Returns what it answers."""
    s = socket.create_connection((address, port), timeout=5)
    greeting = exact(s, GREETING)
    said = b"nibrank\0" + (build.ljust(64, b"\0") if build else greeting[8:72]) + os.urandom(32) \
        + struct.pack("<iiii", kind, rank, 0, 0)
    s.sendall(said + hmac.new(secret, greeting + said, hashlib.sha256).digest())
    return exact(s, 32)


def intrude(port):
    """What else may call a port. All callers but the silent ones must be sent away."""
    silent = [socket.create_connection(("10.77.0.1", port), timeout=5) for _ in range(40)]
    garbage = socket.create_connection(("10.77.0.1", port), timeout=5)
    try:
        garbage.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(1000))
        exact(garbage, GREETING)
        refused = exact(garbage, 1) == b""
    except ConnectionError:
        refused = True
    try:
        refused = refused and call("10.77.0.1", port, bytes(32), 1, 1) == b""
    except ConnectionError:
        pass
    return refused, silent


def in_namespace(i):
    """This process moves to host i."""
    with open("/run/netns/" + net.names[i]) as f:
        enter(f.fileno())


def checks():
    launch = ["--launcher", "ip netns exec"]
    three = ["--hosts", hosts("three", "10.77.0.1 cpu", host(1), host(2))] + launch
    two = ["--hosts", hosts("two", "10.77.0.1 cpu,cpu", host(1, "ram=64G"))] + launch

    # A launcher that stays, as ssh does: what it has started goes on without it.
    stays = script("stays", 'host=$1; shift; ip netns exec "$host" "$@"\n')
    lost, lost_out = running("lost", ["--hosts", three[1], "--launcher", stays])
    orphan = find_rank(port_of(lost), 2)
    net.link(2, "down")
    cut_at = time.monotonic()
    said, seconds = end(lost, lost_out)
    check("a rank that cannot be reached is named", lost.returncode == 1 and "rank 2 on " + net.names[2] in said
          and "no sign of life" in said and "cannot be reached" in said, said)
    check("after the time without a sign of life", seconds < 8, seconds)
    net.link(2, "up")
    check("it runs on for now", orphan and os.path.exists("/proc/%d" % orphan), orphan)

    want = tokens()[1]
    check("3 hosts give the tokens of one process", tokens(*three)[:2] == (0, want))
    check("so do 2 ranks on one of 2 hosts", tokens(*two)[:2] == (0, want))
    p = start("plan", dense, "--json", "--parallel", "8", *three)
    plan = json.loads(p.communicate()[0])
    check("a plan asks the hosts", p.returncode == 0 and [r["host"] for r in plan["ranks"]]
          == ["10.77.0.1", net.names[1], net.names[2]] and not plan["simulated"], plan)
    requests = folder + "/requests"
    with open(requests, "w") as f:
        f.writelines(line(i) for i in range(16))
    p = batch(folder + "/one", "-i", requests)
    said = p.communicate()[1]
    check("a batch of one process", p.returncode == 0, said)
    whole = answers(folder + "/one")
    net.quality(4, 0.01)
    check("the same tokens with delay and loss", tokens(*three)[:2] == (0, want))
    p = batch(folder + "/slow", "-i", requests, *three)
    said = p.communicate()[1]
    check("a batch with delay and loss", p.returncode == 0 and answers(folder + "/slow") == whole, said)
    net.quality(0, 0)

    p, out = running("killed", three)
    victim = find_rank(port_of(p), 2)
    os.kill(victim, signal.SIGKILL)
    said, seconds = end(p, out)
    check("a killed rank is named", p.returncode == 1 and "rank 2 on " + net.names[2] in said and "signal 9" in said,
          said)
    check("at once", seconds < 5, seconds)
    p = batch(out, "-i", requests, *two)
    said = p.communicate()[1]
    check("the batch continues on other hosts", p.returncode == 0 and "answered before" in said, said)
    check("no line is lost", answers(out) == whole)
    p, out = running("killed behind", ["--hosts", three[1], "--launcher", stays])
    os.kill(find_rank(port_of(p), 1), signal.SIGKILL)
    said, seconds = end(p, out)
    check("a killed rank behind a launcher", p.returncode == 1 and "rank 1 on " + net.names[1] in said and seconds < 5,
          (said, seconds))

    late = script("late", 'sleep 1; exec ip netns exec "$@"\n')
    p = start("run", dense, "--tokens", "5,6,7", "-n", "12", "--temp", "0", "--ignore-eos", "-q", "--hosts", three[1],
              "--launcher", late)
    port = port_of(p)
    in_namespace(0)
    refused, silent = intrude(port)
    out, said = p.communicate()
    check("callers without the secret are sent away", refused)
    check("and hold nobody up", p.returncode == 0 and out == want, said)
    for s in silent:
        s.close()

    other = script("other", "exec '%s' '%s' fake \"$@\"\n" % (sys.executable, __file__))
    code, _, said = tokens("--hosts", three[1], "--launcher", other)
    check("a peer of another build is refused by name", code == 1 and "a build of 'nibble 99'" in said, said)
    code, _, said = tokens("--hosts", three[1], "--launcher", script("breaks", "exit 7\n"))
    check("a launcher that fails is named", code == 1 and re.search(r"rank [12] on \S+ .*exit code 7", said), said)
    code, _, said = tokens("--hosts", three[1], "--launcher", "no-such-launcher")
    check("a launcher that is not there", code == 1 and "cannot start no-such-launcher" in said, said)

    server = socket.create_server(("10.77.0.1", 0))
    for what, answer, words in (("without a greeting", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(200), "greeting"),
                                ("with another secret", b"nibrank\0" + bytes(96), "another one|another secret|build")):
        rank = subprocess.Popen([nibble, "--rank", "tcp:%d,1,10.77.0.1" % server.getsockname()[1]],
                                stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        rank.stdin.write("0" * 64 + "\n")
        rank.stdin.flush()
        s = server.accept()[0]
        s.sendall(answer)
        s.shutdown(socket.SHUT_WR)
        said = rank.communicate()[1]
        s.close()
        check("a first rank %s is refused" % what, rank.returncode == 1 and re.search(words, said), said)

    wrong = hosts("wrong", "10.77.0.1", host(1, "model=%s/data/arch/mistral" % tests))
    code, _, said = tokens("--hosts", wrong, *launch)
    check("another model is refused", code == 4 and "rank 1" in said and "is another one" in said, said)
    missing = hosts("missing", "10.77.0.1", host(1, "model=/no/such/model"))
    code, _, said = tokens("--hosts", missing, *launch)
    check("a model that is not there", code != 0 and "rank 1" in said and "/no/such/model" in said, said)

    while time.monotonic() - cut_at < 25 and os.path.exists("/proc/%d" % orphan):
        time.sleep(0.1)
    check("a rank that has lost the first one ends", not os.path.exists("/proc/%d" % orphan),
          time.monotonic() - cut_at)


def fake(name):
    """A rank of another build on the host of this name, which knows the secret."""
    port, rank, address = sys.argv[-1][len("tcp:"):].split(",")
    with open("/run/netns/" + name) as f:
        enter(f.fileno())
    call(address, int(port), bytes.fromhex(sys.stdin.readline().strip()), 1, int(rank), b"nibble 99")


if sys.argv[1] == "fake":
    fake(sys.argv[2])
    sys.exit(0)

net = Network(3, prefix)
try:
    net.quality(0, 0)
    checks()
finally:
    net.close()
finish()
