/* Schemas with the texts that match and that do not (tests/data/schemas): classes of cases with right values
 * of JSON Schema 2020-12; ten thousand alternatives; long strings and arrays; and formats against validators
 * of their own, both ways. */
#include "base/jsonx.h"
#include "base/mem.h"
#include "grammar/schema.h"
#include "support/faults.h"
#include "support/grammars.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(list) (sizeof(list) / sizeof *(list))

enum { STATES = 64 << 20 };

/* ---- cases in files ---- */

static void check_texts(automaton *m, const json_t *texts, bool match, const char *schema) {
    const json_t *one;
    size_t i;
    json_array_foreach(texts, i, one) {
        if ((judge(m, json_string_value(one), json_string_length(one)) == WHOLE) != match)
            fail_msg("%.400s: %.200s is%s expected to match", schema, json_string_value(one),
                     match ? "" : " not");
    }
}

/* A schema that is a text is the JSON of one. */
static void check_case(const json_t *c) {
    const json_t *given = json_object_get(c, "schema"), *says = json_object_get(c, "refused");
    char *schema =
        json_is_string(given) ? mem_strdup(json_string_value(given)) : jsonx_text(given, JSON_COMPACT);
    nib_error err = {NIB_OK, ""};
    pda p;
    automaton m;
    if (says) {
        char *gbnf = NULL;
        if (schema_grammar(schema, strlen(schema), "root", &gbnf, &err) != NIB_E_USAGE ||
            !strstr(err.message, json_string_value(says)))
            fail_msg("%s: expected a refusal that names %s, found '%s'", schema, json_string_value(says),
                     err.message);
    } else {
        with_schema(schema, STATES, &p, &m);
        check_texts(&m, json_object_get(c, "must_accept"), true, schema);
        check_texts(&m, json_object_get(c, "must_reject"), false, schema);
        without(&p, &m);
    }
    mem_free(schema);
}

static void test_cases(void **state) {
    const char *folder = "tests/data/schemas";
    DIR *d = opendir(folder);
    struct dirent *entry;
    int n_file = 0;
    (void)state;
    assert_non_null(d);
    while ((entry = readdir(d))) {
        char path[512];
        json_t *all = NULL, *one;
        nib_error err;
        size_t i;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
        if (jsonx_load(path, 1 << 20, &all, &err))
            fail_msg("%s: %s", path, err.message);
        json_array_foreach(all, i, one) {
            check_case(one);
        }
        if (json_is_object(all))
            check_case(all);
        json_decref(all);
        n_file++;
    }
    closedir(d);
    assert_true(n_file > 20);
}

/* ---- many alternatives ---- */

enum { MANY = 10000 };

/* Text made of `n` copies of a format with a number, with `between` them. */
static char *repeated(const char *before, const char *format, const char *between, const char *after, int n) {
    const size_t each = strlen(format) + strlen(between) + 32;
    char *text = mem_alloc((size_t)n * each + strlen(before) + strlen(after) + 1);
    size_t at = (size_t)sprintf(text, "%s", before);
    for (int i = 0; i < n; i++) {
        char number[16], *place;
        snprintf(number, sizeof number, "%05d", i);
        at += (size_t)sprintf(text + at, "%s%s", i ? between : "", format);
        while ((place = strchr(text + at - strlen(format), '@')))
            memcpy(place, number, 5);
    }
    sprintf(text + at, "%s", after);
    return text;
}

static void check_schema(char *schema, const char *const *is, const char *const *is_not) {
    pda p;
    automaton m;
    with_schema(schema, AUTOMATON_MIN_BYTES, &p, &m);
    for (; *is; is++)
        if (judge(&m, *is, strlen(*is)) != WHOLE)
            fail_msg("%.60s: %s does not match", schema, *is);
    for (; *is_not; is_not++)
        if (judge(&m, *is_not, strlen(*is_not)) == WHOLE)
            fail_msg("%.60s: %s matches", schema, *is_not);
    without(&p, &m);
    mem_free(schema);
}

