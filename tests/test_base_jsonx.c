/* Hostile JSON: caps, wide integers, typed look-ups, faults. */
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *parse(const char *text) {
    json_t *v = NULL;
    nib_error err = {NIB_OK, ""};
    if (jsonx_parse(text, strlen(text), &v, &err) != NIB_OK)
        fail_msg("%s: %s", text, err.message);
    return v;
}

static void damaged_text_is_refused_with_a_place(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",       "{",   "[1,",  "{\"a\":1,\"a\":2}", "[1] x", "\"\xff\"",     "{\"a\" 1}",
        "\"open", "nul", "[01]", "[1e999]",           "\\",    "[\"\\ud800\"]"};
    for (size_t i = 0; i < NUM_COUNT(bad); i++) {
        json_t *v = NULL;
        nib_error err = {NIB_OK, ""};
        assert_int_equal(jsonx_parse(bad[i], strlen(bad[i]), &v, &err), NIB_E_MODEL);
        assert_non_null(strstr(err.message, "line 1"));
        assert_null(v);
    }
}

static void nesting_is_capped(void **state) {
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP);
    memset(text, '[', DEEP);
    json_t *v = NULL;
    nib_error err;
    assert_int_equal(jsonx_parse(text, DEEP, &v, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "levels"));
    for (size_t i = 0; i < 64; i++)
        text[64 + i] = ']';
    assert_int_equal(jsonx_parse(text, 128, &v, &err), NIB_OK);
    json_decref(v);
    free(text);
    json_decref(
        parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]"));
}

/* head, then n times the line with numbers in it, then tail. */
static char *repeat(const char *head, const char *line, int n, const char *tail, size_t *n_byte) {
    char *text = malloc(strlen(head) + strlen(tail) + (size_t)n * (strlen(line) + 40) + 1), *at = text;
    assert_non_null(text);
    at += sprintf(at, "%s", head);
    for (int i = 0; i < n; i++) {
        at += i ? sprintf(at, ",") : 0;
        at += sprintf(at, line, i, i);
    }
    at += sprintf(at, "%s", tail);
    *n_byte = (size_t)(at - text);
    return text;
}

/* As large as the largest known files, and larger. */
static void real_sizes_fit(void **state) {
    (void)state;
    static const struct {
        const char *head, *line, *tail;
        int n;
    } files[] = {
        {"{\"weight_map\":{",
         "\"model.layers.%d.mlp.experts.%d.down_proj.weight\":\"model-00000-of-00061.safetensors\"", "}}",
         150000},
        {"{\"__metadata__\":{\"format\":\"pt\"},",
         "\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[7168,2048],"
         "\"data_offsets\":[1000000000,1029360128]}",
         "}", 20000},
    };
    for (size_t i = 0; i < NUM_COUNT(files); i++) {
        size_t n;
        json_t *v = NULL;
        nib_error err = {NIB_OK, ""};
        char *text = repeat(files[i].head, files[i].line, files[i].n, files[i].tail, &n);
        if (jsonx_parse(text, n, &v, &err) != NIB_OK)
            fail_msg("%s", err.message);
        json_decref(v);
        free(text);
    }
}

static void what_costs_too_much_is_refused(void **state) {
    (void)state;
    static const char *const lines[] = {"{}", "[]", "7", "\"\"", "{\"a\":0}"};
    json_t *v = NULL;
    nib_error err = {NIB_OK, ""};
    for (size_t i = 0; i < NUM_COUNT(lines); i++) {
        size_t n;
        char *text = repeat("[", lines[i], 1500000, "]", &n);
        assert_int_equal(jsonx_parse(text, n, &v, &err), NIB_E_MODEL);
        assert_non_null(strstr(err.message, "at most 64.0 MiB"));
        free(text);
    }
    char *text = calloc(1, JSONX_MAX_TEXT + 1);
    memset(text, ' ', JSONX_MAX_TEXT + 1);
    text[0] = '1';
    assert_int_equal(jsonx_parse(text, JSONX_MAX_TEXT + 1, &v, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "16777216 bytes"));
    assert_int_equal(jsonx_parse(text, JSONX_MAX_TEXT, &v, &err), NIB_OK);
    json_decref(v);
    free(text);
}

static void integers_beyond_64_bits_become_floats(void **state) {
    (void)state;
    json_t *v =
        parse("{\"most\": 1000000000000000019884624838656, \"s\": \"99999999999999999999\", \"a\": "
              "[9223372036854775807, -9223372036854775808, 9223372036854775808, -9223372036854775809, 1.5e3, "
              "12345678901234567890123.25, 1]}");
    json_t *max = json_object_get(v, "most"), *a = json_object_get(v, "a");
    assert_true(json_is_real(max) && json_real_value(max) > 0.9e30);
    assert_string_equal(json_string_value(json_object_get(v, "s")), "99999999999999999999");
    assert_true(json_integer_value(json_array_get(a, 0)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(a, 1)) == INT64_MIN);
    assert_true(json_is_real(json_array_get(a, 2)) && json_is_real(json_array_get(a, 3)));
    assert_true(json_real_value(json_array_get(a, 4)) == 1500.0);
    assert_true(json_is_real(json_array_get(a, 5)) && json_is_integer(json_array_get(a, 6)));
    int64_t i = 7;
    assert_int_equal(jsonx_get_i64(v, "most", false, &i, NULL), NIB_E_MODEL);
    assert_int_equal(i, 7);
    json_decref(v);
}

static void look_ups_are_typed(void **state) {
    (void)state;
    json_t *v = parse("{\"i\":3,\"f\":2.5,\"whole\":4096.0,\"s\":\"x\",\"b\":true,\"n\":null,\"o\":{}}");
    int64_t i = -1;
    double f = -1;
    bool b = false;
    const char *s = "as it was";
    nib_error err;
    assert_int_equal(jsonx_get_i64(v, "i", true, &i, &err), NIB_OK);
    assert_int_equal(i, 3);
    assert_int_equal(jsonx_get_i64(v, "whole", true, &i, &err), NIB_OK);
    assert_int_equal(i, 4096);
    assert_int_equal(jsonx_get_f64(v, "i", true, &f, &err), NIB_OK);
    assert_true(f == 3.0);
    assert_int_equal(jsonx_get_f64(v, "f", true, &f, &err), NIB_OK);
    assert_true(f == 2.5);
    assert_int_equal(jsonx_get_bool(v, "b", true, &b, &err), NIB_OK);
    assert_true(b);
    assert_int_equal(jsonx_get_string(v, "n", false, &s, &err), NIB_OK);
    assert_string_equal(s, "as it was");
    assert_int_equal(jsonx_get_string(v, "s", true, &s, &err), NIB_OK);
    assert_string_equal(s, "x");

    assert_int_equal(jsonx_get_i64(v, "f", false, &i, &err), NIB_E_MODEL);
    assert_int_equal(jsonx_get_i64(v, "s", false, &i, &err), NIB_E_MODEL);
    assert_string_equal(err.message, "\"s\": expected an integer, found a string");
    assert_int_equal(jsonx_get_bool(v, "i", false, &b, &err), NIB_E_MODEL);
    assert_int_equal(jsonx_get_f64(v, "b", false, &f, &err), NIB_E_MODEL);
    assert_int_equal(jsonx_get_string(v, "o", false, &s, &err), NIB_E_MODEL);
    assert_int_equal(jsonx_get_f64(v, "n", true, &f, &err), NIB_E_MODEL);
    assert_int_equal(jsonx_get_bool(v, "not there", true, &b, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "found nothing"));
    json_decref(v);
}

static void files_are_named_in_errors(void **state) {
    (void)state;
    json_t *v;
    nib_error err;
    const char *path = temp_file("config.json", "{\n \"a\": }", 9);
    assert_int_equal(jsonx_load(path, 100, &v, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "config.json"));
    assert_non_null(strstr(err.message, "line 2"));
    assert_int_equal(jsonx_load(path, 5, &v, &err), NIB_E_MODEL);
}

/* ---- compared with jansson's parser ---- */

static uint64_t random_below(uint64_t *state, uint64_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % n;
}

static const char *const samples[] = {
    "{\"a\":[1,2,{\"b\":\"c\"}],\"n\":-9223372036854775808,\"e\":[],\"o\":{}}",
    " [ 0 , -0 , 1.5 , -2e10 , 1E-3 , 0.1e+2 , true , false , null ] ",
    "[\"\\u00e9\\ud83d\\ude00\\n\\\\\\\"\\/\\u0000\", \"\303\251 \360\237\230\200 \357\277\277\"]",
    "{\"\\u0061b\": \"\\ttext\\r\", \"x\":1e-400, \"y\":\"\"}",
    "\"only a string\"",
    "17",
};

/* Damages a sample at a few places; how many bytes it has then. */
static size_t damage(uint64_t *state, const char *from, char *out) {
    static const char bytes[] = "{}[]\":,\\u0123456789abcdefEe+-. \n\ttrufalsn\303\251\355\240\001\177";
    size_t n = strlen(from);
    memcpy(out, from, n);
    for (uint64_t i = random_below(state, 4); i > 0 && n > 1; i--) {
        const size_t at = random_below(state, n), kind = random_below(state, 3);
        const char c = bytes[random_below(state, sizeof bytes)]; /* its NUL too */
        if (kind == 0) {
            out[at] = c;
        } else if (kind == 1) {
            memmove(out + at, out + at + 1, --n - at);
        } else {
            memmove(out + at + 1, out + at, n++ - at);
            out[at] = c;
        }
    }
    return n;
}

/* Beyond 64 bits: jansson refuses these. */
static bool is_wide(const json_error_t *e) {
    return json_error_code(e) == json_error_numeric_overflow && !strstr(e->text, "real");
}

static void compare(const char *text, size_t n, bool first) {
    json_error_t e;
    json_t *ours = NULL, *v = json_loadb(text, n,
                                         JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL |
                                             (first ? JSON_DISABLE_EOF_CHECK : 0),
                                         &e);
    size_t n_read = 0;
    char *exact = malloc(n); /* the sanitizer sees a read past the end */
    memcpy(exact, text, n);
    const nib_status status =
        first ? jsonx_parse_first(exact, n, &ours, &n_read, NULL) : jsonx_parse(exact, n, &ours, NULL);
    if (memchr(text, 0, n) || (!v && is_wide(&e))) /* jansson looks no further */
        assert_true(status == NIB_OK ? ours != NULL : !ours);
    else if (v ? status != NIB_OK || !json_equal(v, ours) : status != NIB_E_MODEL || ours)
        fail_msg("%.*s: jansson %s", (int)n, text, v ? "reads other values" : e.text);
    if (v && ours && first)
        assert_int_equal(n_read, e.position);
    json_decref(v);
    json_decref(ours);
    free(exact);
}

static void values_are_those_of_jansson(void **state) {
    (void)state;
    uint64_t random = 1;
    char text[256];
    for (int i = 0; i < 30000; i++) {
        const size_t n = damage(&random, samples[(size_t)i % NUM_COUNT(samples)], text);
        compare(text, n, i % 3 == 0);
    }
}

static void the_first_of_several_values(void **state) {
    (void)state;
    static const char text[] = " {\"a\":1} ; [2]";
    json_t *v = NULL;
    size_t n = 0;
    nib_error err;
    assert_int_equal(jsonx_parse_first(text, sizeof text - 1, &v, &n, &err), NIB_OK);
    assert_int_equal(n, 8);
    assert_int_equal(json_integer_value(json_object_get(v, "a")), 1);
    json_decref(v);
    assert_int_equal(jsonx_parse(text, sizeof text - 1, &v, &err), NIB_E_MODEL);
    assert_string_equal(err.message, "JSON: line 1, column 10: expected the end, found ';'");
}

/* ---- memory ---- */

static void no_text_takes_more_than_its_cost(void **state) {
    (void)state;
    static const char *const lines[] = {"{}",
                                        "[]",
                                        "7",
                                        "\"\"",
                                        "{\"a\":0}",
                                        "\"%d and %d\"",
                                        "1.5e3",
                                        "[[1],[2]]",
                                        "\"\\n\\u00e9\"",
                                        "12345678901234567890123456789",
                                        "{\"a\":%d,\"b\":{\"c\":\"%d\"},\"d\":[]}"};
    for (size_t i = 0; i < NUM_COUNT(lines); i++)
        for (int n = 1; n < 5000; n = n * 3 + 1)
            for (int object = 0; object < 2; object++) {
                char line[64];
                size_t n_byte;
                json_t *v = NULL;
                mem_bound b;
                snprintf(line, sizeof line, object ? "\"key%%d\":%s" : "%s", lines[i]);
                char *text = repeat(object ? "{" : "[", line, n, object ? "}" : "]", &n_byte);
                mem_bound_set(&b, UINT64_MAX);
                assert_int_equal(jsonx_parse(text, n_byte, &v, NULL), NIB_OK);
                const int64_t kept = b.now, peak = b.peak;
                json_decref(v);
                assert_int_equal(b.now, 0);
                mem_bound_end(&b);
                const int64_t cost = (int64_t)jsonx_cost(text, n_byte);
                if (peak > cost || kept > peak)
                    fail_msg("%d of %s: %d bytes, at most %d, expected %d", n, line, (int)kept, (int)peak,
                             (int)cost);
                mem_bound_set(&b, (uint64_t)cost - 1); /* refused before anything is taken */
                assert_int_equal(jsonx_parse(text, n_byte, &v, NULL), NIB_E_NOMEM);
                assert_int_equal(b.peak, 0);
                mem_bound_end(&b);
                free(text);
            }
}

typedef struct load_job {
    const char *path;
    const json_t *right;
} load_job;

static nib_status load_step(void *user, nib_error *err) {
    const load_job *job = user;
    json_t *v;
    NIB_TRY(jsonx_load(job->path, 1000, &v, err));
    assert_true(json_equal(v, job->right));
    json_decref(v);
    return NIB_OK;
}

static void every_fault_is_reported(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_COUNT(samples); i++) {
        json_t *right = parse(samples[i]);
        load_job job = {temp_file("faults.json", samples[i], strlen(samples[i])), right};
        assert_true(fault_sweep(FAULT_ALLOC, 1, load_step, &job) >= 2);
        assert_true(fault_sweep(FAULT_READ, 1, load_step, &job) >= 1);
        json_decref(right);
    }
}

