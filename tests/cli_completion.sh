#!/bin/sh
# Completions as a user sees them: bash and zsh at a terminal of their own, the tab key, and the resulting arguments. A
# stand-in for nibble shows its arguments; the names of models come from the real one. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"

mkdir -p "$tmp/work/my folder" "$tmp/work/folder" "$tmp/models/Org/Repo" "$tmp/bin" "$tmp/home" "$tmp/fpath"
: >"$tmp/work/my text.txt"
: >"$tmp/work/words.gguf"
: >"$tmp/models/smollm2.gguf"
: >"$tmp/models/Org/Repo/a model.gguf"
: >"$tmp/models/x\$(touch pwned).gguf"
"$nibble" --completion bash >"$tmp/nibble.bash"
"$nibble" --completion zsh >"$tmp/fpath/_nibble"
cat >"$tmp/bin/nibble" <<SH
#!/bin/sh
if [ "\$1" = models ] && [ "\${3:-}" = -q ]; then
    exec "$nibble" "\$@"
fi
printf 'given'
for word; do printf ' <%s>' "\$word"; done
printf ' end\n'
SH
chmod +x "$tmp/bin/nibble"

if command -v bash >/dev/null; then
    check "bash loads its completion" bash -n "$tmp/nibble.bash"
    offers() { # offers "EXPECTED" WORD...: the function's completions of the last word
        want=$1
        shift
        got=$(NIBBLE_MODELS=$tmp/models HF_HUB_CACHE=$tmp/none bash -c '
            compopt() { :; }
            . "$0"
            COMP_WORDS=("$@")
            COMP_CWORD=$(($# - 1))
            _nibble "$1" "${@: -1}" "${@: -2:1}"
            printf "%s|" "${COMPREPLY[@]}"' "$tmp/nibble.bash" "$@")
        [ "$got" = "$want" ] || { echo "found $got, expected $want"; return 1; }
    }
    check "bash: values" offers "auto|f16|f32|kv8|kv4|kv8h|kv4h|kv4s|" "$nibble" run m --kv ""
    check "bash: of --kv=, too" offers "kv8|kv4|kv8h|kv4h|kv4s|" "$nibble" run m --kv = kv
    check "bash: and before the first letter" offers "auto|f16|f32|kv8|kv4|kv8h|kv4h|kv4s|" "$nibble" run m --kv =
    check "bash: names for quality" offers "lossless|high|balanced|small|" "$nibble" plan m --quality ""
    check "bash: a number has none" offers "|" "$nibble" run m -n ""
    check "bash: flags of the command" offers "--hellaswag|" "$nibble" eval m --hell
    check "bash: and not of another" offers "|" "$nibble" tokenize m --hell
    check "bash: what models takes" offers "list|show|rm|pull|" "$nibble" models ""
    check "bash: a model after flags and their values" offers "smollm2.gguf|" "$nibble" run -n 3 --temp = 0 -q smol
    check "bash: help has the commands" offers "bench|" "$nibble" help be
fi

if ! PYTHONPATH=$here/support python3 -c 'import os, terminal; os.openpty()' 2>/dev/null; then
    echo "skip completions at a terminal: no python3 with its pty module, or no pseudo-terminal here"
    exit $failed
fi
cat >"$tmp/type.py" <<'PY'
import os, shutil, sys, traceback
from terminal import Terminal

shell, tmp = sys.argv[1:]
env = {"PATH": f"{tmp}/bin:{os.environ['PATH']}", "HOME": f"{tmp}/home", "TERM": "xterm", "LC_ALL": "C.UTF-8",
       "NIBBLE_MODELS": f"{tmp}/models", "HF_HUB_CACHE": f"{tmp}/none", "INPUTRC": "/dev/null", "ZDOTDIR": f"{tmp}/home",
       "HISTFILE": "/dev/null", "PS1": "ready> "}
start = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
load = {"bash": f". {tmp}/nibble.bash; bind 'set enable-bracketed-paste off'",
        "zsh": f"fpath=({tmp}/fpath $fpath); autoload -Uz compinit; compinit -u -D; unsetopt prompt_sp; PS1='ready> '"}[shell]
os.chdir(f"{tmp}/work")
t = Terminal([shutil.which(shell), *start], env, columns=200)
t.expect("ready> ")
t.type(f"{load}; echo loa''ded\r")
t.expect("loaded")
t.expect("ready> ")
failed = False


def check(name, typed, given):
    """Types up to a tab, and return when all has been completed: nibble is given these words."""
    global failed
    try:
        for part in typed.split("\t")[:-1]:
            t.type(part + "\t")
            t.read(0.3)
            while t.read(0.3):
                pass
        t.type(typed.split("\t")[-1] + "\r")
        if given is None:
            t.expect("ready> ")
            print(f"ok {shell}: {name}")
            return
        t.expect("given")
        t.expect(" end\r\n")
        found = t.shown[t.shown.rindex("given") + 6:t.at - 6]
        t.expect("ready> ")
        assert found.replace("/>", ">") == " ".join(f"<{word}>" for word in given), found  # zsh drops a last slash
        print(f"ok {shell}: {name}")
    except Exception:
        failed = True
        print(f"not ok {shell}: {name}")
        traceback.print_exc(file=sys.stdout)
        t.type("\x03")
        t.expect("ready> ")
    sys.stdout.flush()


check("a command", "nibble tok\t", ["tokenize"])
check("a model's name", "nibble run smo\t", ["run", "smollm2.gguf"])
check("a name with a space", "nibble run Org/Repo/a\t", ["run", "Org/Repo/a model.gguf"])
check("a file beside the models", "nibble run wor\t", ["run", "words.gguf"])
check("a file with a space", "nibble run m -f my\\ t\t", ["run", "m", "-f", "my text.txt"])
check("the same in quotes", "nibble run m -f \"my t\t", ["run", "m", "-f", "my text.txt"])
check("a text after the model may be a file, too", "nibble run m wor\t", ["run", "m", "words.gguf"])
check("a folder where one is wanted", "nibble run m --scratch fo\t", ["run", "m", "--scratch", "folder"])
check("a value", "nibble run m --kv f3\t", ["run", "m", "--kv", "f32"])
check("a value after =", "nibble run m --kv=f3\t", ["run", "m", "--kv=f32"])
check("a value out of several words", "nibble run m --quality lo\t", ["run", "m", "--quality", "lossless"])
check("on, off, auto", "nibble run m --shortlist au\t", ["run", "m", "--shortlist", "auto"])
check("a flag", "nibble run m --verb\t", ["run", "m", "--verbose"])
check("what models takes", "nibble models sh\tsmol\t", ["models", "show", "smollm2.gguf"])
check("a model of --model", "nibble bench -m smo\t", ["bench", "-m", "smollm2.gguf"])
check("what pull takes", "nibble pull smo\t", ["pull", "smollm2"])
check("help", "nibble help be\t", ["help", "bench"])
# bash leaves the $ and the ) of a name that is no file here as they are, which is then no command
check("a name that is a command for a shell", "nibble run x\t", ["run", "x$(touch pwned).gguf"] if shell == "zsh" else None)
t.type("exit\r")
t.wait()
t.kill()
sys.exit(failed)
PY
for shell in bash zsh; do
    if ! command -v $shell >/dev/null; then
        echo "skip completions of $shell: it is not here"
        continue
    fi
    PYTHONPATH=$here/support PYTHONDONTWRITEBYTECODE=1 python3 "$tmp/type.py" $shell "$tmp" || failed=1
    check "$shell ran no name of a file" [ ! -e "$tmp/work/pwned" ]
done
if command -v zsh >/dev/null; then
    check "zsh loads its completion" zsh -n "$tmp/fpath/_nibble"
fi
exit $failed
