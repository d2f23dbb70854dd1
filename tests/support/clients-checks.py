"""nibble serve with third-party clients: the Python packages openai, anthropic and ollama, and schemathesis on the
description that the server publishes. clients-checks.py NIBBLE SCRIPT-MODEL ANSWER-FILE CALLER-MODEL RANDOM-MODEL
[MODEL]. The first model always gives the answer of the file, the second one always calls the tool f, the third one says
random bytes; MODEL, if there is one, is real."""
import asyncio
import json
import subprocess
import sys

import anthropic
import ollama
import openai
from pydantic import BaseModel

from server import Server, check, finish

nibble, script, answer_file, caller, random_model, *real = sys.argv[1:]
with open(answer_file, encoding="utf-8") as file:
    ANSWER = file.read()
USER = [{"role": "user", "content": "Why?"}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


class Person(BaseModel):
    name: str
    age: int


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def openai_chat(s):
    c = openai.OpenAI(base_url=s.address + "/v1", api_key="key", max_retries=0)
    check("openai: models", [m.id for m in c.models.list()] == ["m"] and c.models.retrieve("m").id == "m")
    r = c.chat.completions.create(model="m", messages=USER)
    check("openai: a chat", r.choices[0].message.content == ANSWER and r.choices[0].finish_reason == "stop" and r.usage.total_tokens > 5, r)
    pieces = list(c.chat.completions.create(model="m", messages=USER, stream=True, stream_options={"include_usage": True}))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    check("openai: a stream, with its usage", text == ANSWER and pieces[-1].usage.completion_tokens > 5, pieces[-1])
    with c.chat.completions.stream(model="m", messages=USER) as stream:
        check("openai: its own stream helper", stream.get_final_completion().choices[0].message.content == ANSWER)
    r = c.chat.completions.create(model="m", messages=USER, n=2, logprobs=True, top_logprobs=2, max_tokens=4, seed=1)
    check("openai: several answers with probabilities", len(r.choices) == 2 and len(r.choices[1].logprobs.content[0].top_logprobs) == 2, r)
    r = c.completions.create(model="m", prompt="Why", max_tokens=3, echo=True)
    check("openai: a text continued", r.choices[0].text.startswith("Why"), r)
    r = c.completions.create(model="m", prompt="Why", max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    check("openai: a prompt's probabilities", r.token_logprobs[0] is None and all(p < 0 for p in r.token_logprobs[1:]) and
          r.text_offset == list(range(3)), r)
    begun = ANSWER[:len(" ".join(ANSWER.split(" ")[:3]))]
    turns = [*USER, {"role": "assistant", "content": begun}]
    r = c.chat.completions.create(model="m", messages=turns, extra_body={"continue_final_message": True, "add_generation_prompt": False})
    check("openai: a begun message is continued", begun + r.choices[0].message.content == ANSWER, r)
    r = c.embeddings.create(model="m", input=["one", "two"])
    check("openai: embeddings", len(r.data) == 2 and abs(sum(x * x for x in r.data[0].embedding) - 1) < 1e-3)
    r = c.responses.create(model="m", input="Why?")
    check("openai: responses", r.output_text == ANSWER and r.status == "completed", r)
    events = list(c.responses.create(model="m", input="Why?", stream=True))
    check("openai: responses in events", "".join(e.delta for e in events if e.type == "response.output_text.delta") == ANSWER and
          events[-1].type == "response.completed", events[-1])
    error = raises(openai.BadRequestError, lambda: c.chat.completions.create(model="m", messages=USER, temperature=7))
    check("openai: a wrong number is its BadRequestError and names the field", error and error.param == "temperature", error)
    error = raises(openai.BadRequestError, lambda: c.chat.completions.create(model="m", messages=[{"role": "user", "content": "x " * 4000}]))
    check("openai: a prompt that is too long has its code", error and error.code == "context_length_exceeded", error)
    check("openai: an unknown model", raises(openai.NotFoundError, lambda: c.models.retrieve("none")))

    async def together():
        a = openai.AsyncOpenAI(base_url=s.address + "/v1", api_key="key")
        found = await asyncio.gather(*[a.chat.completions.create(model="m", messages=USER) for _ in range(12)])
        return [r.choices[0].message.content for r in found]

    check("openai: twelve at a time", asyncio.run(together()) == [ANSWER] * 12)
    stream = c.chat.completions.create(model="m", messages=USER, stream=True)
    next(iter(stream))
    stream.close()
    check("openai: a stream that is closed leaves the server well", c.models.list().data[0].id == "m")


def openai_forms(s):
    c = openai.OpenAI(base_url=s.address + "/v1", api_key="key", max_retries=0)
    r = c.chat.completions.parse(model="m", messages=USER, response_format=Person, seed=1)
    check("openai: a parsed answer", isinstance(r.choices[0].message.parsed, Person), r)
    r = c.responses.parse(model="m", input="Why?", text_format=Person)
    check("openai: a parsed response", isinstance(r.output_parsed, Person), r)
    r = c.chat.completions.create(model="m", messages=USER, tools=TOOLS, tool_choice="required", seed=2, parallel_tool_calls=False)
    call = r.choices[0].message.tool_calls[0]
    check("openai: a tool that must be called", call.function.name == "f" and isinstance(json.loads(call.function.arguments), dict), r)


def openai_tools(s):
    c = openai.OpenAI(base_url=s.address + "/v1", api_key="key", max_retries=0)
    r = c.chat.completions.create(model="m", messages=USER, tools=TOOLS)
    call = r.choices[0].message.tool_calls[0]
    check("openai: a tool is called", call.function.name == "f" and r.choices[0].finish_reason == "tool_calls", r)
    history = [*USER, r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "1"}]
    check("openai: and its result is taken", c.chat.completions.create(model="m", messages=history, tools=TOOLS).choices[0])
    with c.chat.completions.stream(model="m", messages=USER, tools=TOOLS) as stream:
        r = stream.get_final_completion()
    check("openai: the same as a stream", r.choices[0].message.tool_calls[0].function.name == "f", r)
    flat = [{"type": "function", "name": "f", "parameters": FUNCTION["parameters"], "strict": False}]
    r = c.responses.create(model="m", input="Why?", tools=flat)
    call = next(item for item in r.output if item.type == "function_call")
    check("openai: responses call it too", call.name == "f", r)
    given = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    check("openai: and take the result", c.responses.create(model="m", input=[*USER, call.to_dict(), given], tools=flat).status == "completed")


def anthropic_all(s, calls):
    c = anthropic.Anthropic(base_url=s.address, api_key="key", max_retries=0)
    r = c.messages.create(model="m", max_tokens=64, messages=USER, system="Be short.")
    check("anthropic: a message", r.content[-1].text == ANSWER and r.stop_reason == "end_turn" and r.usage.output_tokens > 5, r)
    with c.messages.stream(model="m", max_tokens=64, messages=USER) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("anthropic: a stream", text == ANSWER and final.stop_reason == "end_turn", final)
    check("anthropic: tokens are counted", c.messages.count_tokens(model="m", messages=USER).input_tokens > 0)
    r = c.messages.create(model="m", max_tokens=2, messages=USER)
    check("anthropic: a limit", r.stop_reason == "max_tokens", r)
    error = raises(anthropic.BadRequestError, lambda: c.messages.create(model="m", max_tokens=0, messages=USER))
    check("anthropic: a wrong number is its BadRequestError", error and "max_tokens" in str(error), error)
    models = list(c.models.list())
    check("anthropic: models", [(m.id, m.type, m.display_name) for m in models] == [("m", "model", "m")] and models[0].created_at.year > 2000, models)
    begun = " ".join(ANSWER.split(" ")[:3])
    r = c.messages.create(model="m", max_tokens=64, messages=[*USER, {"role": "assistant", "content": begun}])
    check("anthropic: a begun message is continued", begun + r.content[0].text == ANSWER, r)
    c = anthropic.Anthropic(base_url=calls.address, api_key="key", max_retries=0)
    tools = [{"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]}]
    r = c.messages.create(model="m", max_tokens=64, messages=USER, tools=tools)
    use = next(b for b in r.content if b.type == "tool_use")
    check("anthropic: a tool is called", use.name == "f" and r.stop_reason == "tool_use", r)
    history = [*USER, {"role": "assistant", "content": r.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": use.id, "content": "1"}]}]
    check("anthropic: and its result is taken", c.messages.create(model="m", max_tokens=64, messages=history, tools=tools).content)
    with c.messages.stream(model="m", max_tokens=64, messages=USER, tools=tools) as stream:
        final = stream.get_final_message()
    check("anthropic: the same as a stream", next(b for b in final.content if b.type == "tool_use").input == use.input, final)


def ollama_all(s, calls):
    c = ollama.Client(host=s.address)
    r = c.chat(model="m", messages=USER)
    check("ollama: a chat", r.message.content == ANSWER and r.done and r.eval_count > 5, r)
    check("ollama: a stream", "".join(p.message.content for p in c.chat(model="m", messages=USER, stream=True)) == ANSWER)
    check("ollama: a text", c.generate(model="m", prompt="Why?").response == ANSWER)
    check("ollama: a text as a stream", "".join(p.response for p in c.generate(model="m", prompt="Why?", stream=True)) == ANSWER)
    check("ollama: models", [m.model for m in c.list().models] == ["m"] and [m.model for m in c.ps().models] == ["m"])
    check("ollama: one model", c.show("m").modelinfo is not None and c.list().models[0].digest and c.list().models[0].details.quantization_level)
    check("ollama: it is pulled already", c.pull("m").status == "success" and [p.status for p in c.pull("m", stream=True)][-1] == "success")
    check("ollama: another is not there", raises(ollama.ResponseError, lambda: c.pull("none")).status_code == 404)
    check("ollama: the older embeddings", len(c.embeddings(model="m", prompt="one").embedding) > 0)
    check("ollama: vectors", len(c.embed(model="m", input=["one", "two"]).embeddings) == 2)
    error = raises(ollama.ResponseError, lambda: c.chat(model="m", messages=USER, options={"temperature": 7}))
    check("ollama: a wrong number is its ResponseError", error and error.status_code == 400, error)
    r = ollama.Client(host=calls.address).chat(model="m", messages=USER, tools=TOOLS)
    check("ollama: a tool is called", r.message.tool_calls[0].function.name == "f", r)


def keys():
    s = Server(nibble, script, "--alias", "m", "--api-key", "right")
    wrong = openai.OpenAI(base_url=s.address + "/v1", api_key="wrong", max_retries=0)
    check("openai: a wrong key is its AuthenticationError", raises(openai.AuthenticationError, lambda: list(wrong.models.list())))
    wrong = anthropic.Anthropic(base_url=s.address, api_key="wrong", max_retries=0)
    check("anthropic: the same", raises(anthropic.AuthenticationError, lambda: wrong.messages.create(model="m", max_tokens=1, messages=USER)))
    check("the right one is taken", anthropic.Anthropic(base_url=s.address, api_key="right").messages.create(
        model="m", max_tokens=1, messages=USER).content)
    s.end()


def described(s):
    """schemathesis makes requests of the description, and looks for server errors and for statuses that it does not name."""
    run = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", s.address + "/openapi.json", "--checks",
                          "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                          "--max-examples", "60", "--workers", "1", "--request-timeout", "60", "--no-color"],
                         capture_output=True, text=True, timeout=1200)
    check("schemathesis finds nothing", run.returncode == 0, run.stdout[-6000:] + run.stderr[-500:])


def really(model):
    s = Server(nibble, model, "-c", "1024", "--alias", "m")
    c = openai.OpenAI(base_url=s.address + "/v1", api_key="key", max_retries=0)
    ask = {"model": "m", "messages": [{"role": "user", "content": "Name a colour."}], "temperature": 0, "max_tokens": 24}
    whole = c.chat.completions.create(**ask).choices[0].message.content
    parts = "".join(p.choices[0].delta.content or "" for p in c.chat.completions.create(**ask, stream=True))
    check("a real model says the same whole and in pieces", whole and whole == parts, (whole, parts))
    r = c.chat.completions.parse(model="m", messages=[{"role": "user", "content": "Name a person."}], response_format=Person, seed=3)
    check("and keeps to a form", isinstance(r.choices[0].message.parsed, Person), r)
    s.end()


def main():
    s = Server(nibble, script, "-c", "512", "--alias", "m")
    calls = Server(nibble, caller, "-c", "1024", "--alias", "m")
    forms = Server(nibble, random_model, "-c", "3000", "--alias", "m")
    openai_chat(s)
    openai_forms(forms)
    openai_tools(calls)
    anthropic_all(s, calls)
    ollama_all(s, calls)
    keys()
    if real:
        really(real[0])
    described(s)
    for server in (s, calls, forms):
        code, said = server.end()
        check("SIGTERM ends a server with 0", code == 0, (code, said))
    finish()


main()