static void test_many_alternatives(void **state) {
    static const char *const is[] = {"\"v00000\"", "\"v09999\"", "\"v05432\"", NULL}, *const is_not[] = {
                                                                                          "\"v10000\"",
                                                                                          "\"v0999\"", "\"\"",
                                                                                          NULL};
    pda p;
    automaton m;
    char *text;
    (void)state;
    check_schema(repeated("{\"enum\":[", "\"v@@@@@\"", ",", "]}", MANY), is, is_not);
    check_schema(repeated("{\"anyOf\":[", "{\"const\":\"v@@@@@\"}", ",", "]}", MANY), is, is_not);
    check_schema(repeated("{\"oneOf\":[", "{\"const\":\"v@@@@@\"}", ",", "]}", MANY), is, is_not);
    check_schema(repeated("{\"type\":\"string\",\"anyOf\":[", "{\"const\":\"v@@@@@\"}", ",", "]}", MANY), is,
                 is_not);
    check_schema(repeated("{\"type\":[\"integer\",\"string\"],\"enum\":[3.5,", "\"v@@@@@\"", ",", "]}", MANY),
                 is, is_not);
    text = repeated("root ::= ", "\"v@@@@@\" [xy]", " | ", "", MANY);
    with_grammar(text, &p, &m);
    assert_int_equal(judge(&m, "v09999y", 7), WHOLE);
    assert_int_equal(judge(&m, "v09999z", 7), NO);
    assert_int_equal(judge(&m, "v10000x", 7), NO);
    without(&p, &m);
    mem_free(text);
}

static void test_many_members(void **state) {
    static const char *const is[] = {"{}", "{\"v00000\":1}", "{\"v09999\":1}",
                                     "{\"v00000\":1,\"v00001\":2,\"v00064\":3, \"v00200\":4,\"v09999\":5}",
                                     NULL},
                             *const is_not[] = {"{\"v00001\":1,\"v00000\":2}", "{\"v00001\":1,\"v00001\":2}",
                                                "{\"v10000\":1}", "{\"v00000\":1,}", NULL};
    static const char *const with[] = {"{\"v05000\":1}", "{\"v00000\":1,\"v05000\":2,\"v09999\":3}", NULL},
                             *const with_not[] = {"{}", "{\"v00001\":1,\"v09999\":2}", NULL};
    (void)state;
    check_schema(repeated("{\"properties\":{", "\"v@@@@@\":{\"type\":\"integer\"}", ",", "}}", MANY), is,
                 is_not);
    check_schema(repeated("{\"required\":[\"v05000\"],\"properties\":{", "\"v@@@@@\":{\"type\":\"integer\"}",
                          ",", "}}", MANY),
                 with, with_not);
}

/* ---- long strings and arrays ---- */

static void check_length(const char *schema, const char *open, const char *item, const char *close,
                         size_t least, size_t most) {
    const size_t n = strlen(item);
    char *text = mem_alloc((most + 2) * n + 32);
    pda p;
    automaton m;
    with_schema(schema, STATES, &p, &m);
    for (int i = 0; i < 4; i++) {
        const size_t count = i == 0 ? least - 1 : i == 1 ? least : i == 2 ? most : most + 1;
        size_t at = (size_t)sprintf(text, "%s", open);
        for (size_t k = 0; k < count; k++, at += n)
            memcpy(text + at, item, n);
        at -= *close == ']' && count > 0; /* the last comma */
        sprintf(text + at, "%s", close);
        if ((judge(&m, text, strlen(text)) == WHOLE) != (i == 1 || i == 2))
            fail_msg("%s: %zu", schema, count);
    }
    without(&p, &m);
    mem_free(text);
}

static void test_long_texts(void **state) {
    (void)state;
    check_length("{\"type\":\"string\",\"minLength\":9,\"maxLength\":65536}", "\"", "x", "\"", 9, 65536);
    check_length("{\"type\":\"string\",\"minLength\":70000,\"maxLength\":70001}", "\"", "\xc3\xa9", "\"",
                 70000, 70001);
    check_length("{\"pattern\":\"^[ab]*$\",\"minLength\":3,\"maxLength\":5000}", "\"", "a", "\"", 3, 5000);
    check_length("{\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":20000}", "[", "true,", "]", 2,
                 20000);
    check_length("{\"pattern\":\"^(?:[ab]-?){10,20000}$\"}", "\"", "a-", "\"", 10, 20000);
}

/* ---- formats ---- */

static unsigned seed = 1;

static int draw(int n) {
    seed = seed * 1103515245 + 12345;
    return (int)(seed / 65536 % (unsigned)n);
}

static int days_of(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return month < 1 || month > 12 ? 0 : days[month - 1] + (month == 2 && leap);
}

static void open_format(const char *name, pda *p, automaton *m) {
    char schema[80];
    snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", name);
    with_schema(schema, STATES, p, m);
}

