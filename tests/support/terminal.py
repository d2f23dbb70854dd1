"""A program at a terminal of its own, driven key by key: shared by the tests of nibble chat."""
import errno
import os
import pty
import select
import signal
import re
import struct
import termios
import fcntl
import time
import unicodedata


def width(character):
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """The lines that a terminal of this width shows of a text, without a limit on their number."""

    def __init__(self, columns, text=""):
        self.columns = columns
        self.lines = [[]]  # of characters with what combines with them; "" is the right half of a wide one
        self.row = self.column = 0  # column == columns: the next character begins a line
        self.put(text)

    def put(self, text):
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", text, re.S):
            if part[0] == "\x1b":
                self.command(part[-1], int(part[2:-1]) if part[2:-1].isdigit() else None)
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self.down()
            elif part == "\t":
                self.column = min(self.columns - 1, (self.column // 8 + 1) * 8)
            elif part == "\b":
                self.column = min(self.column, self.columns - 1) - 1
            elif part >= " ":
                self.write(part)

    def down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def command(self, letter, n):
        if letter == "A":
            self.row = max(0, self.row - (n or 1))
        elif letter == "C":
            self.column = min(self.columns - 1, self.column + (n or 1))
        elif letter in "JK":
            del self.lines[self.row][self.column:]
            if letter == "J":
                del self.lines[self.row + 1:]

    def write(self, character):
        wide = width(character)
        if wide == 0:
            if self.column:
                self.lines[self.row][self.column - 1] += character
            return
        if self.column + wide > self.columns:
            self.column = 0
            self.down()
        line = self.lines[self.row]
        line += [" "] * (self.column - len(line))
        line[self.column:self.column + wide] = [character] + [""] * (wide - 1)
        self.column += wide

    def text(self):
        return ["".join(line).rstrip() for line in self.lines]


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
        """The exit code, -N when signal N ended it; None: still running. Reads what it wrote until its end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                while self.read(0):
                    pass
                return self.code
            self.read(0.02)
        return None

    def kill(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
