/* func.c - the functions a chat template may call: range, dict, namespace, raise_exception,
 * strftime_now, cycler, joiner. None has a side effect outside the render. */
#include "jinja/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MAX_RANGE 100000 /* items; the limit of jinja2's sandbox */

static bool f_range(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    int64_t start = 0, stop = 0, step = 1;
    (void)self;
    if (!tpl_arg_int(r, c, c->given[1] ? 0 : 1, &start) || !tpl_arg_int(r, c, c->given[1] ? 1 : 0, &stop) ||
        !tpl_arg_int(r, c, 2, &step))
        return false;
    if (step == 0)
        return tpl_fail(r, "range() with a step of zero");
    __int128 gap = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    __int128 size = step > 0 ? (__int128)step : -(__int128)step;
    __int128 n = gap <= 0 ? 0 : (gap - 1) / size + 1;
    if (n > MAX_RANGE)
        return tpl_fail(r, "range() of more than %d", MAX_RANGE);
    tpl_value *v = tpl_alloc(r, (size_t)n, sizeof *v);
    tpl_list *l = v ? tpl_alloc(r, 1, sizeof *l) : NULL;
    if (!l)
        return false;
    for (int64_t i = 0; i < (int64_t)n; i++)
        v[i] = tpl_int(start + i * step);
    *l = (tpl_list){.v = v, .n = (size_t)n, .start = start, .stop = stop, .step = step};
    *out = tpl_of_list(l, TPL_RANGE);
    return true;
}

static bool add_pairs(tpl_run *r, tpl_dict *d, const tpl_value *from) {
    const tpl_list *l, *pair;
    if (from->type == TPL_DICT) {
        for (size_t i = 0; i < from->u.dict->n; i++) {
            if (!tpl_dict_set(r, d, &from->u.dict->key[i], &from->u.dict->val[i]))
                return false;
        }
        return true;
    }
    if (!tpl_list_from(r, from, &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        if (!tpl_list_from(r, &l->v[i], &pair))
            return false;
        if (pair->n != 2)
            return tpl_fail(r, "a dict is made of pairs");
        if (!tpl_dict_set(r, d, &pair->v[0], &pair->v[1]))
            return false;
    }
    return true;
}

static bool make_dict(tpl_run *r, tpl_call *c, tpl_dict **out) {
    *out = tpl_dict_new(r, 4);
    if (!*out)
        return false;
    if (c->args->n_pos > 1)
        return tpl_fail(r, "expected at most one positional argument");
    if (c->args->n_pos && !add_pairs(r, *out, &c->args->pos[0]))
        return false;
    tpl_value named = {.type = TPL_DICT, .u = {.dict = c->args->named}};
    return !c->args->named || add_pairs(r, *out, &named);
}

static bool f_dict(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)self;
    out->type = TPL_DICT;
    return make_dict(r, c, &out->u.dict);
}

static bool f_namespace(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)self;
    out->type = TPL_NS;
    if (!make_dict(r, c, &out->u.dict))
        return false;
    for (size_t i = 0; i < out->u.dict->n; i++) {
        const tpl_value *key = &out->u.dict->key[i];
        if (key->type == TPL_STR && key->u.s->n && key->u.s->data[0] == '_')
            return tpl_fail(r, "a namespace cannot hold names that begin with '_'");
    }
    return true;
}

static bool f_raise_exception(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)self;
    if (!tpl_to_str(r, &c->arg[0], out))
        return false;
    nib_fail(r->err, NIB_E_USAGE, "%.*s", (int)(out->u.s->n > 2000 ? 2000 : out->u.s->n),
             out->u.s->n ? out->u.s->data : "");
    r->failed = true;
    return false;
}

static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};

static void put_2(tpl_builder *b, int value, char flag) {
    char text[16];
    snprintf(text, sizeof text, flag == '-' ? "%d" : flag == '_' ? "%2d" : "%02d", value);
    tpl_puts(b, text);
}

