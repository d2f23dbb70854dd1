/* lex.c - see lex.h. */
#include "jinja/lex.h"

#include "base/num.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

const char *tpl_token_name(int kind) {
    static const char *const names[] = {
#define TPL_X(id, spelling) spelling,
        TPL_TOKENS(TPL_X)
#undef TPL_X
    };
    return kind >= 0 && (size_t)kind < NUM_COUNT(names) ? names[kind] : "?";
}

nib_status tpl_lex_init(tpl_lexer *x, arena *mem, const char *source, size_t n, nib_error *err) {
    if (n > TPL_MAX_SOURCE)
        return nib_fail(err, NIB_E_MODEL, "chat template: expected at most %u bytes, found %zu",
                        TPL_MAX_SOURCE, n);
    char *copy = arena_alloc(mem, n + 1);
    if (!copy)
        return nib_fail_nomem(err, n + 1, "the chat template");
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            copy[m++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n')
                i++;
        } else {
            copy[m++] = source[i];
        }
    }
    if (m && copy[m - 1] == '\n')
        m--;
    *x = (tpl_lexer){.mem = mem, .src = copy, .end = copy + m, .p = copy, .line = 1};
    return NIB_OK;
}

static nib_status lex_fail(const tpl_lexer *x, const char *what, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "chat template line %d: %s", x->line, what);
}

static void move_to(tpl_lexer *x, const char *to) {
    for (; x->p < to; x->p++)
        x->line += *x->p == '\n';
}

static bool at(const tpl_lexer *x, const char *p, const char *text) {
    size_t n = strlen(text);
    return (size_t)(x->end - p) >= n && memcmp(p, text, n) == 0;
}

static const char *skip_space(const tpl_lexer *x, const char *p) {
    while (p < x->end) {
        const char *next = p;
        if (!tpl_is_space(tpl_utf8_next(&next, x->end)))
            break;
        p = next;
    }
    return p;
}

/* If p is at a tag's end: the position after it, else NULL. mark: '%', '#' or '}'. */
static const char *tag_end(const tpl_lexer *x, const char *p, char mark) {
    char close[4] = {'-', mark, '}', 0};
    if (at(x, p, close))
        return skip_space(x, p + 3);
    close[0] = '+';
    if (mark != '}' && at(x, p, close))
        return p + 3;
    if (!at(x, p, close + 1))
        return NULL;
    p += 2;
    return mark != '}' && p < x->end && *p == '\n' ? p + 1 : p;
}

/* The end of the text [from, to) before a tag, after white space control: `sign` follows the tag's opening;
 * lstrip_blocks applies too. */
static const char *strip_before(const tpl_lexer *x, const char *from, const char *to, char sign, bool print) {
    const char *line = to;
    while (line > from && line[-1] != '\n')
        line--;
    const char *begin;
    if (sign == '-')
        begin = from;
    else if (sign == '+' || print || (line == from && from > x->src && from[-1] != '\n'))
        return to;
    else
        begin = line;
    const char *keep = begin;
    for (const char *p = begin; p < to;) {
        if (!tpl_is_space(tpl_utf8_next(&p, to)))
            keep = p;
    }
    return sign == '-' || keep == begin ? keep : to;
}

static void set_text(tpl_token *t, const char *data, size_t n) {
    t->text = (tpl_str){.data = data, .n = n, .n_char = tpl_utf8_count(data, n)};
}

static char sign_at(const tpl_lexer *x, const char *p) {
    return p < x->end && (*p == '-' || *p == '+') ? *p : 0;
}

/* If {% raw %} or {% endraw %} is at p: the end of the tag's content (before the closing), else NULL. */
static const char *raw_word(const tpl_lexer *x, const char *p, const char *word) {
    if (!at(x, p, "{%"))
        return NULL;
    p += 2 + (sign_at(x, p + 2) != 0);
    p = skip_space(x, p);
    if (!at(x, p, word))
        return NULL;
    return skip_space(x, p + strlen(word));
}

/* Reads the inside of a raw block, after its opening, as DATA; the lexer is then after {% endraw %}. */
static nib_status lex_raw(tpl_lexer *x, tpl_token *out, nib_error *err) {
    const char *from = x->p;
    for (const char *p = from; p < x->end; p++) {
        if (*p != '{')
            continue;
        const char *inside = raw_word(x, p, "endraw");
        const char *after = inside ? tag_end(x, inside, '%') : NULL;
        if (!after)
            continue;
        const char *stop = strip_before(x, from, p, sign_at(x, p + 2), false);
        out->line = x->line;
        set_text(out, from, (size_t)(stop - from));
        move_to(x, after);
        return NIB_OK;
    }
    return lex_fail(x, "missing end of raw directive", err);
}

static nib_status lex_comment(tpl_lexer *x, nib_error *err) {
    for (const char *p = x->p; p < x->end; p++) {
        const char *after = tag_end(x, p, '#');
        if (after) {
            move_to(x, after);
            return NIB_OK;
        }
    }
    return lex_fail(x, "missing end of comment tag", err);
}

