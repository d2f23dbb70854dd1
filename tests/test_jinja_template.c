/* Chat templates against Python's jinja2 (tests/data/templates, made by tools/make-template-data.py):
 * published template shapes with conversations, small templates for one rule each, and random ones. Then the
 * limits, the messages, and every allocation failing. NIBBLE_TEMPLATE_DATA names another folder of data. */
#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "support/faults.h"
#include "support/sanitized.h"
#include "support/skip.h"
#include "jinja/template.h"
#include "jinja/run.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *data_dir(void) {
    const char *dir = getenv("NIBBLE_TEMPLATE_DATA");
    return dir ? dir : "tests/data/templates";
}

static nib_status render(const char *source, size_t n, const json_t *variables, int64_t now, char **text,
                         nib_error *err) {
    template *t;
    template_text out = {0};
    *text = NULL;
    NIB_TRY(template_parse(source, n, &t, err));
    nib_status status = template_render(t, NULL, variables, now, &out, err);
    template_free(t);
    mem_free(out.mark);
    *text = out.text;
    return status;
}

/* Whether nibble agrees with the reference; prints a difference. */
static bool check_case(const char *where, const json_t *source, const json_t *variables, const json_t *want,
                       int64_t now) {
    const char *expected = json_string_value(json_object_get(want, "expected"));
    const char *error = json_string_value(json_object_get(want, "error"));
    nib_error err = {.message = ""};
    char *text;
    nib_status status =
        render(json_string_value(source), json_string_length(source), variables, now, &text, &err);
    bool same = expected ? status == NIB_OK && strcmp(text, expected) == 0
                : error  ? status == NIB_E_USAGE && strcmp(err.message, error) == 0
                         : status == NIB_E_MODEL && err.message[0];
    if (!same)
        fprintf(stderr, "%s: %s\n  wanted: %s%s\n  found:  %s\n", where, json_string_value(source),
                expected ? expected
                : error  ? "error "
                         : "some error",
                error ? error : "", status == NIB_OK ? text : err.message);
    mem_free(text);
    return same;
}

static int check_file(const char *path, int *n_case) {
    json_t *data;
    nib_error err;
    int bad = 0;
    if (jsonx_load(path, 64u << 20, &data, &err) != NIB_OK)
        fail_msg("%s", err.message);
    int64_t now = json_integer_value(json_object_get(data, "now"));
    json_t *cases = json_object_get(data, "cases");
    json_t *all = cases ? cases : json_object_get(data, "templates"), *each;
    size_t i;
    json_array_foreach(all, i, each) {
        char where[800];
        snprintf(where, sizeof where, "%s case %zu", path, i);
        json_t *source = json_object_get(cases ? data : each, "template");
        json_t *globals = cases ? NULL : json_object_get(data, "globals");
        bad += !check_case(where, source, globals ? globals : json_object_get(each, "variables"), each, now);
        ++*n_case;
    }
    json_decref(data);
    return bad;
}

static void renders_as_jinja2_does(void **state) {
    (void)state;
    DIR *dir = opendir(data_dir());
    assert_non_null(dir);
    int bad = 0, n_file = 0, n_case = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".json"))
            continue;
        char path[700];
        snprintf(path, sizeof path, "%s/%s", data_dir(), e->d_name);
        bad += check_file(path, &n_case);
        n_file++;
    }
    closedir(dir);
    if (!getenv("NIBBLE_TEMPLATE_DATA"))
        assert_true(n_file >= 20 && n_case > 1000);
    if (bad)
        fail_msg("%d of %d cases differ", bad, n_case);
}

static nib_status render_text(const char *source, const char *variables, nib_error *err) {
    json_t *v;
    char *text;
    NIB_TRY(jsonx_parse(variables, strlen(variables), &v, err));
    nib_status status = render(source, strlen(source), v, 0, &text, err);
    json_decref(v);
    mem_free(text);
    return status;
}

#define TEN "abcdefghij"

