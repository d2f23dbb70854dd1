/* answer_parser.c - see answer_parser.h. Undecided text is held back; each round of the loop decides about
 * its front. */
#include "server/answer_parser.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

static const char THINK[] = "<think>", END_THINK[] = "</think>";
static const char *const begins[] = {
    [TOOLS_TAGGED] = "<tool_call>", [TOOLS_LISTED] = "[TOOL_CALLS]", [TOOLS_BARE] = "<|python_tag|>"};
static const char END_CALL[] = "</tool_call>";

typedef struct part_sink {
    answer_part_fn out;
    void *user;
} part_sink;

void answer_parser_init(answer_parser *s, tool_style tools, bool thinks, bool calls) {
    *s = (answer_parser){.tools = tools, .thinks = thinks, .calls = calls, .spaces = thinks || calls};
}

void answer_parser_clear(answer_parser *s) {
    buffer_clear(&s->held);
}

static const char *held(const answer_parser *s) {
    return s->held.data + s->held.taken;
}

/* ---- output ---- */

static void give(const answer_parser *s, int kind, size_t n, const part_sink *to) {
    const answer_part part = {
        .kind = kind == PART_THOUGHT ? PART_THOUGHT : PART_TEXT, .text = held(s), .n_byte = n};
    if (n)
        to->out(to->user, &part);
}

static void drop(answer_parser *s, size_t n) {
    char gone[256];
    while (n)
        n -= buffer_take(&s->held, gone, NUM_MIN(n, sizeof gone));
}

static void emit(answer_parser *s, size_t n, const part_sink *to) {
    give(s, s->thinks ? PART_THOUGHT : PART_TEXT, n, to);
    s->begun = s->begun || n > 0;
    drop(s, n);
}

static const json_t *arguments_of(const json_t *call) {
    const json_t *arguments = json_object_get(call, "arguments");
    return arguments ? arguments : json_object_get(call, "parameters");
}

static bool is_call(const json_t *v) {
    const json_t *arguments = arguments_of(v);
    return json_string_length(json_object_get(v, "name")) > 0 &&
           (!arguments || json_is_object(arguments) || json_is_string(arguments));
}

/* Returns a call with the text of its arguments [n]; false: there are too many. */
static bool give_call(answer_parser *s, const char *name, const char *text, size_t n, const part_sink *to) {
    if (!*name || s->n_call == ANSWER_MAX_CALLS)
        return false;
    const answer_part part = {
        .kind = PART_CALL, .text = text, .n_byte = n, .name = name, .index = s->n_call++};
    to->out(to->user, &part);
    s->begun = true;
    return true;
}

/* A value inside the text [n] of `root`. Its arguments are given as the model wrote them. */
static bool give_value(answer_parser *s, const char *text, size_t n, const json_t *root, const json_t *call,
                       const part_sink *to) {
    const json_t *arguments = arguments_of(call);
    const char *given = "{}";
    size_t n_given = 2;
    if (json_is_string(arguments)) {
        given = json_string_value(arguments);
        n_given = json_string_length(arguments);
    } else if (arguments) {
        given = jsonx_source(text, n, root, arguments, &n_given);
    }
    return give_call(s, json_string_value(json_object_get(call, "name")), given, n_given, to);
}

/* Returns one call or an array of calls: all of them or none. */
static bool give_calls(answer_parser *s, const char *text, size_t n, const json_t *root,
                       const part_sink *to) {
    const json_t *one;
    size_t i;
    if (!json_is_array(root))
        return is_call(root) && give_value(s, text, n, root, root, to);
    json_array_foreach(root, i, one) {
        if (!is_call(one))
            return false;
    }
    json_array_foreach(root, i, one) {
        if (!give_value(s, text, n, root, one, to))
            return i > 0;
    }
    return json_array_size(root) > 0;
}

static bool give_json(answer_parser *s, const char *text, size_t n, const part_sink *to) {
    json_t *value = NULL;
    const bool good = jsonx_parse(text, n, &value, NULL) == NIB_OK && give_calls(s, text, n, value, to);
    json_decref(value);
    return good;
}

/* ---- finding the next part ---- */

static size_t find(const answer_parser *s, const char *what) {
    const size_t n = buffer_left(&s->held), length = strlen(what);
    const char *at = n >= length ? memmem(held(s), n, what, length) : NULL;
    return at ? (size_t)(at - held(s)) : SIZE_MAX;
}

/* Number of bytes at the end of the held text that may become `what`. */
static size_t may_become(const answer_parser *s, const char *what) {
    const size_t n = buffer_left(&s->held);
    size_t k = NUM_MIN(strlen(what) - 1, n);
    while (k > 0 && memcmp(held(s) + n - k, what, k) != 0)
        k--;
    return k;
}

static size_t count_spaces(const answer_parser *s) {
    size_t n = 0;
    while (n < buffer_left(&s->held) && strchr(" \t\r\n", held(s)[n]) && held(s)[n])
        n++;
    return n;
}

/* Whether the front is `what`; *may: it may still become it. */
static bool begins_with(const answer_parser *s, const char *what, bool *may) {
    const size_t n = buffer_left(&s->held), length = strlen(what);
    const bool same = memcmp(n ? held(s) : "", what, NUM_MIN(n, length)) == 0;
    *may = same && n < length;
    return same && n >= length;
}

/* ---- decisions; true: decide again ---- */

