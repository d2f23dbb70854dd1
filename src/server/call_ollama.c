/* call_ollama.c - parses bodies of Ollama's API. */
#include "server/call_parts.h"

#include "base/num.h"

#include <string.h>

static const member option_rows[] = {
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 2},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"top_k", MEMBER_I32, offsetof(call, sampling.top_k), -1, 1 << 24},
    {"min_p", MEMBER_FLOAT, offsetof(call, sampling.min_p), 0, 1},
    {"repeat_penalty", MEMBER_FLOAT, offsetof(call, sampling.repeat_penalty), 0.01, 100},
    {"repeat_last_n", MEMBER_I32, offsetof(call, sampling.penalty_window), -1, 1 << 24},
    {"frequency_penalty", MEMBER_FLOAT, offsetof(call, sampling.frequency_penalty), -2, 2},
    {"presence_penalty", MEMBER_FLOAT, offsetof(call, sampling.presence_penalty), -2, 2},
    {"seed", MEMBER_I64, offsetof(call, seed), MIN_MEMBER_NO, MAX_MEMBER_NO},
    {"num_predict", MEMBER_I64, offsetof(call, max_tokens), -2, 1 << 30},
};
const member_table ollama_options = {option_rows, NUM_COUNT(option_rows)};
static const member rows[] = {{"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0}};
const member_table ollama_members = {rows, NUM_COUNT(rows)};

static const refused_member refused[] = {{"template", NULL},     {"context", NULL}, {"logprobs", NULL},
                                         {"top_logprobs", NULL}, {"images", NULL},  {"suffix", NULL}};

/* Reads "think": true, false or an effort. */
static bool read_think(call *c, fault *why) {
    json_t *think = member_get(c->body, "think");
    if (!think)
        return true;
    if (json_is_string(think))
        return variable_set(c, "reasoning_effort", think, why);
    return json_is_boolean(think)
               ? variable_set(c, "enable_thinking", think, why)
               : fault_field(why, "think", "expected true, false or a word, found %s", json_type_name(think));
}

/* Reads the members of both kinds. Answers are streamed unless the request says otherwise. */
static bool read_options(call *c, fault *why) {
    const json_t *o = member_get(c->body, "options"), *format = member_get(c->body, "format");
    c->stream = true;
    if (o && !json_is_object(o))
        return fault_field(why, "options", "expected an object, found %s", json_type_name(o));
    if (!format_ollama(c, format, why) || !members_refuse(c->body, refused, NUM_COUNT(refused), why))
        return false;
    if (!members_read(o, &ollama_options, c, why) || !samplers_read(c, o, why) ||
        !members_read(c->body, &ollama_members, c, why))
        return false;
    if (c->max_tokens == 0)
        return fault_field(why, "num_predict", "expected a whole number of at least 1, or -1, found 0");
    c->max_tokens = c->max_tokens < 0 ? -1 : c->max_tokens;
    if (!read_think(c, why))
        return false;
    call_resolve(c, o);
    return stop_read(c, "stop", member_get(o, "stop"), why);
}

bool call_parse_ollama_chat(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                            fault *why) {
    const json_t *message;
    size_t i;
    if (!call_begin(CALL_CHAT, text, n_byte, usual, out, why) || !read_options(out, why))
        return false;
    json_array_foreach(member_get(out->body, "messages"), i, message) {
        if (!members_refuse(message, &(refused_member){"images", NULL}, 1, why))
            return false;
    }
    if (!tools_read(out, why))
        return false;
    const json_t *messages = member_get(out->body, "messages");
    if (!messages || (json_is_array(messages) && json_array_size(messages) == 0))
        return true;
    if (!messages_read(out, messages, why))
        return false;
    messages_continue(out);
    return true;
}

typedef struct generate_texts {
    const char *prompt, *system;
    bool raw;
} generate_texts;

static const member generate_rows[] = {
    {"prompt", MEMBER_TEXT, offsetof(generate_texts, prompt), 0, 0},
    {"system", MEMBER_TEXT, offsetof(generate_texts, system), 0, 0},
    {"raw", MEMBER_BOOL, offsetof(generate_texts, raw), 0, 0},
};
const member_table ollama_generate_members = {generate_rows, NUM_COUNT(generate_rows)};

bool call_parse_ollama_generate(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                                fault *why) {
    generate_texts t = {0};
    if (!call_begin(CALL_CHAT, text, n_byte, usual, out, why) || !read_options(out, why) ||
        !members_read(out->body, &ollama_generate_members, &t, why))
        return false;
    if (!t.prompt || !*t.prompt)
        return true; /* the request only loads the model */
    json_t *prompt = member_get(out->body, "prompt"), *system = member_get(out->body, "system");
    if (t.raw) {
        out->kind = CALL_COMPLETION;
        out->prompts = json_pack("[O]", prompt);
    } else if (t.system && *t.system) {
        out->messages = json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "system", "content", system, "role",
                                  "user", "content", prompt);
    } else {
        out->messages = json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
    }
    return out->prompts || out->messages || fault_set(why, 503, NULL, "out of memory");
}