static void messages_name_construct_and_line(void **state) {
    (void)state;
    static const struct {
        const char *source, *says;
        nib_status status;
    } rows[] = {
        {"a\n{% include 'x' %}", "line 2: the tag {% include %} is not known", NIB_E_MODEL},
        {"\n\n{{ 1 | urlize }}", "line 3: the filter 'urlize' is not known", NIB_E_MODEL},
        {"{{ 1 is prime }}", "line 1: the test 'prime' is not known", NIB_E_MODEL},
        {"{% for x in y recursive %}{% endfor %}", "recursive", NIB_E_MODEL},
        {"x\n{{ m.content + 'x' }}", "line 2: 'content' is undefined", NIB_E_MODEL},
        {"{% if a %}\n\n", "line 1 is not closed", NIB_E_MODEL},
        {"{{ raise_exception('no\nsystem') }}", "no\\nsystem", NIB_E_USAGE},
        {"{{ 9223372036854775807 + 1 }}", "64 bits", NIB_E_MODEL},
        {"{{ 99999999999999999999 }}", "64 bits", NIB_E_MODEL},
        {"{{ " TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
             TEN TEN " }}",
         "a name is too long", NIB_E_MODEL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nib_error err = {.message = ""};
        assert_int_equal(render_text(rows[i].source, "{\"m\":{}}", &err), rows[i].status);
        if (!strstr(err.message, rows[i].says))
            fail_msg("%s: %s", rows[i].source, err.message);
    }
}

static void limits_stop_everything(void **state) {
    (void)state;
    static const struct {
        const char *source, *says;
    } rows[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
        {"{% set x = 'a' * 1000000000 %}", "memory"},
        {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% "
         "endfor %}",
         "memory"},
        {"{% set s = 'a' * 1000000 %}{% for i in range(999) %}{{ s }}{% endfor %}", "output"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
         "}}",
         "deep"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}"
         "{{ ns.x == ns.x }}",
         "deep"},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "deep"},
        {"{{ [0] * 9223372036854775807 }}", "memory"},
        {"{{ 'x'.center(9000000000000) }}", "output"},
        {"{{ '%9999999999d' % 1 }}", "output"},
        {"{{ range(0, 9223372036854775807) }}", "range"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nib_error err = {.message = ""};
        nib_status status = render_text(rows[i].source, "{}", &err);
        if (status != NIB_E_MODEL || !strstr(err.message, rows[i].says))
            fail_msg("%s: %d %s", rows[i].source, status, err.message);
    }
}

/* What each step may cost is counted too: without that, each of these takes hours. */
#define FOREVER(setup, what)                                                                                 \
    setup "{% for i in range(99999) %}{% for j in range(99999) %}{% set y = " what                           \
          " %}{% endfor %}{% endfor %}"
#define LONG_A "{% set a = 'a' * 4000000 %}"
#define ZEROS  "{% set l = [0] * 1000000 %}"
#define NESTED(what)                                                                                         \
    "{% set ns = namespace(t=(1, 2)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"    \
    "{% set y = " what " %}"

static void every_step_is_short(void **state) {
    (void)state;
    static const char *const sources[] = {
        FOREVER(LONG_A "{% set b = a + 'x' %}{% set c = a + 'y' %}", "b == c"),
        FOREVER(LONG_A "{% set b = a + 'x' %}{% set c = a + 'y' %}", "b in [c]"),
        FOREVER(LONG_A "{% set d = {a + '1': 1, a + '2': 2} %}{% set k = a + '3' %}", "d[k]"),
        FOREVER(LONG_A "{% set b = a + 'x' %}{% set c = a + 'y' %}", "b.startswith(('q', c))"),
        FOREVER(LONG_A, "a is lower"),
        FOREVER(LONG_A, "a.replace('a', '')"),
        FOREVER(LONG_A, "a.partition('x')"),
        FOREVER(LONG_A, "a.count('a')"),
        FOREVER(LONG_A, "a.splitlines()"),
        FOREVER(LONG_A, "a | truncate(3000000)"),
        FOREVER(LONG_A "{% set b = 'x ' + a %}", "b | truncate(3000000)"),
        FOREVER("{% set s = 'a' * 15 %}{% set c = 'b' * 4000000 + 'a' %}", "s.strip(c)"),
        FOREVER("{% set z = '0' * 4000000 %}", "z | int"),
        FOREVER("{% set z = '_' * 4000000 %}", "z | float"),
        FOREVER("{% set z = '%' + '0' * 4000000 + 'd' %}", "z % 1"),
        FOREVER("{% set z = '{:' + '0' * 4000000 + '}' %}", "z.format(1)"),
        FOREVER("{% set z = '%Z' * 2000000 %}", "strftime_now(z)"),
        FOREVER("{% set z = '\xC3\xA9' * 2000000 %}", "z[1999998:]"),
        FOREVER("{% set l = [''] * 1000000 %}", "''.join(l)"),
        FOREVER("{% set l = [''] * 1000000 %}", "l | join"),
        FOREVER(ZEROS, "l | sum"),
        FOREVER(ZEROS, "l | select | list"),
        FOREVER("", "(i / 7) | string"),
        LONG_A "{% set p = 'a' * 2000000 + 'b' %}{% set y = a.rsplit(p) %}",
        LONG_A "{% set p = 'a' * 2000000 + 'b' %}{% set y = a.rfind(p) %}",
        LONG_A "{% set p = 'a' * 2000000 + 'b' %}{% set y = a.rpartition(p) %}",
        NESTED("{}.get(ns.t)"),
        NESTED("{ns.t: 1}"),
        NESTED("ns.t | string"),
    };
    static const tpl_limits limits = {.steps = 1 << 20, .memory = 64 << 20, .output = 8 << 20, .depth = 200};
    json_t *none = json_object();
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i += SANITIZED ? 4 : 1) {
        template *t;
        nib_error err = {.message = ""};
        template_text out;
        assert_int_equal(template_parse(sources[i], strlen(sources[i]), &t, &err), NIB_OK);
        nib_status status = tpl_render_limited(t, NULL, none, 0, limits, &out, &err);
        if (status != NIB_E_MODEL || !strstr(err.message, "more than"))
            fail_msg("%s: %d %s", sources[i], status, err.message);
        template_free(t);
    }
    json_decref(none);
}