static bool think(answer_parser *s, bool last, const part_sink *to) {
    const size_t spaces = s->spaces ? count_spaces(s) : 0;
    if (spaces) {
        drop(s, spaces);
        return true;
    }
    s->spaces = false;
    const size_t at = find(s, END_THINK);
    if (at == SIZE_MAX) {
        emit(s, buffer_left(&s->held) - (last ? 0 : may_become(s, END_THINK)), to);
        return false;
    }
    emit(s, at, to);
    drop(s, strlen(END_THINK));
    s->thinks = false;
    s->begun = s->spaces = true;
    return true;
}

/* Whether the held text begins like a bare call: families without tags write answers that consist of calls.
 */
static bool is_bare(const answer_parser *s) {
    return s->tools == TOOLS_BARE && s->n_call == 0 && *held(s) == '{';
}

static bool begin(answer_parser *s, bool last, const part_sink *to) {
    bool may;
    const size_t spaces = count_spaces(s);
    if (spaces && s->spaces) {
        drop(s, spaces);
        return true;
    }
    if (spaces == buffer_left(&s->held)) {
        if (last)
            emit(s, spaces, to);
        return false;
    }
    s->held.taken += spaces; /* temporarily, to look at the text after them */
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

static bool answer(answer_parser *s, bool last, const part_sink *to) {
    const char *tag = begins[s->tools];
    const size_t n = buffer_left(&s->held), spaces = s->spaces ? count_spaces(s) : 0;
    if (spaces) {
        drop(s, spaces);
        return true;
    }
    const size_t at = tag ? find(s, tag) : SIZE_MAX;
    if (at == SIZE_MAX && n > 0 && is_bare(s) && s->spaces) { /* after reasoning */
        s->calls = true;
        return true;
    }
    s->spaces = s->spaces && n == 0;
    if (at == SIZE_MAX) {
        emit(s, n - (last || !tag ? 0 : may_become(s, tag)), to);
        return false;
    }
    emit(s, at, to);
    drop(s, strlen(tag));
    s->calls = s->spaces = true;
    return true;
}

/* The first n bytes of the held text are a call; the next `end` bytes close it. */
static void end_call(answer_parser *s, size_t n, size_t end, const part_sink *to) {
    if (!give_json(s, held(s), n, to))
        emit(s, n + end, to);
    else
        drop(s, n + end);
    s->calls = false;
}

/* Mistral's newer form: name[ARGS]{...} */
static bool give_named(answer_parser *s, const part_sink *to) {
    static const char mark[] = "[ARGS]";
    const size_t at = find(s, mark), n = buffer_left(&s->held);
    json_t *arguments = NULL;
    if (at == SIZE_MAX || at == 0)
        return false;
    const char *text = held(s) + at + strlen(mark);
    size_t n_text = n - at - strlen(mark);
    json_t *name = json_stringn(held(s), at);
    bool good = name && jsonx_parse(text, n_text, &arguments, NULL) == NIB_OK && json_is_object(arguments);
    if (good) {
        text = jsonx_source(text, n_text, arguments, arguments, &n_text);
        good = give_call(s, json_string_value(name), text, n_text, to);
    }
    json_decref(name);
    json_decref(arguments);
    return good;
}

/* Several calls in Llama 3's form: {...}; {...}. give: otherwise only looks whether all are calls. */
static bool give_sequence(answer_parser *s, bool give, const part_sink *to) {
    const char *text = held(s);
    size_t n = buffer_left(&s->held), n_given = 0;
    bool good = true;
    while (good && n) {
        json_t *one = NULL;
        size_t n_read = 0;
        good = jsonx_parse_first(text, n, &one, &n_read, NULL) == NIB_OK && is_call(one) &&
               (!give || give_value(s, text, n_read, one, one, to));
        json_decref(one);
        n_given += good;
        text += n_read;
        n -= n_read;
        while (n && strchr("; \t\r\n", *text) && *text)
            text++, n--;
    }
    return give ? n_given > 0 : good;
}

static bool give_rest(answer_parser *s, const part_sink *to) {
    if (s->tools == TOOLS_BARE)
        return give_sequence(s, false, to) && give_sequence(s, true, to);
    return give_named(s, to);
}

static bool call(answer_parser *s, bool last, const part_sink *to) {
    const size_t n = buffer_left(&s->held);
    const size_t at = s->tools == TOOLS_TAGGED ? find(s, END_CALL) : SIZE_MAX;
    if (at != SIZE_MAX) {
        end_call(s, at, strlen(END_CALL), to);
        s->spaces = true;
        return true;
    }
    if (!last)
        return false;
    if (n && give_rest(s, to))
        drop(s, n);
    else if (n)
        end_call(s, n, 0, to);
    s->calls = false;
    return false;
}

bool answer_parser_feed(answer_parser *s, const char *text, size_t n_byte, bool last, answer_part_fn out,
                        void *user) {
    const part_sink to = {out, user};
    buffer_add(&s->held, text, n_byte);
    for (bool again = true; again && !s->held.no_memory && (buffer_left(&s->held) || s->calls);)
        again = s->thinks  ? think(s, last, &to)
                : s->calls ? call(s, last, &to)
                : s->begun ? answer(s, last, &to)
                           : begin(s, last, &to);
    buffer_trim(&s->held);
    return !s->held.no_memory;
}
