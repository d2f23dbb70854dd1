#!/bin/sh
# nibble serve with third-party clients, installed with pip into a folder of the cache: the Python packages openai,
# anthropic, ollama and schemathesis (support/clients-checks.py), langchain, instructor and litellm
# (clients-frameworks.py), lm-eval (clients-lm-eval.py). Not among the tests that always run: it needs a network.
# NIBBLE names the binary. If smollm2 is among the models (nibble models), a real model is tested too.
set -u
venv=${CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/nibble/clients}
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
packages="openai anthropic ollama schemathesis langchain-openai langchain-anthropic langchain-ollama instructor litellm lm-eval"
if [ ! -x "$venv/bin/lm-eval" ]; then
    python3 -m venv "$venv" || exit 1
    # shellcheck disable=SC2086 # several words
    "$venv/bin/pip" --quiet install $packages 'lm-eval[api]' || exit 1
fi
"$venv/bin/pip" list 2>/dev/null | grep -E "^($(echo "$packages" | tr ' ' '|')|lm_eval) "
real=
"$nibble" models show smollm2 >/dev/null 2>&1 && real=smollm2
cd "$tmp" || exit 1
export PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1
printf '%s' "The sky is blue, since små parts of air ✓ scatter short waves of light most." >answer
printf '%s' '<tool_call> {"name": "f", "arguments": {"a": 1}} </tool_call>' >calls
mkdir script random caller
python3 "$here/support/script-model.py" script answer || exit 1
python3 "$here/support/script-model.py" caller calls || exit 1
python3 "$here/support/chat-model.py" "$here" random || exit 1
for model in script caller; do cp "$here/support/chat-template.jinja" $model/chat_template.jinja; done
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >random/chat_template.jinja
# shellcheck disable=SC2086 # no word where there is no real model
"$venv/bin/python3" "$here/support/clients-checks.py" "$nibble" script answer caller random $real || failed=1
"$venv/bin/python3" "$here/support/clients-frameworks.py" "$nibble" script answer caller random || failed=1
if [ -n "$real" ]; then
    "$venv/bin/python3" "$here/support/clients-lm-eval.py" "$nibble" "$real" || failed=1
else
    echo "skip lm-eval: smollm2 is not among the models"
fi
exit $failed
