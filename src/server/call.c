/* call.c - parses bodies of OpenAI's API. A field with a range is a row of a table. */
#include "server/call_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- for both kinds ---- */

static const member rows[] = {
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 2},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"top_k", MEMBER_I32, offsetof(call, sampling.top_k), -1, 1 << 24},
    {"min_p", MEMBER_FLOAT, offsetof(call, sampling.min_p), 0, 1},
    {"repeat_penalty", MEMBER_FLOAT, offsetof(call, sampling.repeat_penalty), 0.01, 100},
    {"repetition_penalty", MEMBER_FLOAT, offsetof(call, sampling.repeat_penalty), 0.01, 100},
    {"repeat_last_n", MEMBER_I32, offsetof(call, sampling.penalty_window), -1, 1 << 24},
    {"frequency_penalty", MEMBER_FLOAT, offsetof(call, sampling.frequency_penalty), -2, 2},
    {"presence_penalty", MEMBER_FLOAT, offsetof(call, sampling.presence_penalty), -2, 2},
    {"seed", MEMBER_I64, offsetof(call, seed), MIN_MEMBER_NO, MAX_MEMBER_NO},
    {"n", MEMBER_I32, offsetof(call, n), 1, CALL_MAX_CHOICES},
    {"max_tokens", MEMBER_I64, offsetof(call, max_tokens), -1, 1 << 30},
    {"n_predict", MEMBER_I64, offsetof(call, max_tokens), -1, 1 << 30},
    {"min_tokens", MEMBER_I64, offsetof(call, min_tokens), 0, 1 << 30},
    {"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0},
    {"ignore_eos", MEMBER_BOOL, offsetof(call, ignore_eos), 0, 0},
};
const member_table openai_members = {rows, NUM_COUNT(rows)};
static const member chat_rows[] = {
    {"logprobs", MEMBER_BOOL, offsetof(call, logprobs), 0, 0},
    {"top_logprobs", MEMBER_I32, offsetof(call, n_top), 0, NIB_MAX_TOP},
    {"max_completion_tokens", MEMBER_I64, offsetof(call, max_tokens), -1, 1 << 30},
    {"continue_final_message", MEMBER_BOOL, offsetof(call, continues), 0, 0},
};
const member_table openai_chat_members = {chat_rows, NUM_COUNT(chat_rows)};
static const member completion_rows[] = {
    {"logprobs", MEMBER_I32, offsetof(call, n_top), 0, 5},
    {"echo", MEMBER_BOOL, offsetof(call, echo), 0, 0},
};
const member_table openai_completion_members = {completion_rows, NUM_COUNT(completion_rows)};
static const member stream_rows[] = {
    {"include_usage", MEMBER_BOOL, offsetof(call, usage), 0, 0},
};
static const member_table stream_members = {stream_rows, NUM_COUNT(stream_rows)};

static bool read_stream_options(call *c, fault *why) {
    const json_t *options = member_get(c->body, "stream_options");
    if (options && !json_is_object(options))
        return fault_field(why, "stream_options", "expected an object, found %s", json_type_name(options));
    return members_read(options, &stream_members, c, why);
}

/* Reads {"50256": -100}. The ends of the range mean, as in OpenAI's API, "never" and "only". */
static bool read_bias(call *c, fault *why) {
    enum { END = 100 };
    json_t *bias = member_get(c->body, "logit_bias"), *v;
    const char *key;
    if (!bias)
        return true;
    if (!json_is_object(bias) || json_object_size(bias) > CALL_MAX_BIAS)
        return fault_field(why, "logit_bias", "expected an object of at most %d tokens, found %s",
                           CALL_MAX_BIAS, json_is_object(bias) ? "more" : json_type_name(bias));
    c->bias = mem_array(json_object_size(bias) + 1, sizeof *c->bias);
    if (!c->bias)
        return fault_set(why, 503, NULL, "out of memory");
    json_object_foreach(bias, key, v) {
        char *end;
        errno = 0;
        const long token = strtol(key, &end, 10);
        const double x = json_number_value(v);
        if (!isdigit((unsigned char)*key) || *end != '\0' || errno || token > INT32_MAX)
            return fault_field(why, "logit_bias", "expected a token's id as name, found '%.40s'", key);
        if (!json_is_number(v) || !(x >= -END && x <= END))
            return fault_field(why, "logit_bias", "expected numbers from %d to %d", -END, END);
        c->bias[c->n_bias++] = (nib_logit_bias){(int32_t)token, x == -END ? -INFINITY : (float)x};
    }
    return true;
}