static void expect(automaton *m, const char *text, bool valid) {
    char json[128];
    const int n = snprintf(json, sizeof json, "\"%s\"", text);
    if ((judge(m, json, (size_t)n) == WHOLE) != valid)
        fail_msg("%s is%s valid", text, valid ? "" : " not");
}

/* Every day of every year, and the days around months that are none. */
static void test_dates(void **state) {
    pda p;
    automaton m;
    char text[16];
    (void)state;
    open_format("date", &p, &m);
    for (int year = 0; year < 10000; year++)
        for (int month = 0; month <= 13; month++)
            for (int day = year % 100 < 2 ? 0 : 28; day <= 32; day++) {
                snprintf(text, sizeof text, "%04d-%02d-%02d", year, month, day);
                expect(&m, text, day >= 1 && day <= days_of(year, month));
            }
    expect(&m, "2024-2-29", false);
    expect(&m, "02024-02-29", false);
    without(&p, &m);
}

typedef struct moment {
    int year, month, day, hour, minute, second, offset; /* minutes east of Greenwich */
} moment;

/* Whether a clock can show it; the second 60 only at the end of a June or December at Greenwich. */
static bool is_valid(const moment *t, bool with_date) {
    const int at = t->hour * 60 + t->minute - t->offset, day = at < 0 ? -1 : at >= 1440;
    if (t->hour > 23 || t->minute > 59 || t->second > 60 ||
        (with_date && (t->day < 1 || t->day > days_of(t->year, t->month))))
        return false;
    if (t->second < 60)
        return true;
    if ((at + 2880) % 1440 != 1439)
        return false;
    return !with_date ||
           (day == 0 && ((t->month == 6 && t->day == 30) || (t->month == 12 && t->day == 31))) ||
           (day == -1 && t->day == 1 && (t->month == 7 || t->month == 1));
}

static moment draw_moment(void) {
    static const int ends[][2] = {{6, 30}, {12, 31}, {7, 1}, {1, 1}, {6, 29}};
    const int *end = ends[draw(5)];
    moment t = {draw(10000), draw(14), draw(33), draw(25), draw(61), 58 + draw(4), 0};
    t.offset = draw(3) ? draw(2879) - 1439 : 0;
    if (draw(2)) {
        t.month = end[0];
        t.day = end[1];
    }
    if (draw(2)) { /* midnight at Greenwich */
        t.hour = (1439 + t.offset + 1440) % 1440 / 60;
        t.minute = (1439 + t.offset + 1440) % 1440 % 60;
    }
    return t;
}

static void test_times(void **state) {
    pda p[2];
    automaton m[2];
    int n_valid = 0;
    (void)state;
    open_format("time", &p[0], &m[0]);
    open_format("date-time", &p[1], &m[1]);
    for (int i = 0; i < 40000; i++) {
        const moment t = draw_moment();
        const int size = abs(t.offset);
        char text[64], offset[16];
        snprintf(offset, sizeof offset, "%c%02d:%02d", t.offset < 0 ? '-' : '+', size / 60, size % 60);
        snprintf(text, sizeof text, "%04d-%02d-%02d%c%02d:%02d:%02d%s%s", t.year, t.month, t.day,
                 draw(2) ? 'T' : 't', t.hour, t.minute, t.second, draw(2) ? "" : ".25",
                 t.offset  ? offset
                 : draw(2) ? "Z"
                           : "z");
        expect(&m[0], text + 11, is_valid(&t, false));
        expect(&m[1], text, is_valid(&t, true));
        n_valid += is_valid(&t, true);
    }
    assert_true(n_valid > 4000);
    expect(&m[1], "1990-12-31T15:59:60-08:00", true);
    expect(&m[1], "1937-01-01T12:00:27.87+00:20", true);
    expect(&m[1], "2024-01-01 12:00:00Z", false);
    expect(&m[1], "2024-01-01T12:00:00", false);
    expect(&m[1], "2024-01-01T12:00:00.Z", false);
    expect(&m[1], "2024-01-01T12:00:00+24:00", false);
    without(&p[0], &m[0]);
    without(&p[1], &m[1]);
}