/* Reads the text up to the next tag as DATA (may be empty), and the tag's opening, if any, to x->ahead. */
static nib_status lex_text(tpl_lexer *x, tpl_token *out, nib_error *err) {
    const char *from = x->p, *p = from;
    while (p < x->end && !(*p == '{' && p + 1 < x->end && (p[1] == '{' || p[1] == '%' || p[1] == '#')))
        p++;
    *out = (tpl_token){.kind = T_DATA, .line = x->line};
    if (p == x->end) {
        set_text(out, from, (size_t)(p - from));
        move_to(x, p);
        return NIB_OK;
    }
    char sign = sign_at(x, p + 2);
    const char *stop = strip_before(x, from, p, sign, p[1] == '{');
    set_text(out, from, (size_t)(stop - from));
    move_to(x, p);
    const char *raw = raw_word(x, p, "raw");
    if (raw && (at(x, raw, "%}") || at(x, raw, "-%}"))) {
        move_to(x, at(x, raw, "%}") ? raw + 2 : skip_space(x, raw + 3));
        x->has_ahead = true;
        x->ahead = (tpl_token){.kind = T_DATA, .line = x->line};
        return lex_raw(x, &x->ahead, err);
    }
    char mark = p[1];
    move_to(x, p + 2 + (sign != 0));
    if (mark == '#')
        return lex_comment(x, err);
    x->in_tag = true;
    x->in_print = mark == '{';
    x->has_ahead = true;
    x->ahead = (tpl_token){.kind = x->in_print ? T_PRINT_BEGIN : T_BLOCK_BEGIN, .line = x->line};
    return NIB_OK;
}

/* Converts \x41 \u00e9 \U0001f600 at p (after the backslash) to UTF-8; returns the end of the escape, NULL if
 * it is invalid. */
static const char *hex_escape(const char *p, const char *end, char *out, size_t *m) {
    int want = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
    const int64_t code = end - p > want ? num_hex(p + 1, want) : -1;
    if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return NULL;
    *m += tpl_utf8_put(out + *m, (uint32_t)code);
    return p + 1 + want;
}

/* Converts one escape at p (after the backslash) as Python does; an unknown one is copied. */
static const char *one_escape(const char *p, const char *end, char *out, size_t *m) {
    static const char from[] = "ntr\\'\"abfv", to[] = "\n\t\r\\'\"\a\b\f\v";
    const char *hit = strchr(from, *p);
    if (*p && hit) {
        out[(*m)++] = to[hit - from];
        return p + 1;
    }
    if (*p == '\n')
        return p + 1;
    if (*p == 'x' || *p == 'u' || *p == 'U')
        return hex_escape(p, end, out, m);
    if (*p == 'N')
        return NULL;
    if (*p >= '0' && *p <= '7') {
        uint32_t code = 0;
        for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++)
            code = code * 8 + (uint32_t)(*p++ - '0');
        *m += tpl_utf8_put(out + *m, code);
        return p;
    }
    out[(*m)++] = '\\';
    out[(*m)++] = *p;
    return p + 1;
}

static nib_status lex_string(tpl_lexer *x, tpl_token *out, nib_error *err) {
    char quote = *x->p;
    const char *p = x->p + 1;
    while (p < x->end && *p != quote)
        p += *p == '\\' ? 2 : 1;
    if (p >= x->end)
        return lex_fail(x, "a string literal does not end", err);
    /* a converted escape is never longer than the source */
    char *text = arena_alloc(x->mem, (size_t)(p - x->p) + 8);
    if (!text)
        return nib_fail_nomem(err, (size_t)(p - x->p) + 8, "the chat template");
    size_t m = 0;
    for (const char *s = x->p + 1; s < p;) {
        if (*s != '\\') {
            text[m++] = *s++;
            continue;
        }
        s = one_escape(s + 1, p, text, &m);
        if (!s)
            return lex_fail(x, "an escape in a string literal is not valid", err);
    }
    out->kind = T_STRING;
    set_text(out, text, m);
    move_to(x, p + 1);
    return NIB_OK;
}

bool tpl_read_float(const char *s, size_t n, double *out) {
    char text[128];
    const char *point = localeconv()->decimal_point;
    size_t n_point = strlen(point), m = 0;
    for (size_t i = 0; i < n; i++) {
        if (m + n_point + 1 >= sizeof text)
            return false;
        if (s[i] == '_')
            continue;
        if (s[i] == '.') {
            memcpy(text + m, point, n_point);
            m += n_point;
        } else {
            text[m++] = s[i];
        }
    }
    text[m] = 0;
    char *end;
    *out = strtod(text, &end);
    return m > 0 && end == text + m;
}

static bool is_digit(const tpl_lexer *x, const char *p) {
    return p < x->end && *p >= '0' && *p <= '9';
}

static const char *skip_digits(const tpl_lexer *x, const char *p) {
    while (is_digit(x, p) || (p < x->end && *p == '_' && is_digit(x, p + 1)))
        p++;
    return p;
}

