"""Hosts as network namespaces on a hub that delays and loses packets. As a program it is the hub:
network.py DELAY_MS LOSS INTERFACE..."""
import ctypes
import heapq
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 3, 263, 15, 4
HEADER = 10  # of a frame: what the system would have left to the network card


def hub(delay, loss, names):
    """Passes each frame on to all other interfaces."""
    chance = random.Random(1)
    all_of = []
    for name in names:
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        s.bind((name, ETH_P_ALL))
        all_of.append(s)
    print("ready", flush=True)
    queue, count = [], 0
    while True:
        now = time.monotonic()
        while queue and queue[0][0] <= now:
            _, _, frame, to = heapq.heappop(queue)
            for s in to:
                try:
                    s.send(frame)
                except OSError:
                    pass  # that host's link is down
        left = max(queue[0][0] - time.monotonic(), 0) if queue else None
        for s in select.select(all_of, [], [], left)[0]:
            try:
                frame, address = s.recvfrom(1 << 17)
            except OSError:
                continue
            if address[2] == PACKET_OUTGOING or chance.random() < loss:
                continue
            count += 1
            heapq.heappush(queue, (time.monotonic() + delay, count, frame, [o for o in all_of if o is not s]))


class Network:
    """Namespaces with one address each, 10.77.0.1 and so on."""

    def __init__(self, n, prefix):
        self.names = ["%s%d" % (prefix, i + 1) for i in range(n)]
        self.middle = prefix + "m"
        self.child = None
        self.ip("netns", "add", self.middle)
        for i, name in enumerate(self.names):
            self.ip("netns", "add", name)
            self.ip("-n", self.middle, "link", "add", "m%d" % i, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("-n", self.middle, "link", "set", "m%d" % i, "up")
            self.ip("-n", name, "address", "add", "10.77.0.%d/24" % (i + 1), "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def ip(*args):
        subprocess.run(["ip", *args], check=True, stderr=subprocess.PIPE, text=True)

    def within(self, i):
        """The words before a command that runs on host i."""
        return ["ip", "netns", "exec", self.names[i]]

    def link(self, i, state):
        self.ip("-n", self.names[i], "link", "set", "eth0", state)

    def quality(self, delay_ms, loss):
        """Starts the hub anew."""
        self.stop()
        self.child = subprocess.Popen(
            ["ip", "netns", "exec", self.middle, sys.executable, __file__, str(delay_ms), str(loss)]
            + ["m%d" % i for i in range(len(self.names))], stdout=subprocess.PIPE, text=True)
        self.child.stdout.readline()

    def stop(self):
        if self.child:
            self.child.kill()
            self.child.wait()
            self.child.stdout.close()
            self.child = None

    def close(self):
        self.stop()
        for name in [*self.names, self.middle]:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the test
    hub(float(sys.argv[1]) / 1000, float(sys.argv[2]), sys.argv[3:])
