#!/bin/sh
# nibble chat at a terminal: keys, the stored history, signals. Python's pty module holds the other end of the terminal.
# NIBBLE names the binary.
set -u
here=$(cd "$(dirname "$0")" && pwd)
nibble=${NIBBLE:-build/nibble}
case $nibble in /*) ;; *) nibble=$PWD/$nibble ;; esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if ! PYTHONPATH=$here/support python3 -c 'import os, terminal; os.openpty()' 2>/dev/null; then
    echo "skip terminal: no python3 with its pty module, or no pseudo-terminal here"
    exit 0
fi
mkdir "$tmp/model"
python3 "$here/support/chat-model.py" "$here" "$tmp/model" || exit 1
# Another model always answers this: long and wide words, combining characters, a tab, terminal control sequences, a
# word that fills a line of 20.
printf '%b' 'Plain words and then averyveryverylongwordthatfillsmorethanoneline ' \
    '\0346\0227\0245\0346\0234\0254\0350\0252\0236\0343\0201\0256\0346\0226\0207\0347\0253\0240\0343\0201\0257\0343\0200\0201\0347\0251\0272 ' \
    'cafe\0314\0201 end\n\n  indented\titem\0033[31m red 12345678901234567890 last' >"$tmp/text"
mkdir "$tmp/script"
python3 "$here/support/script-model.py" "$tmp/script" "$tmp/text" || exit 1
for model in model script; do
    cp "$here/support/chat-template.jinja" "$tmp/$model/chat_template.jinja"
done
PYTHONPATH=$here/support PYTHONDONTWRITEBYTECODE=1 python3 - "$nibble" "$tmp" <<'EOF'
import json, os, re, signal, stat, sys, time, traceback
from terminal import Screen, Terminal

nibble, tmp = sys.argv[1:]
history = f"{tmp}/state/nibble/history"
failed = False
base = {"TERM": "xterm", "XDG_STATE_HOME": f"{tmp}/state", "HOME": tmp, "LC_ALL": "C.UTF-8", "NO_COLOR": "1",
        "EDITRC": "/dev/null"}


def chat(*options, env=None, model="model", **how):
    t = Terminal([nibble, "chat", f"{tmp}/{model}", "--temp", "0", "-n", "2", *options], {**base, **(env or {})}, **how)
    t.expect("/help lists the commands")
    t.expect("> ")
    return t


def lines():
    with open(history, encoding="utf-8") as file:
        return file.read().splitlines()


def say(t, keys):
    """Types a line and waits for the prompt after its answer."""
    t.wait_raw()
    t.type(keys + "\r")
    t.expect("\n")
    t.expect("the answer is cut")
    t.expect("> ")


def command(t, text, answer):
    """Types a command and waits for what it says, and for the prompt after that."""
    t.wait_raw()
    t.type(text + "\r")
    t.expect(answer)
    t.expect("> ")


def messages(t):
    """The conversation, as /save writes it."""
    command(t, f"/save {tmp}/saved.json", "saved.json\r\n")
    with open(f"{tmp}/saved.json", encoding="utf-8") as file:
        return json.load(file)["messages"]


def questions(t):
    return [m["content"] for m in messages(t) if m["role"] == "user"]


def check(name):
    """Runs the function it decorates as a test."""
    def run(test):
        global failed
        try:
            test()
            print("ok", name)
        except Exception:
            failed = True
            print("not ok", name)
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    return run


def leave(t, code=0):
    t.wait_raw()
    t.type("\x04")
    assert t.wait() == code, (t.code, t.shown)


@check("a line is edited with Ctrl-A, Ctrl-E, arrows and backspace")
def _():
    t = chat()
    say(t, "bxd\x01a\x05e\x1b[D\x1b[D\x7fc")
    assert lines() == ["abcde"], lines()
    leave(t)


@check("characters of several bytes are edited as one")
def _():
    t = chat()
    say(t, "gr\u00fc\u00df\u65e5\u672c\x7f\x1b[D\x1b[D\x7fu\x05\U0001f642")
    assert lines()[-1] == "gru\u00df\u65e5\U0001f642", lines()
    leave(t)


@check("also where the locale knows no UTF-8")
def _():
    t = chat(env={"LC_ALL": "C"})
    say(t, "\u00e9t\u00e9\x1b[D\x1b[D\x7f\u00c9\x7fe")
    assert lines()[-1] == "et\u00e9", lines()
    leave(t)


@check("the arrow up brings back the line before, Ctrl-R one that holds a text")
def _():
    t = chat()
    t.wait_raw()
    say(t, "\x1b[A!")  # from the time before
    assert lines()[-1] == "et\u00e9!", lines()
    say(t, "\x1b[A\x1b[A\x1b[B?")
    assert lines()[-1] == "et\u00e9!?", lines()
    t.wait_raw()
    t.type("\x12bcd")
    t.expect("abcde")
    t.type("\x1b")
    say(t, "\x05f")
    assert lines()[-1] == "abcdef", lines()
    leave(t)


@check("the same line twice is one entry")
def _():
    t = chat()
    say(t, "twice")
    say(t, "twice")
    assert lines().count("twice") == 1, lines()
    leave(t)


@check("nobody else can read the history")
def _():
    assert stat.S_IMODE(os.stat(history).st_mode) == 0o600
    os.chmod(history, 0o644)
    leave(chat())
    assert stat.S_IMODE(os.stat(history).st_mode) == 0o600


@check("the history is bounded, and damage in it does no harm")
def _():
    with open(history, "wb") as file:
        file.write(b"".join(b"line %d\n" % i for i in range(3000)))
        file.write(b"caf\xe9\n\x00\n" + b"x" * 100000 + b"\nlast\nno end")
    t = chat()
    say(t, "\x1b[A.")
    with open(history, "rb") as file:
        data = file.read()
    assert data.count(b"\n") <= 1002 and b"line 2999\n" in data and b"line 1000\n" not in data, data[:100]
    assert data.endswith(b"\nno end\nno end.\n"), data[-40:]
    leave(t)


@check("--no-history writes nothing")
def _():
    os.remove(history)
    t = chat("--no-history")
    say(t, "secret")
    say(t, "\x1b[A!")  # but remembers while it runs
    leave(t)
    assert not os.path.exists(history)


@check("a history that cannot be written is no error")
def _():
    for state in ("/proc/nowhere", f"{tmp}/model/config.json"):
        t = chat(env={"XDG_STATE_HOME": state})
        say(t, "hello")
        leave(t)
    os.makedirs(f"{tmp}/odd/nibble/history")
    t = chat(env={"XDG_STATE_HOME": f"{tmp}/odd"})
    say(t, "hello")
    leave(t)
    os.rmdir(f"{tmp}/odd/nibble/history")
    os.mkfifo(f"{tmp}/odd/nibble/history")
    leave(chat(env={"XDG_STATE_HOME": f"{tmp}/odd"}))


@check("Ctrl-C clears the line, and on an empty one says how to leave")
def _():
    t = chat()
    t.wait_raw()
    t.type("not this")
    t.expect("not this")
    t.type("\x03")
    t.expect("> ")
    assert "leaves" not in t.shown
    t.wait_raw()
    t.type("\x03")
    t.expect("Ctrl-D leaves")
    t.expect("> ")
    say(t, "abacus")
    t.wait_raw()
    t.type("\x12ab")  # also while searching
    t.expect("abacus\x08")
    t.read(0.2)
    t.at = len(t.shown)
    t.type("\x03")
    t.expect("> ")
    t.read(0.5)  # the editor begins anew, and drops what was typed before it has
    say(t, "this")
    assert lines() == ["abacus", "this"], lines()
    leave(t)


@check("Ctrl-C stops an answer and the conversation goes on")
def _():
    t = chat("-n", "-1", "-c", "1000000", "--ignore-eos", "-v")
    t.wait_raw()
    t.type("hello\r")
    t.expect("\n")
    while t.is_raw():
        t.read(0.01)
    t.read(1)
    t.type("\x03")
    t.expect("[stopped")  # what this model says may be without text
    t.expect("> ")
    leave(t)


@check("SIGTERM at the prompt ends the program, the terminal as it was")
def _():
    t = chat()
    say(t, "remember me")
    t.wait_raw()
    t.type("half a line")
    t.expect("half a line")
    t.signal(signal.SIGTERM)
    assert t.wait() == 143, (t.code, t.shown)
    assert lines()[-1] == "remember me", lines()
    t = chat()
    t.wait_raw()
    before = t.is_raw()
    t.signal(signal.SIGTERM)
    assert t.wait() == 143 and before and not t.is_raw()


@check("SIGTERM while answering ends the program")
def _():
    t = chat("-n", "-1", "-c", "1000000", "--ignore-eos")
    t.wait_raw()
    t.type("hello\r")
    t.expect("\n")
    while t.is_raw():
        t.read(0.01)
    t.read(1)
    t.signal(signal.SIGTERM)
    assert t.wait() == 143, (t.code, t.shown[-2000:])


@check("SIGHUP too")
def _():
    t = chat()
    t.wait_raw()
    t.signal(signal.SIGHUP)
    assert t.wait() == 129, (t.code, t.shown)


@check("a terminal that becomes narrower is drawn anew")
def _():
    t = chat(columns=80)
    t.wait_raw()
    t.type("abcdefghijklmnopqrstuvwxyz")
    t.expect("xyz")
    t.resize(20)
    t.signal(signal.SIGWINCH)
    t.expect("abcdef")
    say(t, "!")
    assert lines()[-1] == "abcdefghijklmnopqrstuvwxyz!", lines()
    leave(t)


@check("however often it is resized, it is drawn once, when it rests, from where the prompt stands")
def _():
    for attempt in range(20):
        t = chat(columns=80)
        t.wait_raw()
        t.type("abcdefghijklmnopqrstuvwxyz\x1b\rsecond")
        t.expect("second")
        while t.read(0.1):
            pass
        # as terminals set it anew; the lines above stay
        screen = Screen(20, "above\r\n> abcdefghijklmnopqrstuvwxyz\r\nsecond")
        t.at = len(t.shown)
        start = time.monotonic()
        for columns in (70, 50, 30, 20):
            t.resize(columns)
            t.signal(signal.SIGWINCH)
        quick = time.monotonic() - start < 0.04
        begin = t.at
        t.expect("second")
        while t.read(0.3):
            pass
        if quick and t.shown[begin:].count("> abcdef") == 1:
            break
        say(t, "")  # a busy machine held one of the two up, and a pause of 80 ms is a rest
        leave(t)
    else:
        raise AssertionError("in 20 attempts no four resizes within 40 ms were drawn once: " + t.shown)
    screen.put(t.shown[begin:])
    assert screen.text() == ["above", "> abcdefghijklmnopqr", "stuvwxyz", "second"], screen.text()
    say(t, "!")
    assert questions(t) == ["abcdefghijklmnopqrstuvwxyz\nsecond!"]
    leave(t)


@check("what is pasted is one message, however many lines it has")
def _():
    t = chat()
    t.wait_raw()
    t.type("see: \x1b[200~one\ntwo\rthr\u00e9\x07e\n\tfour\x1b[31m\n\x1b[201~")
    t.expect("four")
    assert "the answer" not in t.shown
    say(t, "\x7f!")  # the last line break goes, and it may be edited
    t.wait_raw()
    t.type(b"\x1b[200~caf\xe9 \x1b[20")
    t.type(b"1~\x1b[200~ twice\x1b[201~")
    t.expect("twice")
    say(t, "")
    found = questions(t)
    assert found == ["see: one\ntwo\nthr\u00e9e\n\tfour[31m!", "caf\ufffd  twice"], found
    leave(t)
    t = chat()
    say(t, "\x1b[A" * 3 + "?")  # the next time: before the command and the second one
    found = questions(t)
    assert found == ["see: one\ntwo\nthr\u00e9e\n\tfour[31m!?"], found
    leave(t)


@check("a paste that is too long is left out, and that is said")
def _():
    t = chat()
    t.wait_raw()
    t.type("a\x1b[200~")
    for _ in range(300):
        t.type("x" * 4000)
        t.read(0)
    t.type("\x1b[201~")
    t.expect("too long")
    say(t, "b")
    assert questions(t) == ["ab"]
    leave(t)


@check("the terminal is no longer asked to mark pastes when a line has ended, nor when a signal ends the program")
def _():
    t = chat()
    say(t, "hello")
    assert t.shown.rindex("\x1b[?2004l") < t.shown.rindex("\x1b[?2004h")
    t.wait_raw()
    t.signal(signal.SIGTERM)
    assert t.wait() == 143 and t.shown.rindex("\x1b[?2004l") > t.shown.rindex("\x1b[?2004h"), t.shown


@check("a message that is refused leaves the conversation as it was")
def _():
    t = chat("-c", "80")
    say(t, "the first")
    say(t, "the second")
    before = messages(t)
    t.wait_raw()
    t.type("0" * 200 + "\r")
    t.expect("the message needs 2")
    t.expect("> ")
    assert messages(t) == before and len(before) == 4, before
    command(t, "/system no", "this system message is refused")
    command(t, "/load /nowhere", "not found")
    assert messages(t) == before
    say(t, "x" * 50)  # takes the place of older ones
    assert questions(t)[-1] == "x" * 50 and "left out" in t.shown
    leave(t)


@check("Ctrl-C before anything was said takes the message back; /regen and /continue keep what there is")
def _():
    t = chat("-n", "-1", "-c", "4000", model="script")
    t.wait_raw()
    t.type("hello\r")
    t.expect("last")
    t.expect("> ")
    before = messages(t)
    command(t, "/regen", "last")
    command(t, "/continue", "answer is complete")
    assert messages(t) == before
    command(t, "/n 3", "at most 3")
    command(t, "/regen", "/continue continues it, /n sets a larger limit")
    assert messages(t)[1]["content"] == "Plain words and"
    command(t, "/n -1", "no length limit")
    command(t, "/continue", "last")
    shown = t.shown[t.shown.rindex("/continue"):]
    assert re.search(r"[\nK]then averyvery", shown), shown  # the space before it is not shown at the beginning
    assert messages(t) == before
    command(t, "/clear", "a new conversation")
    assert messages(t) == []
    t.wait_raw()
    t.type("/bye\r")
    assert t.wait() == 0


@check("a first message stands there as if it had been typed")
def _():
    t = Terminal([nibble, "chat", f"{tmp}/script", "-p", "hello"], base)
    t.expect("> hello\r\n")
    t.expect("last")
    t.expect("> ")
    assert questions(t) == ["hello"]
    leave(t)


def answer(columns):
    """What an answer looks like on a terminal so wide."""
    t = chat("-n", "-1", model="script", columns=columns)
    t.wait_raw()
    t.type("?\r")
    t.expect("?\r\n")
    begin = t.at
    t.expect("last\r\n")
    shown = re.sub(r"\r\x1b\[K[a-z ]*\d+ %|\r\x1b\[K", "", t.shown[begin:t.at])
    t.expect("> ")
    leave(t)
    return Screen(columns, shown).text()


@check("lines of an answer are broken between words")
def _():
    found = answer(20)
    assert found == [
        "Plain words and then", "averyveryverylongwor", "dthatfillsmorethanon", "eline \u65e5\u672c\u8a9e\u306e\u6587\u7ae0",
        "\u306f\u3001\u7a7a cafe\u0301 end", "", "  indented", "item\ufffd[31m red", "12345678901234567890", "last", ""], found
    found = answer(9)
    assert found[7:12] == ["anoneline", "\u65e5\u672c\u8a9e\u306e", "\u6587\u7ae0\u306f\u3001", "\u7a7a cafe\u0301", "end"], found
    found = answer(200)
    assert len(found) == 4, found


@check("a dumb terminal, or stderr in a file, is read line by line")
def _():
    t = chat(env={"TERM": "dumb"})
    t.type("hello\n")
    t.expect("the answer is cut")
    t.expect("> ")
    t.type("\x03")
    t.expect("Ctrl-D leaves")
    t.expect("> ")
    t.type("\x04")
    assert t.wait() == 0, (t.code, t.shown)
    t = Terminal([nibble, "chat", f"{tmp}/model", "--temp", "0", "-n", "2"], base, stderr=f"{tmp}/err")
    t.type("hello\n\x04")
    assert t.wait() == 0, (t.code, t.shown)


def placement(columns, **env):
    """What run -v says on stderr at a terminal so wide, without the line that shows progress."""
    t = Terminal([nibble, "run", f"{tmp}/model", "--tokens", "1,2", "-n", "2", "-v"], {**base, **env}, columns=columns)
    assert t.wait() == 0, (t.code, t.shown)
    while t.read(0.1):
        pass
    shown = re.sub(r"\r\x1b\[K[a-z ]*\d+ %|\r\x1b\[K", "", t.shown).split("\r\n")
    first = next(i for i, line in enumerate(shown) if line.startswith("placement"))
    return [line for line in shown[first:] if not line.startswith("speed")]


@check("the table of run -v keeps to the terminal's width")
def _():
    for columns in (20, 30, 45, 60, 80, 200):
        table = placement(columns)
        longest = max(table, key=len)
        # what cannot be broken: one owner's name and size, "layers 0-3: bf16, RAM, 314.0 KiB"
        assert len(longest) <= max(columns, 35), (columns, longest)
        assert any("layers 0-3" in line for line in table), table


@check("and has no colour with NO_COLOR, no bars in other alphabets without UTF-8")
def _():
    plain = placement(80)
    assert "\x1b" not in "".join(plain) and "\u2588" in "".join(plain), plain
    coloured = placement(80, NO_COLOR="")
    assert "\x1b[32m\u2588" in "".join(coloured), coloured
    ascii_only = placement(80, LC_ALL="C")
    assert "\u2588" not in "".join(ascii_only) and "  RAM   ####" in "\n".join(ascii_only), ascii_only


sys.exit(failed)
EOF