static void a_part_has_its_source(void **state) {
    (void)state;
    static const char text[] =
        " {\"a\":[1 ,\"]{\\\"\",true,{}],\"\\u0062\" : {\"c\": [ 0.10 ,1e5, {\"}\":-0}]} , \"d\":[[],{ }]} ";
    static const struct {
        const char *path, *source;
    } parts[] = {{"", "{\"a\""},        {"a", "[1 ,\"]{\\\"\",true,{}]"},
                 {"a3", "{}"},          {"bc", "[ 0.10 ,1e5, {\"}\":-0}]"},
                 {"bc2", "{\"}\":-0}"}, {"b", "{\"c\": [ 0.10 ,1e5, {\"}\":-0}]}"},
                 {"d", "[[],{ }]"},     {"d0", "[]"},
                 {"d1", "{ }"}};
    json_t *root = parse(text), *other = json_object();
    size_t n;
    for (size_t i = 0; i < NUM_COUNT(parts); i++) {
        const json_t *at = root;
        for (const char *c = parts[i].path; *c; c++)
            at = *c < 'a' ? json_array_get(at, (size_t)(*c - '0'))
                          : json_object_get(at, (const char[]){*c, 0});
        const char *found = jsonx_source(text, strlen(text), root, at, &n);
        assert_non_null(found);
        assert_memory_equal(found, parts[i].source, strlen(parts[i].source));
        assert_int_equal(n, i ? strlen(parts[i].source) : strlen(text) - 2);
    }
    assert_null(jsonx_source(text, strlen(text), root, other, &n));
    json_decref(other);
    json_decref(root);
}

