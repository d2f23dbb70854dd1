#!/bin/sh
# Signals at random moments end every long command with the right exit code; with --json a document has the partial
# result. NIBBLE names the binary.
set -eu

nibble=${NIBBLE:-build/nibble}
here=$(dirname "$0")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if ! python3 -c '' 2>/dev/null; then
    echo "skip signals: no python3 here"
    exit 0
fi
mkdir "$tmp/chat"
python3 "$here/support/chat-model.py" "$here" "$tmp/chat"

# A sanitizer's own memory does not fit a cap that streams. One command of each kind is interrupted once, because a
# sanitizer reports nothing of an ended command. Models are smaller: otherwise most signals would come before there is
# work to interrupt.
capped=1 layers=10
nm "$nibble" 2>/dev/null | grep -qE '__asan_init|__tsan_init' && capped=0 layers=2
"$nibble" synth smollm2-135m --layers $layers -o "$tmp/model.gguf" -q

python3 - "$nibble" "$tmp" "$capped" <<'PYTHON'
import fcntl, json, os, random, signal, struct, subprocess, sys, termios, time, traceback

nibble, tmp, capped = sys.argv[1:]
LIMIT = 3  # seconds, where a tenth is usual: for sanitizers, and other tests at the same time
SEED = int.from_bytes(os.urandom(4), "little")
random.seed(SEED)
env = {**os.environ, "XDG_CACHE_HOME": f"{tmp}/cache", "TMPDIR": tmp}
model, chat, text, out = f"{tmp}/model.gguf", f"{tmp}/chat", f"{tmp}/text", f"{tmp}/out.gguf"
with open(text, "w") as file:
    file.write("The sea is wide and the sky is high. " * 100000)
many = ",".join(str(1 + i) for i in range(6000))
failed = 0


def say(good, name):
    global failed
    failed += not good
    print("ok" if good else "not ok", name, flush=True)


def check(name):
    def run(body):
        try:
            body()
            say(True, name)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            say(False, name)
    return run


def start(args, **how):
    return subprocess.Popen([nibble, *args], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)


def end(process, number):
    """Seconds until it has ended."""
    begin = time.monotonic()
    process.send_signal(number)
    process.wait(60)
    return time.monotonic() - begin


def codes(number):
    """Before the handlers are there the system ends it."""
    return (128 + number, -number)


# name, arguments, times, the latest moment
LONG = [
    ("run", ["run", model, "--tokens", "1,2,3", "-n", "-1", "-c", "100000", "--ignore-eos"], 2, 1),
    ("run with a long prompt", ["run", model, "--tokens", many, "-c", "8000", "-n", "1"], 2, 1),
    ("run that streams", ["run", model, "--tokens", many, "-c", "8000", "--ram", "100M"], 2, 1),
    ("run that writes packed weights",
     ["run", model, "--tokens", many, "-c", "8000", "--packed-cache", "on", "--scratch", f"{tmp}/scratch"], 2, 0.5),
    ("eval", ["eval", chat, "--ppl", text, "-c", "64"], 2, 1),
    ("logits", ["logits", model, "--tokens", many, "-o", f"{tmp}/logits"], 2, 1),
    ("bench", ["bench", model, "-r", "1000"], 4, 1.5),
    ("bench of generation", ["bench", model, "-p", "0", "-r", "1000"], 2, 1.5),
    ("bench --kernels", ["bench", "--kernels", model, "--seconds", "60"], 2, 1.5),
    ("profile", ["profile", model, "--again"], 2, 0.3),
    ("profile --costs", ["profile", model, "--costs", "--again"], 2, 1),
    ("profile --kernels", ["profile", model, "--kernels", "--seconds", "60"], 2, 1.5),
    ("profile --hardware", ["profile", "--hardware"], 2, 2),
    ("hw", ["hw"], 1, 2),
    ("synth", ["synth", "llama-3-8b", "-o", out], 2, 0.6),
]


def interrupt(args, latest):
    number, moment = random.choice((signal.SIGINT, signal.SIGTERM)), latest * random.random() ** 2  # rather early
    process = start(args, stdout=subprocess.DEVNULL)
    try:
        process.wait(moment)
        assert process.returncode == 0, f"{args}: {process.returncode}"
        return  # it was faster
    except subprocess.TimeoutExpired:
        seconds = end(process, number)
    what = f"{number!r} after {moment:.3f} s: {process.returncode} in {seconds:.2f} s (seed {SEED})"
    assert process.returncode in codes(number), what
    assert seconds < LIMIT, what