/* 500 KB of string literals side by side: joining them one by one would take gigabytes. */
static void many_literals_are_linear(void **state) {
    (void)state;
    enum { N = 100000 };
    char *source = mem_alloc(5 * N + 8), *at = source, *text;
    nib_error err = {.message = ""};
    json_t *none = json_object();
    at = stpcpy(at, "{{ ");
    for (int i = 0; i < N; i++)
        at = stpcpy(at, "'ab' ");
    at = stpcpy(at, "}}");
    assert_int_equal(render(source, (size_t)(at - source), none, 0, &text, &err), NIB_OK);
    assert_int_equal(strlen(text), 2 * N);
    mem_free(text);
    mem_free(source);
    json_decref(none);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    static const char *const openings[] = {
        "{{ (", "{{ [", "{% if 1 %}", "{{ not ", "{{ - ", "{{ 1 if 1 else ", "{{ a."};
    static const char *const repeats[] = {"(", "[", "{% if 1 %}", "not ", "- ", "1 if 1 else ", "a."};
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        size_t n = strlen(openings[i]), m = strlen(repeats[i]), count = 10000;
        char *source = mem_alloc(n + m * count + 8), *text;
        nib_error err;
        json_t *v = json_object();
        memcpy(source, openings[i], n);
        for (size_t k = 0; k < count; k++)
            memcpy(source + n + k * m, repeats[i], m);
        memcpy(source + n + m * count, "a }}", 4);
        assert_int_equal(render(source, n + m * count + 4, v, 0, &text, &err), NIB_E_MODEL);
        json_decref(v);
        mem_free(source);
    }
}

static void long_conversations_are_linear(void **state) {
    (void)state;
    /* 2,000 messages gathered in a namespace: quadratic copying would meet the memory limit */
    const char *source =
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + '<' + m.role + '>' ~ "
        "m.content %}{% endfor %}{{ ns.t | length }}";
    json_t *messages = json_array(), *v;
    char content[1001];
    memset(content, 'x', 1000);
    content[1000] = 0;
    for (int i = 0; i < 2000; i++)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", content));
    v = json_pack("{s:o}", "messages", messages);
    nib_error err;
    char *text;
    if (render(source, strlen(source), v, 0, &text, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_string_equal(text, "2012000");
    mem_free(text);
    json_decref(v);
}

static nib_status fault_step_render(void *user, nib_error *err) {
    json_t *data = user;
    json_t *each = json_array_get(json_object_get(data, "cases"), 9),
           *source = json_object_get(data, "template");
    char *text;
    nib_status status = render(json_string_value(source), json_string_length(source),
                               json_object_get(each, "variables"), 0, &text, err);
    if (status == NIB_OK)
        fault_made(text, strlen(text));
    mem_free(text);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3", "schema_macros", "command_r"};
    if (getenv("NIBBLE_TEMPLATE_DATA"))
        skip_because("only with the data of the tree");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200];
        json_t *data;
        nib_error err;
        snprintf(path, sizeof path, "%s/%s.json", data_dir(), names[i]);
        if (jsonx_load(path, 64u << 20, &data, &err) != NIB_OK)
            fail_msg("%s", err.message);
        assert_true(fault_sweep(FAULT_ALLOC, 1, fault_step_render, data) > 5);
        json_decref(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_jinja2_does),        cmocka_unit_test(messages_name_construct_and_line),
        cmocka_unit_test(limits_stop_everything),        cmocka_unit_test(every_step_is_short),
        cmocka_unit_test(many_literals_are_linear),      cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(long_conversations_are_linear), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