/* Text of pieces that addresses have. */
static void draw_address(char *text, bool v6) {
    static const char *const groups[] = {"0", "1", "abcd", "F", "12a", "00001", "g", "", "1.2.3.4"},
                             *const octets[] = {"0", "1", "10", "99", "199", "249", "255", "256", "01", ""};
    const int n = v6 ? draw(9) : 3 + (draw(8) > 0) + (draw(8) == 0), gap = draw(2) ? draw(n + 1) : -1;
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        const char *of = v6 ? groups[draw(6) ? draw(5) : draw(9)] : octets[draw(6) ? draw(7) : draw(10)];
        if (v6 && i == n - 1 && draw(3) == 0)
            of = "192.0.2.33";
        at += (size_t)sprintf(text + at, "%s%s", i == gap && v6 ? "::" : i ? (v6 ? ":" : ".") : "", of);
    }
    if (v6 && gap == n)
        sprintf(text + at, "::");
}

static void test_addresses(void **state) {
    (void)state;
    for (int v6 = 0; v6 < 2; v6++) {
        pda p;
        automaton m;
        int n_valid = 0;
        open_format(v6 ? "ipv6" : "ipv4", &p, &m);
        for (int i = 0; i < 40000; i++) {
            char text[128];
            unsigned char bytes[16];
            draw_address(text, v6);
            const bool valid = inet_pton(v6 ? AF_INET6 : AF_INET, text, bytes) == 1;
            expect(&m, text, valid);
            n_valid += valid;
        }
        assert_true(n_valid > 4000);
        without(&p, &m);
    }
}

/* The text is JSON: a backslash is one of the string after another. */
static void test_other_formats(void **state) {
    static const struct {
        const char *format, *is[14], *is_not[14];
    } rows[] = {
        {"uuid",
         {"12345678-1234-1234-1234-123456789abc", "ABCDEF00-0000-0000-0000-00000000000F"},
         {"12345678-1234-1234-1234-123456789ab", "12345678123412341234123456789abc",
          "g2345678-1234-1234-1234-123456789abc", "{12345678-1234-1234-1234-123456789abc}"}},
        {"duration",
         {"P1Y", "P1Y2M3D", "P1Y2MT3H", "PT1H2M3S", "P4W", "P12D", "PT36H", "P1M", "P0D", "PT2M3S"},
         {"P", "PT", "P1", "P1YT", "P1Y3D", "PT1H3S", "P1W2D", "1Y", "P1S", "P2D1Y", "P1.5Y", "-P1Y"}},
        {"email",
         {"a@b.c", "a.b@c", "!#$%&'*+/=?^_`{|}~-@b", "\\\"a b\\\"@c.d", "\\\"a\\\\\\\"b\\\"@c", "a@[1.2.3.4]",
          "a@[IPv6:::1]", "a@[IPv6:1:2:3:4:5:6:7:8]", "a@[001.2.3.255]", "A1@x-y.z"},
         {".a@b.c", "a.@b.c", "a..b@c", "a@-b.c", "a@b-.c", "\\\"a\\\"b\\\"@c", "a@[1.2.3.256]", "@b", "a@",
          "ab", "a@b@c", "a b@c", "a@b..c"}},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        pda p;
        automaton m;
        open_format(rows[i].format, &p, &m);
        for (size_t k = 0; k < N(rows[i].is) && rows[i].is[k]; k++)
            expect(&m, rows[i].is[k], true);
        for (size_t k = 0; k < N(rows[i].is_not) && rows[i].is_not[k]; k++)
            expect(&m, rows[i].is_not[k], false);
        without(&p, &m);
    }
}

/* Memory may be missing: the grammar is the same or there is none, and nothing leaks. */
static void test_no_memory(void **state) {
    static const char schema[] =
        "{\"properties\":{\"a\":{\"enum\":[\"x\",1]},\"b\":{\"type\":\"integer\"}},"
        "\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]},"
        "\"dependentSchemas\":{\"b\":{\"properties\":{\"a\":{\"const\":\"x\"}}}}}";
    char *whole = NULL;
    (void)state;
    assert_int_equal(schema_grammar(schema, sizeof schema - 1, "root", &whole, NULL), NIB_OK);
    for (int64_t n = 1, calls = n; calls >= n; n++) {
        char *gbnf = NULL;
        nib_error err = {NIB_OK, ""};
        fault_arm(FAULT_ALLOC, n);
        const nib_status status = schema_grammar(schema, sizeof schema - 1, "root", &gbnf, &err);
        calls = fault_count(FAULT_ALLOC);
        fault_arm(FAULT_ALLOC, 0);
        if (status == NIB_OK ? strcmp(gbnf, whole) != 0 : status != NIB_E_NOMEM)
            fail_msg("allocation %lld: status %d (%s), another grammar", (long long)n, status, err.message);
        mem_free(gbnf);
    }
    mem_free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_many_alternatives),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_other_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