for name, args, times, latest in LONG:
    if capped == "0" and name not in ("run", "bench", "profile --costs", "synth"):
        print(f"skip signals end {name}: a sanitizer sees one command of each kind", flush=True)
        continue

    @check(f"signals end {name}")
    def _():
        for _ in range(times if capped == "1" and "NIBBLE_QUICK" not in os.environ else 1):
            interrupt(args, latest)


@check("nothing is left behind")
def _():
    left = [f for _, _, files in os.walk(tmp) for f in files if f.endswith(".tmp")]
    assert not left and not os.path.exists(out), left


# ---- what was made until then ----

def document(args, number, enough):
    """The document of a command that was interrupted when there is enough; later and later."""
    for moment in (0.5, 2, 6, 20):
        process = start([*args, "--json"], stdout=subprocess.PIPE)
        time.sleep(moment)
        process.send_signal(number)
        found = json.loads(process.communicate(timeout=60)[0])
        assert process.returncode == 128 + number, process.returncode
        assert found["error"]["status"] == "cancelled" and found["error"]["message"], found["error"]
        if enough(found):
            return found
    raise AssertionError(found)


@check("run --json: text and tokens so far")
def _():
    args = ["run", chat, "-p", "The sea", "-n", "-1", "-c", "200000", "--temp", "0", "--ignore-eos"]
    found = document(args, signal.SIGINT, lambda d: d.get("tokens"))
    assert found["finish_reason"] == "cancelled" and found["text"], found
    assert found["timings"]["predicted_n"] == len(found["tokens"]) and "memory" in found


@check("bench --json: rows so far")
def _():
    args = ["bench", model, "-p", "8", "-n", "8", "-r", "1000"]
    row = document(args, signal.SIGTERM, lambda d: d.get("rows"))["rows"][0]
    assert row["test"] == "pp8" and 1 <= row["repeats"] < 1000 and row["tok_s"] > 0, row


@check("bench -np: finished rows are printed, and progress on a terminal")
def _():
    terminal, other = os.openpty()
    args = [nibble, "bench", model if capped == "1" else chat, "-np", "1,64", "-p", "4", "-n", "100", "-r", "1"]
    process = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=other)
    seen = b""
    while b"64 sequences (2 of 2)" not in seen:
        seen += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    found = process.communicate(timeout=60)[0].decode().splitlines()
    os.close(other)
    os.close(terminal)
    assert process.returncode == 130, process.returncode
    assert len([line for line in found if line.split()[:1] == ["1"]]) == 1, found


@check("eval --json: chunks so far")
def _():
    found = document(["eval", chat, "--ppl", text, "-c", "16"], signal.SIGTERM, lambda d: d.get("chunks"))
    assert found["ppl"] > 1 and found["tokens"] >= 7 * found["chunks"], found


def fails(args, code, status, words):
    process = subprocess.run([nibble, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert process.returncode == code, process.returncode
    found = json.loads(process.stdout)["error"]
    assert found["status"] == status and words in found["message"] and words in process.stderr.decode(), found


@check("--json: a failure is a document")
def _():
    fails(["run", model, "--tokens", "1", "--ram", "1M", "--json"], 3, "nofit", "cap")
    fails(["info", f"{tmp}/nothing.gguf", "--json"], 4, "notfound", "nothing.gguf")
    fails(["bench", model, "--no-such-option", "--json"], 2, "usage", "--no-such-option")


# ---- a process that cannot end by itself: nobody reads what it writes ----

def blocked():
    """A run into a pipe that some of its words fill."""
    unread, out = os.pipe()
    fcntl.fcntl(out, 1031, 4096)  # F_SETPIPE_SZ
    filled = os.write(out, bytes(4000))
    process = start(["run", chat, "--tokens", "1", "-n", "-1", "-c", "200000", "--ignore-eos"], stdout=out)
    os.close(out)
    process.unread = unread  # open as long as the process is known
    before, now = -1, 0
    while before != now or now <= filled:
        time.sleep(0.3)
        before, now = now, struct.unpack("i", fcntl.ioctl(unread, termios.FIONREAD, bytes(4)))[0]
    return process


@check("a second Ctrl-C ends at once")
def _():
    process = blocked()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    assert end(process, signal.SIGINT) < LIMIT and process.returncode == 130


@check("SIGTERM ends what cannot write")
def _():
    process = blocked()
    assert end(process, signal.SIGTERM) < LIMIT and process.returncode == 143


@check("what does not end is left some seconds later")
def _():
    process = blocked()
    assert end(process, signal.SIGINT) < 30 and process.returncode == 130


sys.exit(failed > 0)
PYTHON