static void a_lost_part_is_counted(void **state) {
    (void)state;
    json_t *list = json_array();
    const size_t before = jsonx_lost();
    jsonx_add(list, json_integer(1));
    assert_int_equal(jsonx_lost(), before);
    fault_arm(FAULT_ALLOC, 1);
    json_array_append_new(list, json_integer(2));
    fault_arm(FAULT_ALLOC, 0);
    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(jsonx_lost(), before + 1);
    assert_ptr_equal(jsonx_built(json_incref(list), before + 1), list);
    json_decref(list);
    assert_null(jsonx_built(json_incref(list), before));
    json_decref(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_text_is_refused_with_a_place),
        cmocka_unit_test(nesting_is_capped),
        cmocka_unit_test(real_sizes_fit),
        cmocka_unit_test(what_costs_too_much_is_refused),
        cmocka_unit_test(integers_beyond_64_bits_become_floats),
        cmocka_unit_test(look_ups_are_typed),
        cmocka_unit_test(files_are_named_in_errors),
        cmocka_unit_test(values_are_those_of_jansson),
        cmocka_unit_test(the_first_of_several_values),
        cmocka_unit_test(no_text_takes_more_than_its_cost),
        cmocka_unit_test(every_fault_is_reported),
        cmocka_unit_test(a_part_has_its_source),
        cmocka_unit_test(a_lost_part_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