static nib_status lex_number(tpl_lexer *x, tpl_token *out, nib_error *err) {
    const char *p = skip_digits(x, x->p);
    bool is_float = false;
    bool after_dot = x->p > x->src && x->p[-1] == '.';
    if (!after_dot && p < x->end && *p == '.' && is_digit(x, p + 1)) {
        is_float = true;
        p = skip_digits(x, p + 1);
    }
    if (!after_dot && p < x->end && (*p | 0x20) == 'e') {
        const char *digits = p + 1 + (p + 1 < x->end && (p[1] == '+' || p[1] == '-'));
        if (is_digit(x, digits)) {
            is_float = true;
            p = skip_digits(x, digits);
        }
    }
    if (is_float) {
        out->kind = T_FLOAT;
        if (!tpl_read_float(x->p, (size_t)(p - x->p), &out->f))
            return lex_fail(x, "a number is too long", err);
        move_to(x, p);
        return NIB_OK;
    }
    int base = 10;
    const char *from = x->p;
    if (*from == '0' && from + 1 < x->end) {
        char c = from[1] | 0x20;
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (base != 10) {
            from += 2;
            p = from;
            while (p < x->end && (*p == '_' || (num_hex(p, 1) >= 0 && num_hex(p, 1) < base)))
                p++;
            if (p == from)
                return lex_fail(x, "a number has no digits", err);
        }
    }
    uint64_t value = 0;
    for (; from < p; from++) {
        if (*from == '_')
            continue;
        if (!num_mul_u64(value, (uint64_t)base, &value) ||
            !num_add_u64(value, (uint64_t)num_hex(from, 1), &value) || value > INT64_MAX)
            return lex_fail(x, "an integer does not fit 64 bits", err);
    }
    out->kind = T_INT;
    out->i = (int64_t)value;
    move_to(x, p);
    return NIB_OK;
}

static bool name_byte(char c, bool first) {
    unsigned char u = (unsigned char)c;
    return u == '_' || u >= 0x80 || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') ||
           (!first && u >= '0' && u <= '9');
}

static nib_status lex_operator(tpl_lexer *x, tpl_token *out, nib_error *err) {
    for (int kind = T_POW; kind <= T_SEMICOLON; kind++) {
        if (!at(x, x->p, tpl_token_name(kind)))
            continue;
        char c = *x->p;
        if (kind == T_LPAREN || kind == T_LBRACKET || kind == T_LBRACE) {
            if (x->n_open == TPL_MAX_NEST)
                return lex_fail(x, "brackets are nested too deeply", err);
            x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (kind == T_RPAREN || kind == T_RBRACKET || kind == T_RBRACE) {
            if (!x->n_open || x->open[--x->n_open] != c)
                return nib_fail(err, NIB_E_MODEL, "chat template line %d: unexpected '%c'", x->line, c);
        }
        out->kind = (tpl_token_kind)kind;
        move_to(x, x->p + strlen(tpl_token_name(kind)));
        return NIB_OK;
    }
    return nib_fail(err, NIB_E_MODEL, "chat template line %d: unexpected character '%c'", x->line, *x->p);
}

static nib_status lex_in_tag(tpl_lexer *x, tpl_token *out, nib_error *err) {
    if (!x->n_open) {
        const char *after = tag_end(x, x->p, x->in_print ? '}' : '%');
        if (after) {
            *out = (tpl_token){.kind = x->in_print ? T_PRINT_END : T_BLOCK_END, .line = x->line};
            move_to(x, after);
            x->in_tag = false;
            return NIB_OK;
        }
    }
    move_to(x, skip_space(x, x->p));
    if (x->p == x->end)
        return lex_fail(
            x, x->in_print ? "unexpected end of template inside {{" : "unexpected end of template inside {%",
            err);
    *out = (tpl_token){.line = x->line};
    if (!x->n_open && tag_end(x, x->p, x->in_print ? '}' : '%'))
        return lex_in_tag(x, out, err);
    if (is_digit(x, x->p))
        return lex_number(x, out, err);
    if (name_byte(*x->p, true)) {
        const char *p = x->p;
        while (p < x->end && name_byte(*p, false))
            p++;
        if (p - x->p > TPL_MAX_NAME)
            return lex_fail(x, "a name is too long", err);
        out->kind = T_NAME;
        set_text(out, x->p, (size_t)(p - x->p));
        x->p = p;
        return NIB_OK;
    }
    if (*x->p == '\'' || *x->p == '"')
        return lex_string(x, out, err);
    return lex_operator(x, out, err);
}

nib_status tpl_lex_next(tpl_lexer *x, tpl_token *out, nib_error *err) {
    for (;;) {
        if (x->has_ahead) {
            x->has_ahead = false;
            *out = x->ahead;
        } else if (x->in_tag) {
            return lex_in_tag(x, out, err);
        } else if (x->p == x->end) {
            *out = (tpl_token){.kind = T_END, .line = x->line};
            return NIB_OK;
        } else {
            NIB_TRY(lex_text(x, out, err));
        }
        if (out->kind != T_DATA || out->text.n)
            return NIB_OK;
    }
}
