"""nibble serve with frameworks on top of the APIs' clients: langchain, instructor and litellm.
clients-frameworks.py NIBBLE SCRIPT-MODEL ANSWER-FILE CALLER-MODEL RANDOM-MODEL, as clients-checks.py."""
import os
import sys

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGCHAIN_TRACING_V2="false", LANGSMITH_TRACING="false")
import instructor  # noqa: E402 (after the variables that these read)
import litellm  # noqa: E402
import openai  # noqa: E402
from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage  # noqa: E402
from langchain_ollama import ChatOllama, OllamaEmbeddings  # noqa: E402
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from server import Server, check, finish  # noqa: E402

nibble, script, answer_file, caller, random_model = sys.argv[1:6]
with open(answer_file, encoding="utf-8") as file:
    ANSWER = file.read()
BEGUN = " ".join(ANSWER.split(" ")[:3])
USER = [{"role": "user", "content": "Why?"}]
litellm.telemetry = False


class Person(BaseModel):
    name: str
    age: int


def f(a: int) -> int:
    """d"""
    return a


def langchain(s, calls, forms):
    ways = {"openai": (ChatOpenAI, {"base_url": s.address + "/v1"}), "anthropic": (ChatAnthropic, {"base_url": s.address, "max_tokens": 64}),
            "ollama": (ChatOllama, {"base_url": s.address})}
    for name, (kind, options) in ways.items():
        keys = {} if name == "ollama" else {"api_key": "key"}
        chat = kind(model="m", **keys, **options)
        check(f"langchain, {name}: a chat", chat.invoke([HumanMessage("Why?")]).content == ANSWER)
        check(f"langchain, {name}: a stream", "".join(str(p.text) for p in chat.stream("Why?")) == ANSWER)
        check(f"langchain, {name}: a conversation", chat.invoke([SystemMessage("Be short."), HumanMessage("a"), AIMessage("b"),
                                                                HumanMessage("Why?")]).content == ANSWER)
        check(f"langchain, {name}: several at a time", [r.content for r in chat.batch(["a", "b", "c"])] == [ANSWER] * 3)
        options = dict(options, base_url=options["base_url"].replace(s.address, calls.address))
        r = kind(model="m", **keys, **options).bind_tools([f]).invoke("Why?")
        check(f"langchain, {name}: a tool is called", [(c["name"], c["args"]) for c in r.tool_calls] == [("f", {"a": 1})], r)
    r = ChatOpenAI(model="m", api_key="key", base_url=forms.address + "/v1", seed=1).with_structured_output(Person).invoke("Why?")
    check("langchain: an answer in a form", isinstance(r, Person), r)
    text = OpenAI(model="m", api_key="key", base_url=s.address + "/v1")
    check("langchain: a text", ANSWER.startswith(text.invoke("Why?<a>")[:3]))
    vectors = OpenAIEmbeddings(model="m", api_key="key", base_url=s.address + "/v1", check_embedding_ctx_length=False)
    check("langchain: vectors", len(vectors.embed_documents(["one", "two"])) == 2)
    check("langchain: Ollama's vectors", len(OllamaEmbeddings(model="m", base_url=s.address).embed_query("one")) > 0)


def instructors(forms):
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        c = instructor.from_openai(openai.OpenAI(base_url=forms.address + "/v1", api_key="key"), mode=mode)
        choice = {"parallel_tool_calls": False} if mode == instructor.Mode.TOOLS else {}
        try:
            r = c.chat.completions.create(model="m", messages=USER, response_model=Person, max_retries=3, seed=1, **choice)
        except Exception as error:  # noqa: BLE001 (any is a failure)
            r = error
        # a model of random bytes keeps to a schema, but not to "any JSON object"
        check(f"instructor: {mode.name}", isinstance(r, Person) or mode == instructor.Mode.JSON, r)


def litellms(s, calls):
    ways = {"openai/m": s.address + "/v1", "text-completion-openai/m": s.address + "/v1", "hosted_vllm/m": s.address + "/v1",
            "lm_studio/m": s.address + "/v1", "anthropic/m": s.address, "ollama_chat/m": s.address}
    for name, address in ways.items():
        r = litellm.completion(model=name, messages=USER, api_base=address, api_key="key", max_tokens=64)
        whole = r.choices[0].message.content
        if name.startswith("text-"):  # a text without the model's template
            check(f"litellm, {name}: a text", isinstance(whole, str), r)
            continue
        check(f"litellm, {name}: a chat", whole == ANSWER and r.usage.total_tokens > 5, r)
        pieces = litellm.completion(model=name, messages=USER, api_base=address, api_key="key", max_tokens=64, stream=True)
        check(f"litellm, {name}: a stream", "".join(p.choices[0].delta.content or "" for p in pieces) == ANSWER)
    turns = [*USER, {"role": "assistant", "content": BEGUN}]
    r = litellm.completion(model="anthropic/m", messages=turns, api_base=s.address, api_key="key", max_tokens=64)
    check("litellm: a begun message is continued", BEGUN + r.choices[0].message.content in (ANSWER, BEGUN + ANSWER.removeprefix(BEGUN).lstrip()), r)
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    r = litellm.completion(model="openai/m", messages=USER, tools=[tool], api_base=calls.address + "/v1", api_key="key")
    check("litellm: a tool is called", r.choices[0].message.tool_calls[0].function.name == "f", r)
    r = litellm.embedding(model="openai/m", input=["one", "two"], api_base=s.address + "/v1", api_key="key")
    check("litellm: vectors", len(r.data) == 2)


def main():
    s = Server(nibble, script, "-c", "512", "--alias", "m")
    calls = Server(nibble, caller, "-c", "1024", "--alias", "m")
    forms = Server(nibble, random_model, "-c", "3000", "--alias", "m")
    langchain(s, calls, forms)
    instructors(forms)
    litellms(s, calls)
    for server in (s, calls, forms):
        server.end()
    finish()


main()
