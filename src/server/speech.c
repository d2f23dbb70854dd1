/* speech.c - see speech.h. What is not decided yet is held; each turn of the loop decides about the front of
 * it. */
#include "server/speech.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

static const char THINK[] = "<think>", END_THINK[] = "</think>";
static const char *const begins[] = {
    [SPEECH_TAGGED] = "<tool_call>", [SPEECH_LISTED] = "[TOOL_CALLS]", [SPEECH_BARE] = "<|python_tag|>"};
static const char END_CALL[] = "</tool_call>";

typedef struct listener_of {
    speech_fn out;
    void *user;
} listener_of;

void speech_init(speech *s, speech_tools tools, bool thinks, bool calls) {
    *s = (speech){.tools = tools, .thinks = thinks, .calls = calls, .spaces = thinks || calls};
}

void speech_clear(speech *s) {
    buffer_clear(&s->held);
}

static const char *held(const speech *s) {
    return s->held.data + s->held.taken;
}

/* ---- giving ---- */

static void give(const speech *s, int kind, size_t n, const listener_of *to) {
    const speech_part part = {
        .kind = kind == SPEECH_THOUGHT ? SPEECH_THOUGHT : SPEECH_TEXT, .text = held(s), .n_byte = n};
    if (n)
        to->out(to->user, &part);
}

static void drop(speech *s, size_t n) {
    char gone[256];
    while (n)
        n -= buffer_take(&s->held, gone, NUM_MIN(n, sizeof gone));
}

static void say(speech *s, size_t n, const listener_of *to) {
    give(s, s->thinks ? SPEECH_THOUGHT : SPEECH_TEXT, n, to);
    s->begun = s->begun || n > 0;
    drop(s, n);
}

/* {"name", "arguments" or "parameters"}. False: it is no call. */
static bool give_call(speech *s, const json_t *call, const listener_of *to) {
    const char *name = json_string_value(json_object_get(call, "name"));
    const json_t *arguments = json_object_get(call, "arguments");
    arguments = arguments ? arguments : json_object_get(call, "parameters");
    if (!name || !*name || s->n_call == SPEECH_MAX_CALLS)
        return false;
    if (arguments && !json_is_object(arguments) && !json_is_string(arguments))
        return false;
    char *own = json_is_string(arguments) || !arguments ? NULL : jsonx_text(arguments, JSON_COMPACT);
    const char *text = own ? own : json_is_string(arguments) ? json_string_value(arguments) : "{}";
    const speech_part part = {
        .kind = SPEECH_CALL, .text = text, .n_byte = strlen(text), .name = name, .index = s->n_call++};
    to->out(to->user, &part);
    mem_free(own);
    s->begun = true;
    return true;
}

static bool is_call(const json_t *v) {
    const json_t *arguments = json_object_get(v, "arguments");
    arguments = arguments ? arguments : json_object_get(v, "parameters");
    return json_string_length(json_object_get(v, "name")) > 0 &&
           (!arguments || json_is_object(arguments) || json_is_string(arguments));
}

/* One call or an array of them; all of them or none. */
static bool give_calls(speech *s, const json_t *value, const listener_of *to) {
    const json_t *one;
    size_t i;
    if (!json_is_array(value))
        return is_call(value) && give_call(s, value, to);
    json_array_foreach(value, i, one) {
        if (!is_call(one))
            return false;
    }
    json_array_foreach(value, i, one) {
        if (!give_call(s, one, to))
            return i > 0;
    }
    return json_array_size(value) > 0;
}

static bool give_json(speech *s, const char *text, size_t n, const listener_of *to) {
    json_t *value = NULL;
    const bool good = jsonx_parse(text, n, &value, NULL) == NIB_OK && give_calls(s, value, to);
    json_decref(value);
    return good;
}

/* ---- where the next thing begins ---- */

static size_t find(const speech *s, const char *what) {
    const size_t n = buffer_left(&s->held), length = strlen(what);
    const char *at = n >= length ? memmem(held(s), n, what, length) : NULL;
    return at ? (size_t)(at - held(s)) : SIZE_MAX;
}

/* Bytes at the end that may become `what`. */
static size_t may_become(const speech *s, const char *what) {
    const size_t n = buffer_left(&s->held);
    size_t k = NUM_MIN(strlen(what) - 1, n);
    while (k > 0 && memcmp(held(s) + n - k, what, k) != 0)
        k--;
    return k;
}

static size_t count_spaces(const speech *s) {
    size_t n = 0;
    while (n < buffer_left(&s->held) && strchr(" \t\r\n", held(s)[n]) && held(s)[n])
        n++;
    return n;
}

/* The front is `what`, or may become it. */
static bool begins_with(const speech *s, const char *what, bool *may) {
    const size_t n = buffer_left(&s->held), length = strlen(what);
    const bool same = memcmp(n ? held(s) : "", what, NUM_MIN(n, length)) == 0;
    *may = same && n < length;
    return same && n >= length;
}

/* ---- one decision each: true: look again ---- */

