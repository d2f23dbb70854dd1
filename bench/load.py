"""Clients that request streams from a server, all in one thread, so that the processor is left to the server. Standard
library only."""
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time

PIECE = re.compile(rb'"text":\s*"[^"]')  # an event with text in it, as OpenAI's completions have them


class Stream:
    """One request whose answer comes as server-sent events. Times are of the clock time.perf_counter()."""

    def __init__(self, port, body):
        text = json.dumps(dict(body, stream=True, stream_options={"include_usage": True})).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n")
        self.body = body
        self.asked = time.perf_counter()
        self.first = self.last = self.gap = 0.0
        self.data = b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        try:
            self.socket.sendall(head.encode() + text)
        except (ConnectionResetError, BrokenPipeError):  # read() says so
            pass
        self.socket.setblocking(False)

    def read(self):
        """Reads the data that has arrived. False: the stream has ended."""
        try:
            piece = self.socket.recv(1 << 16)
        except ConnectionResetError:  # the server has its maximum of connections: no status
            piece = b""
        now = time.perf_counter()
        if not piece:
            self.socket.close()
            return False
        self.data += piece
        if self.first:
            self.gap = max(self.gap, now - self.last)
        elif PIECE.search(self.data):
            self.first = now
        self.last = now
        return True

    def status(self):
        return int(self.data[9:12] or 0)

    def events(self):
        """The JSON of every event, without the chunked transfer encoding."""
        found = re.findall(rb'^data: (\{.*\})\r?$', self.data, re.M)
        return [json.loads(event) for event in found]

    def whole(self):
        return b"data: [DONE]" in self.data

    def text(self):
        return "".join(c.get("text", "") for event in self.events() for c in event.get("choices", []))

    def n_token(self):
        return max([(event.get("usage") or {}).get("completion_tokens", 0) for event in self.events()] or [0])


def closed_loop(port, bodies, again=()):
    """bodies[i] are what client i asks for, one after the other. A status in `again` is no answer: it is asked once more
    (0: the connection was closed).
    The streams, as they ended; seconds of all."""
    left = [list(reversed(each)) for each in bodies]
    chosen, done, begun = selectors.DefaultSelector(), [], time.perf_counter()

    def ask(i):
        if left[i]:
            stream = Stream(port, left[i].pop())
            stream.client = i
            chosen.register(stream.socket, selectors.EVENT_READ, stream)
    for i in range(len(left)):
        ask(i)
    while chosen.get_map():
        for key, _ in chosen.select():
            stream = key.data
            socket_of = stream.socket
            if not stream.read():
                chosen.unregister(socket_of)
                if stream.status() in again:
                    left[stream.client].append(stream.body)
                    time.sleep(0.02)
                else:
                    done.append(stream)
                ask(stream.client)
    return done, time.perf_counter() - begun


def end_with_servers():
    """A script that is ended also ends the servers that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Child:
    """A server that this script started; ready when /health says so."""

    def __init__(self, command, env=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.child = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(self.port)],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        begun = time.perf_counter()
        while time.perf_counter() - begun < 120 and self.child.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    self.start_s = time.perf_counter() - begun
                    return
            except (OSError, RuntimeError):
                pass
            time.sleep(0.005)
        self.end()
        raise RuntimeError(f"{' '.join(command)}: it never was ready, exit {self.child.returncode}")

    def get(self, path):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        for _ in range(100):
            try:
                return self.send(request)
            except ConnectionResetError:  # clients that disconnected still count as connected
                time.sleep(0.1)
        raise RuntimeError(f"{path}: no connection for 10 s")

    def post(self, path, body):
        text = json.dumps(body).encode()
        return self.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/"
                         f"json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    def send(self, request):
        """(status, body)"""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as to:
            to.sendall(request)
            data = b""
            while piece := to.recv(1 << 16):
                data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head[9:12] or 0), body

    def peak(self):
        """VmHWM in bytes."""
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmHWM:\s*(\d+)", file.read())[1]) * 1024

    def end(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def quantile(values, share):
    """The smallest value that `share` of them do not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, max(0, -(-int(share * 1000) * len(values) // 1000) - 1))]


def seen(streams, seconds):
    """The figures of one load."""
    firsts = [s.first - s.asked for s in streams if s.first]
    n = sum(s.n_token() for s in streams)
    return {"tok_s": n / seconds, "seconds": seconds, "tokens": n, "answers": len(streams),
            "failed": sum(s.status() != 200 or not s.whole() for s in streams),
            "first_p50": quantile(firsts, 0.5), "first_p99": quantile(firsts, 0.99),
            "gap_p50": statistics.median(s.gap for s in streams), "gap_max": max(s.gap for s in streams)}