/* Members of OpenAI's API, llama-server and vLLM that change the answer and are not supported. */
static const refused_member refused[] = {
    {"suffix", NULL},
    {"best_of", "1"},
    {"functions", NULL},
    {"function_call", "\"none\""},
    {"audio", NULL},
    {"modalities", "[\"text\"]"},
    {"web_search_options", NULL},
    {"verbosity", "\"medium\""},
    {"prompt_logprobs", NULL},
    {"n_probs", NULL},
    {"use_beam_search", NULL},
    {"length_penalty", "1"},
    {"bad_words", NULL},
    {"stop_token_ids", NULL},
    {"allowed_token_ids", NULL},
    {"logits_processors", NULL},
    {"truncate_prompt_tokens", NULL},
    {"include_stop_str_in_output", NULL},
    {"add_special_tokens", "true"},
    {"skip_special_tokens", "true"},
    {"return_tokens_as_token_ids", NULL},
    {"guided_whitespace_pattern", NULL},
    {"documents", NULL},
    {"chat_template", NULL},
    {"lora", NULL},
    {"t_max_predict_ms", NULL},
};

/* ---- chat ---- */

static bool read_tools(call *c, fault *why) {
    const json_t *choice = member_get(c->body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(member_get(choice, "type"));
    if (!tools_read(c, why))
        return false;
    c->one_call = json_is_false(member_get(c->body, "parallel_tool_calls"));
    if (word && !strcmp(word, "none"))
        c->tools = NULL;
    else if (word && !strcmp(word, "required"))
        return tools_require(c, why);
    else if (type && !strcmp(type, "allowed_tools"))
        return tools_allow(c, member_get(choice, "allowed_tools"), why);
    else if (json_is_object(choice) && (!type || !strcmp(type, "function")))
        return tools_require_one(c, json_string_value(member_get(member_get(choice, "function"), "name")),
                                 why);
    else if (choice && (!word || strcmp(word, "auto") != 0))
        return fault_field(why, "tool_choice",
                           "expected \"auto\", \"none\", \"required\", {\"type\": \"function\", "
                           "\"function\": {\"name\"}} or {\"type\": \"allowed_tools\"}");
    return true;
}

static bool read_reasoning(call *c, fault *why) {
    const json_t *format = member_get(c->body, "reasoning_format");
    const char *word = json_string_value(format);
    if (format &&
        (!word || (strcmp(word, "none") != 0 && strcmp(word, "auto") != 0 && strcmp(word, "deepseek") != 0)))
        return fault_field(why, "reasoning_format", "expected \"auto\", \"deepseek\" or \"none\"");
    c->whole_speech = word && !strcmp(word, "none");
    return true;
}

/* A prompt begins a new turn, unless the last message is continued or the request asks for none. */
static bool read_turn(call *c, fault *why) {
    const json_t *add = member_get(c->body, "add_generation_prompt");
    if (add && !json_is_boolean(add))
        return fault_field(why, "add_generation_prompt", "expected true or false, found %s",
                           json_type_name(add));
    if (json_is_true(add) && c->continues)
        return fault_field(why, "add_generation_prompt",
                           "expected false together with continue_final_message, found true");
    c->no_new_turn = c->continues || json_is_false(add);
    return true;
}

/* Reads "chat_template_kwargs", and "reasoning_effort", which templates know by that name. */
static bool read_variables(call *c, fault *why) {
    static const char *const others[] = {"messages",
                                         "tools",
                                         "documents",
                                         "bos_token",
                                         "eos_token",
                                         "add_generation_prompt",
                                         "continue_final_message",
                                         "chat_template",
                                         "tokenize"};
    json_t *given = member_get(c->body, "chat_template_kwargs"), *v;
    json_t *effort = member_get(c->body, "reasoning_effort");
    const char *name;
    if (given && !json_is_object(given))
        return fault_field(why, "chat_template_kwargs", "expected an object, found %s",
                           json_type_name(given));
    for (size_t i = 0; i < NUM_COUNT(others); i++)
        if (json_object_get(given, others[i]))
            return fault_field(why, "chat_template_kwargs", "'%s' is set by another field", others[i]);
    json_object_foreach(given, name, v) {
        if (!variable_set(c, name, v, why))
            return false;
    }
    if (effort && !json_is_string(effort))
        return fault_field(why, "reasoning_effort", "expected a string, found %s", json_type_name(effort));
    return !effort || variable_set(c, "reasoning_effort", effort, why);
}

static bool read_chat(call *c, fault *why) {
    if (!messages_read(c, member_get(c->body, "messages"), why) ||
        !members_read(c->body, &openai_chat_members, c, why) || !read_tools(c, why) ||
        !read_reasoning(c, why) || !read_turn(c, why) || !read_variables(c, why))
        return false;
    if (c->max_tokens == 0)
        return fault_field(why, "max_tokens", "expected a whole number of at least 1, or -1, found 0");
    return c->n_top == 0 || c->logprobs ||
           fault_field(why, "top_logprobs", "expected logprobs to be true as well");
}

/* ---- completions ---- */

bool json_is_ids(const json_t *v) {
    size_t i;
    const json_t *id;
    json_array_foreach(v, i, id) {
        if (json_id(id) < 0)
            return false;
    }
    return json_is_array(v) && json_array_size(v) > 0;
}

static bool read_completion(call *c, fault *why) {
    json_t *prompt = member_get(c->body, "prompt"), *one;
    size_t i;
    const bool single = json_is_string(prompt) || json_is_ids(prompt);
    if (!single && (!json_is_array(prompt) || json_array_size(prompt) == 0))
        return fault_field(why, "prompt", "expected a string, token ids, or an array of them, found %s",
                           json_type_name(prompt));
    c->prompts = single ? json_pack("[O]", prompt) : json_incref(prompt);
    if (!c->prompts)
        return fault_set(why, 503, NULL, "out of memory");
    if (json_array_size(c->prompts) > CALL_MAX_PROMPTS)
        return fault_field(why, "prompt", "expected at most %d prompts, found %zu", CALL_MAX_PROMPTS,
                           json_array_size(c->prompts));
    json_array_foreach(c->prompts, i, one) {
        if (!json_is_string(one) && !json_is_ids(one))
            return fault_field(why, "prompt", "expected a string or token ids in place %zu, found %s", i,
                               json_type_name(one));
    }
    const json_t *logprobs = member_get(c->body, "logprobs");
    c->logprobs = json_is_number(logprobs);
    return json_is_false(logprobs) || members_read(c->body, &openai_completion_members, c, why);
}

static bool check_length(const call *c, fault *why) {
    return c->max_tokens < 0 || c->min_tokens <= c->max_tokens ||
           fault_field(why, "min_tokens", "expected at most max_tokens, which is %lld, found %lld",
                       (long long)c->max_tokens, (long long)c->min_tokens);
}

bool call_parse(call_kind kind, const char *text, size_t n_byte, const server_defaults *usual, call *out,
                fault *why) {
    if (!call_begin(kind, text, n_byte, usual, out, why) ||
        !members_read(out->body, &openai_members, out, why) || !samplers_read(out, out->body, why))
        return false;
    call_resolve(out, out->body);
    return stop_read(out, "stop", member_get(out->body, "stop"), why) && read_bias(out, why) &&
           read_stream_options(out, why) &&
           (kind == CALL_CHAT ? read_chat(out, why) : read_completion(out, why)) && check_length(out, why) &&
           format_read(out, why) && members_refuse(out->body, refused, NUM_COUNT(refused), why);
}