static bool put_time(tpl_builder *b, const struct tm *t, char what, char flag) {
    char text[32];
    switch (what) {
    case 'Y':
        snprintf(text, sizeof text, "%d", t->tm_year + 1900);
        tpl_puts(b, text);
        break;
    case 'y': put_2(b, (t->tm_year + 1900) % 100, flag); break;
    case 'm': put_2(b, t->tm_mon + 1, flag); break;
    case 'd': put_2(b, t->tm_mday, flag); break;
    case 'e': put_2(b, t->tm_mday, flag ? flag : '_'); break;
    case 'H': put_2(b, t->tm_hour, flag); break;
    case 'I': put_2(b, (t->tm_hour + 11) % 12 + 1, flag); break;
    case 'M': put_2(b, t->tm_min, flag); break;
    case 'S': put_2(b, t->tm_sec, flag); break;
    case 'p': tpl_puts(b, t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'B': tpl_puts(b, months[t->tm_mon]); break;
    case 'b':
    case 'h': tpl_put(b, months[t->tm_mon], 3); break;
    case 'A': tpl_puts(b, days[t->tm_wday]); break;
    case 'a': tpl_put(b, days[t->tm_wday], 3); break;
    case 'w': put_2(b, t->tm_wday, '-'); break;
    case 'u': put_2(b, t->tm_wday ? t->tm_wday : 7, '-'); break;
    case 'f': tpl_puts(b, "000000"); break;
    case 'Z':
    case 'z': break; /* a time without a zone, as Python's datetime.now() */
    case 'n': tpl_puts(b, "\n"); break;
    case 't': tpl_puts(b, "\t"); break;
    case '%': tpl_puts(b, "%"); break;
    case 'j':
        snprintf(text, sizeof text, flag == '-' ? "%d" : "%03d", t->tm_yday + 1);
        tpl_puts(b, text);
        break;
    default: return false;
    }
    return true;
}

/* Formats that are abbreviations of several others. */
static const char *expanded(char what) {
    return what == 'F'                  ? "%Y-%m-%d"
           : what == 'T' || what == 'X' ? "%H:%M:%S"
           : what == 'D' || what == 'x' ? "%m/%d/%y"
           : what == 'R'                ? "%H:%M"
           : what == 'c'                ? "%a %b %e %H:%M:%S %Y"
                                        : NULL;
}

static bool put_times(tpl_run *r, tpl_builder *b, const struct tm *t, const char *p, const char *end) {
    while (p < end && !b->failed) {
        if (*p != '%' || p + 1 == end) {
            tpl_put(b, p++, 1);
            continue;
        }
        p++;
        char flag = 0;
        if ((*p == '-' || *p == '_' || *p == '0') && p + 1 < end)
            flag = *p++;
        const char *more = expanded(*p);
        if (more ? !put_times(r, b, t, more, more + strlen(more)) : !put_time(b, t, *p, flag))
            return tpl_fail(r, "strftime_now: '%%%c' is not known", *p);
        p++;
    }
    return true;
}

/* Names are English in every locale, because templates expect that. */
static bool f_strftime_now(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_str *format = NULL;
    time_t now = (time_t)r->now;
    struct tm t;
    tpl_builder b = {.r = r};
    (void)self;
    if (!tpl_arg_str(r, c, 0, &format))
        return false;
    b.marked = format && format->mark;
    if (!format || !gmtime_r(&now, &t))
        return tpl_fail(r, "strftime_now: no format, or no such time");
    return tpl_charge(r, format->n / 16) && put_times(r, &b, &t, format->data, format->data + format->n) &&
           tpl_built(&b, out);
}

static bool cycle_of(tpl_run *r, tpl_type as, const tpl_value *v, size_t n, tpl_value *out) {
    tpl_cycle *y = tpl_alloc(r, 1, sizeof *y);
    tpl_value list;
    if (!y || !tpl_list_of(r, v, n, TPL_LIST, &list))
        return false;
    y->items = list.u.list;
    *out = (tpl_value){.type = as, .u = {.cycle = y}};
    return true;
}

static bool f_cycler(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)self;
    if (!c->args->n_pos || c->args->named)
        return tpl_fail(r, "cycler() needs values");
    return cycle_of(r, TPL_CYCLER, c->args->pos, c->args->n_pos, out);
}

static bool f_joiner(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value *v = tpl_alloc(r, 2, sizeof *v);
    (void)self;
    if (!v || !tpl_str_ref(r, "", 0, &v[0]) || !tpl_str_ref(r, ", ", 2, &v[1]))
        return false;
    if (c->given[0])
        v[1] = c->arg[0];
    return cycle_of(r, TPL_JOINER, v, 2, out);
}

const tpl_func tpl_globals[] = {
    {"range", "start,stop,step", 1, f_range},
    {"dict", "*", 0, f_dict},
    {"namespace", "*", 0, f_namespace},
    {"raise_exception", "message", 1, f_raise_exception},
    {"strftime_now", "format", 1, f_strftime_now},
    {"cycler", "*", 0, f_cycler},
    {"joiner", "sep", 0, f_joiner},
    {NULL, NULL, 0, NULL},
};