static bool think(speech *s, bool last, const listener_of *to) {
    const size_t spaces = s->spaces ? count_spaces(s) : 0;
    if (spaces) {
        drop(s, spaces);
        return true;
    }
    s->spaces = false;
    const size_t at = find(s, END_THINK);
    if (at == SIZE_MAX) {
        say(s, buffer_left(&s->held) - (last ? 0 : may_become(s, END_THINK)), to);
        return false;
    }
    say(s, at, to);
    drop(s, strlen(END_THINK));
    s->thinks = false;
    s->begun = s->spaces = true;
    return true;
}

/* Whether it is what a family without a tag in front writes: the whole answer is calls. */
static bool is_bare(const speech *s) {
    return s->tools == SPEECH_BARE && s->n_call == 0 && *held(s) == '{';
}

static bool begin(speech *s, bool last, const listener_of *to) {
    bool may;
    const size_t spaces = count_spaces(s);
    if (spaces && s->spaces) {
        drop(s, spaces);
        return true;
    }
    if (spaces == buffer_left(&s->held)) {
        if (last)
            say(s, spaces, to);
        return false;
    }
    s->held.taken += spaces; /* a look behind them */
    const bool thinks = begins_with(s, THINK, &may), bare = is_bare(s);
    s->held.taken -= spaces;
    if (thinks || bare) {
        drop(s, spaces + (thinks ? strlen(THINK) : 0));
        s->thinks = thinks;
        s->calls = bare;
        s->spaces = true;
        return true;
    }
    if (may && !last)
        return false;
    s->begun = true;
    return true;
}

static bool talk(speech *s, bool last, const listener_of *to) {
    const char *tag = begins[s->tools];
    const size_t n = buffer_left(&s->held), spaces = s->spaces ? count_spaces(s) : 0;
    if (spaces) {
        drop(s, spaces);
        return true;
    }
    const size_t at = tag ? find(s, tag) : SIZE_MAX;
    if (at == SIZE_MAX && n > 0 && is_bare(s) && s->spaces) { /* behind a thought */
        s->calls = true;
        return true;
    }
    s->spaces = s->spaces && n == 0;
    if (at == SIZE_MAX) {
        say(s, n - (last || !tag ? 0 : may_become(s, tag)), to);
        return false;
    }
    say(s, at, to);
    drop(s, strlen(tag));
    s->calls = s->spaces = true;
    return true;
}

/* What is held is a call, up to byte n, with `end` bytes behind it that close it. */
static void end_call(speech *s, size_t n, size_t end, const listener_of *to) {
    if (!give_json(s, held(s), n, to))
        say(s, n + end, to);
    else
        drop(s, n + end);
    s->calls = false;
}

/* Mistral's newer way: name[ARGS]{...} */
static bool give_named(speech *s, const listener_of *to) {
    static const char mark[] = "[ARGS]";
    const size_t at = find(s, mark), n = buffer_left(&s->held);
    json_t *arguments = NULL;
    if (at == SIZE_MAX || at == 0)
        return false;
    const size_t from = at + strlen(mark);
    bool good =
        jsonx_parse(held(s) + from, n - from, &arguments, NULL) == NIB_OK && json_is_object(arguments);
    json_t *call = good ? json_pack("{s:s%, s:O}", "name", held(s), at, "arguments", arguments) : NULL;
    good = call && give_call(s, call, to);
    json_decref(call);
    json_decref(arguments);
    return good;
}

/* Calls one after the other, as Llama 3 writes several: {...}; {...} */
static bool give_sequence(speech *s, const listener_of *to) {
    json_t *list = json_array();
    const char *text = held(s);
    size_t n = buffer_left(&s->held);
    bool good = list != NULL;
    while (good && n) {
        json_error_t why;
        json_t *one = json_loadb(text, n, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &why);
        good = one && is_call(one) && json_array_append(list, one) == 0;
        json_decref(one);
        if (!good)
            break;
        text += why.position;
        n -= NUM_MIN((size_t)why.position, n);
        while (n && strchr("; \t\r\n", *text) && *text)
            text++, n--;
    }
    good = good && give_calls(s, list, to);
    json_decref(list);
    return good;
}

static bool call(speech *s, bool last, const listener_of *to) {
    const size_t n = buffer_left(&s->held);
    const size_t at = s->tools == SPEECH_TAGGED ? find(s, END_CALL) : SIZE_MAX;
    if (at != SIZE_MAX) {
        end_call(s, at, strlen(END_CALL), to);
        s->spaces = true;
        return true;
    }
    if (!last)
        return false;
    if (n && (s->tools == SPEECH_BARE ? give_sequence(s, to) : give_named(s, to)))
        drop(s, n);
    else if (n)
        end_call(s, n, 0, to);
    s->calls = false;
    return false;
}

bool speech_feed(speech *s, const char *text, size_t n_byte, bool last, speech_fn out, void *user) {
    const listener_of to = {out, user};
    buffer_add(&s->held, text, n_byte);
    for (bool again = true; again && !s->held.no_memory && (buffer_left(&s->held) || s->calls);)
        again = s->thinks  ? think(s, last, &to)
                : s->calls ? call(s, last, &to)
                : s->begun ? talk(s, last, &to)
                           : begin(s, last, &to);
    return !s->held.no_memory;
}
