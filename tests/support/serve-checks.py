"""Checks of nibble serve: serve-checks.py NIBBLE SCRIPT-MODEL ANSWER-FILE RANDOM-MODEL [sanitized]. The first model
always gives the answer of the file, the second one random bytes."""
import sys

from server import Server, check, finish
from serve_common import nibble, script
from serve_apis import ollama, anthropic, responses
from serve_guard import health, hosts, keyless, left_behind, loads, one_address, private_files, slow_clients, tokenizer_bound, unread
from serve_openai import basics, streams, likely, looks, refusals, embeddings, page, described
from serve_process import keys, alike, defaults, leaves, capped, shared_context, kept, several, fitting, sockets
from serve_prompts import continued, echoed, lengths, others, refused, rerendered, unseen, variables
from serve_tools import held, texts_and_calls

basic = Server(nibble, script, "-c", "256", "--alias", "m", "--max-body", "16K")
check("port 0 prints the port", basic.port > 0, basic.address)
basics(basic)
streams(basic)
likely(basic)
looks(basic)
continued(basic)
variables(basic)
echoed(basic)
lengths(basic)
unseen(basic)
rerendered(basic)
refused(basic)
others(basic)
ollama(basic)
anthropic(basic)
responses(basic)
embeddings(basic)
page(basic)
described(basic)
refusals(basic)
hosts(basic)
code, said = basic.end()
check("SIGTERM exits 0 when nothing is to be done", code == 0, (code, said))
keys()
keyless()
tokenizer_bound()
left_behind()
private_files()
slow_clients()
one_address()
alike()
defaults()
held()
texts_and_calls()
leaves()
kept()
several()
sockets()
if "sanitized" not in sys.argv:
    health()
    loads()
    unread()
    capped()
    shared_context()
    fitting()
finish()
