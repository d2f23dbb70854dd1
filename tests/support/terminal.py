"""A program at a terminal of its own, driven key by key: what the tests of nibble chat share."""
import errno
import os
import pty
import select
import signal
import struct
import termios
import fcntl
import time


class Terminal:
    def __init__(self, argv, env=None, columns=80, stderr=None):
        self.shown = ""
        self.at = 0  # expect() looks from here on
        self.code = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if stderr:
                os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
            os.execve(argv[0], argv, {**os.environ, **(env or {})})
        self.resize(columns)

    def resize(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:  # the other end is closed
            if error.errno != errno.EIO:
                raise
            data = b""
        self.shown += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.shown[self.at:]:
            left = end - time.monotonic()
            if left <= 0 or not self.read(left):
                raise AssertionError(f"expected {text!r}, found {self.shown[self.at:]!r}")
        self.at = self.shown.index(text, self.at) + len(text)

    def type(self, keys):
        os.write(self.fd, keys if isinstance(keys, bytes) else keys.encode())

    def signal(self, number):
        os.kill(self.pid, number)

    def is_raw(self):
        return not termios.tcgetattr(self.fd)[3] & termios.ICANON

    def wait_raw(self, seconds=20):
        end = time.monotonic() + seconds
        while not self.is_raw():
            if time.monotonic() > end:
                raise AssertionError("the terminal is not being edited on")
            time.sleep(0.01)

    def wait(self, seconds=20):
        """The exit code, -N when signal N ended it; None: still running."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
            self.read(0.02)
        return None

    def kill(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
