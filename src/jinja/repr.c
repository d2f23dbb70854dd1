/* repr.c - values as Python prints them: str() and repr(). */
#include "jinja/run.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* Steps charged for a float: up to 17 rounds of printing it and reading it back. */
#define FLOAT_STEPS 100

bool tpl_is_printable(uint32_t code) {
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
    }
}

static void put_quoted(tpl_builder *b, const tpl_str *s) {
    bool single = s->n && memchr(s->data, '\'', s->n), twice = s->n && memchr(s->data, '"', s->n);
    char quote = single && !twice ? '"' : '\'';
    tpl_put(b, &quote, 1);
    for (const char *p = s->data, *end = s->data + s->n; p < end && !b->failed;) {
        const char *from = p;
        uint32_t c = tpl_utf8_next(&p, end);
        char text[16];
        b->marked = tpl_is_marked(s, from);
        if (c == (uint32_t)quote || c == '\\')
            snprintf(text, sizeof text, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (tpl_is_printable(c)) {
            tpl_put(b, from, (size_t)(p - from));
            continue;
        } else if (c < 0x100)
            snprintf(text, sizeof text, "\\x%02x", c);
        else if (c < 0x10000)
            snprintf(text, sizeof text, "\\u%04x", c);
        else
            snprintf(text, sizeof text, "\\U%08x", c);
        tpl_puts(b, text);
    }
    b->marked = false;
    tpl_put(b, &quote, 1);
}

static void put_str_repr(tpl_builder *b, const tpl_str *s) {
    tpl_puts(b, s->safe ? "Markup(" : "");
    put_quoted(b, s);
    tpl_puts(b, s->safe ? ")" : "");
}

/* Writes the fewest digits that read back as the same double, with a point or an exponent like Python's repr.
 */
void tpl_put_float(tpl_builder *b, double f) {
    char text[64], digits[32];
    if (!tpl_charge(b->r, FLOAT_STEPS)) {
        b->failed = true;
        return;
    }
    if (isnan(f) || isinf(f)) {
        tpl_puts(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int n = 0; n < 17; n++) {
        snprintf(text, sizeof text, "%.*e", n, f);
        if (strtod(text, NULL) == f) /* both in the process's locale */
            break;
    }
    const char *e = strchr(text, 'e');
    int exponent = atoi(e + 1), n = 0;
    for (const char *p = text; p < e; p++) {
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    }
    if (signbit(f))
        tpl_puts(b, "-");
    if (exponent < -4 || exponent >= 16) {
        tpl_put(b, digits, 1);
        if (n > 1) {
            tpl_puts(b, ".");
            tpl_put(b, digits + 1, (size_t)n - 1);
        }
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        tpl_puts(b, text);
    } else if (exponent < 0) {
        tpl_puts(b, "0.");
        for (int i = -1; i > exponent; i--)
            tpl_puts(b, "0");
        tpl_put(b, digits, (size_t)n);
    } else {
        for (int i = 0; i <= exponent; i++)
            tpl_put(b, i < n ? digits + i : "0", 1);
        tpl_puts(b, ".");
        if (n > exponent + 1)
            tpl_put(b, digits + exponent + 1, (size_t)(n - exponent - 1));
        else
            tpl_puts(b, "0");
    }
}

static void put_dict(tpl_builder *b, const tpl_dict *d, int depth) {
    tpl_puts(b, "{");
    for (size_t i = 0; i < d->n && !b->failed; i++) {
        if (i)
            tpl_puts(b, ", ");
        tpl_put_repr(b, &d->key[i], depth + 1);
        tpl_puts(b, ": ");
        tpl_put_repr(b, &d->val[i], depth + 1);
    }
    tpl_puts(b, "}");
}

static void put_list(tpl_builder *b, const tpl_list *l, bool tuple, int depth) {
    tpl_puts(b, tuple ? "(" : "[");
    for (size_t i = 0; i < l->n && !b->failed; i++) {
        if (i)
            tpl_puts(b, ", ");
        tpl_put_repr(b, &l->v[i], depth + 1);
    }
    tpl_puts(b, tuple && l->n == 1 ? ",)" : tuple ? ")" : "]");
}

static void put_range(tpl_builder *b, const tpl_list *l) {
    char text[96];
    if (l->step == 1)
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", l->start, l->stop);
    else
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", l->start, l->stop,
                 l->step);
    tpl_puts(b, text);
}

void tpl_put_repr(tpl_builder *b, const tpl_value *v, int depth) {
    char text[32];
    if (depth > TPL_MAX_VALUE_DEPTH) {
        b->failed = true;
        tpl_fail(b->r, "a value is nested more than %d deep", TPL_MAX_VALUE_DEPTH);
        return;
    }
    if (!tpl_charge(b->r, 1)) {
        b->failed = true;
        return;
    }
    switch (v->type) {
    case TPL_UNDEF: tpl_puts(b, "Undefined"); break;
    case TPL_NONE: tpl_puts(b, "None"); break;
    case TPL_BOOL: tpl_puts(b, v->u.b ? "True" : "False"); break;
    case TPL_INT:
        snprintf(text, sizeof text, "%" PRId64, v->u.i);
        tpl_puts(b, text);
        break;
    case TPL_FLOAT: tpl_put_float(b, v->u.f); break;
    case TPL_STR: put_str_repr(b, v->u.s); break;
    case TPL_LIST: put_list(b, v->u.list, false, depth); break;
    case TPL_TUPLE: put_list(b, v->u.list, true, depth); break;
    case TPL_RANGE: put_range(b, v->u.list); break;
    case TPL_DICT: put_dict(b, v->u.dict, depth); break;
    case TPL_NS:
        tpl_puts(b, "<Namespace ");
        put_dict(b, v->u.dict, depth);
        tpl_puts(b, ">");
        break;
    case TPL_VIEW:
        tpl_puts(b, v->u.list->view);
        tpl_puts(b, "(");
        put_list(b, v->u.list, false, depth);
        tpl_puts(b, ")");
        break;
    default:
        /* Python prints an address here, too */
        tpl_puts(b, "<");
        tpl_puts(b, tpl_type_name(v->type));
        tpl_puts(b, " object>");
    }
}

void tpl_put_str(tpl_builder *b, const tpl_value *v) {
    if (v->type == TPL_STR)
        tpl_put_all(b, v->u.s);
    else if (v->type != TPL_UNDEF)
        tpl_put_repr(b, v, 0);
}

bool tpl_to_str(tpl_run *r, const tpl_value *v, tpl_value *out) {
    if (v->type == TPL_STR) {
        *out = *v;
        return true;
    }
    tpl_builder b = {.r = r};
    tpl_put_str(&b, v);
    return tpl_built(&b, out);
}
