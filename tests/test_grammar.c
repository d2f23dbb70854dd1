/* Grammars: texts that match and that do not, and refused grammars. With vocabularies: test_grammar_masks.c;
 * answers of models: test_session_batch_random.c, cli_grammar.sh. */
#include "base/mem.h"
#include "grammar/automaton.h"
#include "grammar/schema.h"
#include "support/grammars.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(list) (sizeof(list) / sizeof *(list))

/* ---- texts ---- */

static void test_texts(void **state) {
    static const struct {
        const char *grammar, *text;
        verdict is;
    } rows[] = {
        {"root ::= \"yes\" | \"no\"", "yes", WHOLE},
        {"root ::= \"yes\" | \"no\"", "ye", BEGINS},
        {"root ::= \"yes\" | \"no\"", "yn", NO},
        {"root ::= [a-c]+ # letters\n", "abcabc", WHOLE},
        {"root ::= [a-c]+", "", BEGINS},
        {"root ::= [^a-c]*", "x\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", WHOLE},
        {"root ::= [^a-c]*", "x\xc3", BEGINS},
        {"root ::= [^a-c]*", "x\xc3\x28", NO},
        {"root ::= [^a-c]*", "\xed\xa0\x80", NO}, /* a surrogate */
        {"root ::= [^a-c]*", "\xc0\x80", NO},     /* too long for its character */
        {"root ::= [^\\u00e9]*", "\xc3\xa8", WHOLE},
        {"root ::= [^\\u00e9]*", "\xc3\xa9", NO},
        {"root ::= [\xc3\xa0-\xc3\xbc]", "\xc3\xa9", WHOLE},
        {"root ::= .", "\xf4\x8f\xbf\xbf", WHOLE},
        {"root ::= .", "\xf4\x90\x80\x80", NO}, /* beyond the last character */
        {"root ::= \"a\"{2,3}", "aa", WHOLE},
        {"root ::= \"a\"{2,3}", "aaaa", NO},
        {"root ::= \"a\"{2}", "a", BEGINS},
        {"root ::= \"a\"{,2}", "", WHOLE},
        {"root ::= (\"ab\" | \"c\"){2,}", "abcab", WHOLE},
        {"root ::= \"a\"{0}", "a", NO},
        {"root ::= \"\\x41\\t\\u00e9\\U0001F600\\\"\"", "A\t\xc3\xa9\xf0\x9f\x98\x80\"", WHOLE},
        {"root ::= x y\nx ::= \"a\" |\n  \"b\"\ny ::= (\n \"c\"\n | \"d\" )*\n", "bcd", WHOLE},
        {"root ::= \"(\" root \")\" | \"\"", "((()))", WHOLE},
        {"root ::= \"(\" root \")\" | \"\"", "((())", BEGINS},
        {"root ::= \"(\" root \")\" | \"\"", "())", NO},
        {"root ::= item | item \",\" root\nitem ::= [0-9]", "1,2,3", WHOLE},
        {"root ::= (\"\" | \"a\")*", "aaa", WHOLE},
        {"root ::= [-a]+", "-a-", WHOLE},
        {"root ::= [a-]+", "-a-", WHOLE},
        {"root ::= [] | \"a\"", "a", WHOLE},
        {"root ::= \"a\"{9,12}", "aaaaaaaaa", WHOLE},
        {"root ::= \"a\"{9,12}", "aaaaaaaa", BEGINS},
        {"root ::= \"a\"{9,12}", "aaaaaaaaaaaaa", NO},
        {"root ::= (\"ab\" | \"a\"){9,} \"c\"", "aaaabaaaaac", WHOLE},
        {"root ::= (\"ab\" | \"a\"){9,} \"c\"", "aaaabaaac", NO},
        {"root ::= (\"a\"?){9,10} \"b\"", "aab", WHOLE},
        {"root ::= ((\"a\"{9,10} \"-\"){9} \";\")*", "aaaaaaaaa-aaaaaaaaaa-", BEGINS},
        {"root ::= [a-z]+ & ! (\"a\" | \"bc\")", "b", WHOLE},
        {"root ::= [a-z]+ & ! (\"a\" | \"bc\")", "bc", BEGINS},
        {"root ::= [a-z]+ & ! (\"a\" | \"bc\")", "bcd", WHOLE},
        {"root ::= (\"ab\")* & \"a\"* \"b\" | \"c\"", "ab", WHOLE},
        {"root ::= (\"ab\")* & \"a\"* \"b\" | \"c\"", "aba", NO},
        {"root ::= (\"ab\")* & \"a\"* \"b\" | \"c\"", "c", WHOLE},
        {"root ::= .{2,3} & [a-z]* & ! \"abc\" & ! \"ab\"", "ab", BEGINS},
        {"root ::= .{2,3} & [a-z]* & ! \"abc\" & ! \"ab\"", "abc", NO},
        {"root ::= .{2,3} & [a-z]* & ! \"abc\" & ! \"ab\"", "abd", WHOLE},
        {"root ::= x (x & \"b\")\nx ::= (\"a\" | \"b\")", "ab", WHOLE}, /* no dead end: 'aa' has none */
        {"root ::= x (x & \"b\")\nx ::= (\"a\" | \"b\")", "aa", NO},
        {"root ::= (\"[\" v \"]\" & [^x]*)\nv ::= \"x\" | \"y\" | \"[\" v \"]\"", "[[y]]", WHOLE},
        {"root ::= (\"[\" v \"]\" & [^x]*)\nv ::= \"x\" | \"y\" | \"[\" v \"]\"", "[[x", NO},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        pda p;
        automaton m;
        with_grammar(rows[i].grammar, &p, &m);
        if (judge(&m, rows[i].text, strlen(rows[i].text)) != rows[i].is)
            fail_msg("%s: '%s' is not %d", rows[i].grammar, rows[i].text, rows[i].is);
        without(&p, &m);
    }
}

static void test_what_is_wrong_is_named(void **state) {
    static const struct {
        const char *grammar, *says;
    } rows[] = {
        {"", "expected a rule 'root'"},
        {"a ::= \"b\"", "expected a rule 'root'"},
        {"root ::= \"a\nb", "line 2: expected '\"'"},
        {"root ::= a", "line 1: expected the name of a defined rule, found 'a'"},
        {"root ::= (\"a\"", "expected ')', found its end"},
        {"root ::= [a", "expected ']'"},
        {"root ::= [z-a]", "whose first character is not above"},
        {"root ::= \"\\q\"", "found 'q"},
        {"root ::= \"\\uD800\"", "expected a character, found U+D800"},
        {"root ::= \"\xff\"", "expected valid UTF-8"},
        {"root ::= \"a\"{3,2}", "found 3 to 2"},
        {"root ::= \"a\"{4294967295}", "at most 4294967294 times"},
        {"root ::= \"a\" & ! \"a\"", "no text can complete"},
        {"root ::= [a-z]+ & [0-9]+", "no text can complete"},
        {"root ::= x & \"a\"\nx ::= root \"a\" | \"b\"", "begins with itself"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule 'root' is defined twice"},
        {"root ::= <think> \"a\"", "tokens in a grammar"},
        {"root = \"a\"", "'::='"},
        {"root ::= root \"a\" | \"b\"", "'root' begins with itself"},
        {"root ::= x\nx ::= \"\"* y\ny ::= (\"\" | \"c\") x", "begins with itself"},
        {"root ::= \"a\" root", "never ends"},
        {"root ::= []", "never ends"},
        {"root ::= (((\"ab\"{999}){999}){999}", "expected ')'"},
        {"root ::= (\"a\"?){2000000}", "at most 1048576 instructions"}, /* may be empty: not counted */
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        pda p;
        automaton m = {0};
        nib_error err = {NIB_OK, ""};
        nib_status status = pda_parse(rows[i].grammar, strlen(rows[i].grammar), &p, &err);
        if (status == NIB_OK)
            status = automaton_open(&m, &p, AUTOMATON_MIN_BYTES, &err);
        without(&p, &m);
        assert_int_equal(status, NIB_E_USAGE);
        if (!strstr(err.message, rows[i].says))
            fail_msg("%s: '%s' says nothing of '%s'", rows[i].grammar, err.message, rows[i].says);
    }
}

static void test_deep_nesting_is_refused(void **state) {
    enum { DEEP = 100000 };
    char *text = calloc(1, 2 * DEEP + 32);
    nib_error err;
    pda p;
    (void)state;
    strcpy(text, "root ::= ");
    memset(text + strlen(text), '(', DEEP);
    assert_int_equal(pda_parse(text, strlen(text), &p, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "nest deeper"));
    strcpy(text, "root ::= \"a\"");
    memset(text + 12, '?', DEEP);
    text[12 + DEEP] = 0;
    assert_int_equal(pda_parse(text, strlen(text), &p, &err), NIB_E_USAGE);
    free(text);
}

/* Each "a" doubles the parses of the text before it. */
static void test_ambiguity_is_bounded(void **state) {
    pda p;
    automaton m;
    uint32_t s;
    (void)state;
    with_grammar("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"", &p, &m);
    s = m.start;
    for (int i = 0; i < 100 && s != AUTOMATON_FAILED; i++)
        s = automaton_step(&m, s, 'a');
    assert_int_equal(s, AUTOMATON_FAILED);
    assert_true(m.failure == AUTOMATON_AMBIGUOUS || m.failure == AUTOMATON_FULL);
    without(&p, &m);
}

/* Calls beyond the depth do not match; less deep ones match, also endless texts. */
static void test_depth(void **state) {
    pda p;
    automaton m;
    char text[2000];
    (void)state;
    with_grammar("root ::= \"(\" root \")\" | \"\"", &p, &m);
    memset(text, '(', sizeof text);
    assert_int_equal(judge(&m, text, AUTOMATON_DEPTH), BEGINS);
    assert_int_equal(judge(&m, text, AUTOMATON_DEPTH + 2), NO);
    without(&p, &m);
    with_grammar("root ::= \"x\" root | \"y\"", &p, &m);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 'y';
    assert_int_equal(judge(&m, text, sizeof text), WHOLE);
    without(&p, &m);
}

/* ---- schemas ---- */

#define MERGED                                                                                               \
    "{\"$defs\":{\"x\":{\"properties\":{\"a\":{\"type\":\"number\",\"minimum\":1}},\"required\":[\"a\"]}},"  \
    "\"title\":"                                                                                             \
    "\"t\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"allOf\":[{\"$ref\":\"#/$defs/"                    \
    "x\"},{\"properties\":{\"b\":{\"type\":"                                                                 \
    "\"string\"},\"c\":{}},\"required\":[\"b\"]},{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":4}}}]}]}"

/* Each schema with a text. */
static const struct {
    const char *schema, *text;
    verdict is;
} schema_rows[] = {
    {"{}", "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\", true, null]}", WHOLE},
    {"{}", "[1]", NO},
    {"{}", "{\"a\": \"\\ud83d\\ude00\"}", WHOLE},
    {"{}", "{\"a\": \"\\ud83d\"}", NO},
    {"{}", "{\"a\": 01}", NO},
    {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":150}", "150", WHOLE},
    {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":150}", "151", NO},
    {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":150}", "-1", NO},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-13,\"maximum\":-2}", "-12", WHOLE},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-13,\"maximum\":-2}", "-13", NO},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-13,\"maximum\":-2}", "-1", BEGINS},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\\n\"", WHOLE},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\"", NO},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"abcd\"", NO},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2026-02-28\"", WHOLE},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2026-02-31\"", NO},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"255.1.20.0\"", WHOLE},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"256.1.20.0\"", NO},
    {"{\"enum\":[\"a\\\"b\",1,null]}", "\"a\\\"b\"", WHOLE},
    {"{\"enum\":[\"a\\\"b\",1,null]}", "2", NO},
    {"{\"const\":{\"a\":[1]}}", "{\"a\":[1]}", WHOLE},
    {"{\"type\":[\"string\",\"null\"]}", "null", WHOLE},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}]}", "true", WHOLE},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1, 2]", WHOLE},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1]", NO},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1,2,3,4]", NO},
    {"{\"type\":\"array\",\"maxItems\":0}", "[]", WHOLE},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "[1,\"a\"]", WHOLE},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "[1,\"a\",2]", NO},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},\"c\":{}},\"required\":[\"b\"]}", "{\"b\":1}",
     WHOLE},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},\"c\":{}},\"required\":[\"b\"]}",
     "{\"a\": 1, \"b\": {}, \"c\": []}", WHOLE},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},\"c\":{}},\"required\":[\"b\"]}", "{\"a\":1}",
     NO},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},\"c\":{}},\"required\":[\"b\"]}", "{\"c\":1}",
     NO},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}}}", "{}", WHOLE},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}}}", "{\"b\":1}", WHOLE},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"d\":1}", NO},
    {"{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
     "{\"ab\":1,\"abc\":null,\"a\":null,\"x\":null}", WHOLE},
    {"{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
     "{\"ab\":null", NO},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{\"k\": 1, \"l\": 2}", WHOLE},
    {"{\"type\":\"object\",\"additionalProperties\":false}", "{}", WHOLE},
    {"{\"$defs\":{\"n\":{\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{\"anyOf\":[{\"$ref\":\"#/"
     "$defs/"
     "n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"n\"]}},\"$ref\":\"#/$defs/n\"}",
     "{\"v\":1,\"n\":{\"v\":2,\"n\":null}}", WHOLE},
    {MERGED, "{\"a\":5,\"b\":\"x\",\"c\":true}", WHOLE},
    {MERGED, "{\"a\":5,\"b\":\"x\"}", WHOLE},
    {MERGED, "{\"a\":5}", NO},
    {MERGED, "{\"a\":3,\"b\":\"x\"}", NO},
    {MERGED, "{\"a\":5.5,\"b\":\"x\"}", NO},
    {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]},true]}", "2", WHOLE},
    {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]},true]}", "1", NO},
    {"{\"type\":\"array\",\"allOf\":[{\"items\":{\"minimum\":1}},{\"items\":{\"type\":\"integer\"}}]}",
     "[1,2]", WHOLE},
    {"{\"type\":\"array\",\"allOf\":[{\"items\":{\"minimum\":1}},{\"items\":{\"type\":\"integer\"}}]}", "[0]",
     NO},
    {"{\"properties\":{\"n\":{\"allOf\":[{\"$ref\":\"#\"}],\"description\":\"d\"}}}", "{\"n\":{\"n\":{}}}",
     WHOLE},
};

static void test_schemas(void **state) {
    (void)state;
    for (size_t i = 0; i < N(schema_rows); i++) {
        pda p;
        automaton m;
        nib_error err = {NIB_OK, ""};
        char *gbnf;
        if (schema_grammar(schema_rows[i].schema, strlen(schema_rows[i].schema), "root", &gbnf, &err))
            fail_msg("%s: %s", schema_rows[i].schema, err.message);
        with_grammar(gbnf, &p, &m);
        if (judge(&m, schema_rows[i].text, strlen(schema_rows[i].text)) != schema_rows[i].is)
            fail_msg("%s: '%s' is not %d\n%s", schema_rows[i].schema, schema_rows[i].text, schema_rows[i].is,
                     gbnf);
        without(&p, &m);
        mem_free(gbnf);
    }
}

/* Each pattern with texts (JSON, without the quotation marks) that match, and that do not. */
static void test_patterns(void **state) {
    static const struct {
        const char *pattern, *is[4], *is_not[5];
    } rows[] = {
        {"^abc$", {"abc"}, {"ab", "abcd", "xabc", ""}},
        {"b", {"b", "abc", "bb"}, {"", "ac"}},
        {"^a", {"a", "ab"}, {"ba", ""}},
        {"a$", {"a", "ba"}, {"ab"}},
        {"^a|b$", {"ax", "xb", "a", "b"}, {"xa", "bx"}},
        {"^(a|b|)$", {"a", "b", ""}, {"ab", "c"}},
        {"", {"", "x"}, {NULL}},
        {"^[A-Z]{2}\\\\d{3,4}$", {"AB123", "XY1234"}, {"A123", "AB12", "AB12345", "ab123"}},
        {"^\\\\w+@\\\\w+\\\\.com$", {"a_1@b.com"}, {"@b.com", "a@bxcom", "a@b.com2"}},
        {"^[^a-c\\\\s]*?$", {"", "xyz", "\\\"\\\\\\\\", "\xf0\x9f\x98\x80"}, {"a", "x y", "\\n", "\\u0041"}},
        {"^.+$", {"a", "\\\"", "\\t"}, {"", "\\n", "a\\n"}},
        {"^\\\"\\\\\\\\/\\\\/$", {"\\\"\\\\//"}, {"\"\\\\//", "//"}},
        {"^(?:x(?<n>y)){2}$", {"xyxy"}, {"xy", "xyxyxy"}},
        {"^\\\\u00e9\\\\x41\\\\u{1F600}\\\\ud83d\\\\ude00\xc3\xa9$",
         {"\xc3\xa9"
          "A\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xc3\xa9"},
         {"e"}},
        {"^\\\\n\\\\x01[\\\\x02]$", {"\\n\\u0001\\u0002"}, {"\\n"}},
        {"^[\\\\]\\\\-x-]+$", {"]", "-x]"}, {"y", ""}},
        {"^a{2,}b{0}c{1}$", {"aac", "aaaac"}, {"ac", "aabc"}},
        {"^(a*)*$", {"", "aaa"}, {"b"}},
        {"^[\\\\D]$", {"a"}, {"1"}},
        {"^[0-9]{4}-[0-9]{2}$", {"2026-11"}, {"2026-1"}},
        {"^{x}$", {"{x}"}, {"x"}},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        char schema[256], *gbnf, text[80];
        nib_error err = {NIB_OK, ""};
        pda p;
        automaton m;
        const int n = snprintf(schema, sizeof schema, "{\"pattern\":\"%s\"}", rows[i].pattern);
        if (schema_grammar(schema, (size_t)n, "root", &gbnf, &err))
            fail_msg("%s: %s", rows[i].pattern, err.message);
        with_grammar(gbnf, &p, &m);
        for (size_t k = 0; k < N(rows[i].is) && rows[i].is[k]; k++) {
            snprintf(text, sizeof text, "\"%s\"", rows[i].is[k]);
            if (judge(&m, text, strlen(text)) != WHOLE)
                fail_msg("%s has not %s\n%s", rows[i].pattern, text, gbnf);
        }
        for (size_t k = 0; k < N(rows[i].is_not) && rows[i].is_not[k]; k++) {
            snprintf(text, sizeof text, "\"%s\"", rows[i].is_not[k]);
            if (judge(&m, text, strlen(text)) == WHOLE)
                fail_msg("%s has %s\n%s", rows[i].pattern, text, gbnf);
        }
        without(&p, &m);
        mem_free(gbnf);
    }
}

static void test_integer_ranges(void **state) {
    static const int bounds[][2] = {{0, 0},   {7, 7},      {0, 9},      {0, 10},    {3, 42},
                                    {10, 99}, {11, 98},    {100, 1000}, {-5, 5},    {-99, -9},
                                    {-10, 0}, {-123, 456}, {199, 201},  {990, 1009}};
    (void)state;
    for (size_t i = 0; i < N(bounds); i++) {
        char schema[80], *gbnf, text[16];
        nib_error err;
        pda p;
        automaton m;
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", bounds[i][0],
                 bounds[i][1]);
        assert_int_equal(schema_grammar(schema, strlen(schema), "root", &gbnf, &err), NIB_OK);
        with_grammar(gbnf, &p, &m);
        for (int x = -1200; x <= 1200; x++) {
            snprintf(text, sizeof text, "%d", x);
            const bool in = x >= bounds[i][0] && x <= bounds[i][1];
            if ((judge(&m, text, strlen(text)) == WHOLE) != in)
                fail_msg("%d from %d to %d", x, bounds[i][0], bounds[i][1]);
        }
        without(&p, &m);
        mem_free(gbnf);
    }
}

static void test_number_ranges(void **state) {
    static const struct {
        double lo, hi;
        int out; /* 1: lo is excluded, 2: hi */
    } rows[] = {{0.5, 2.25, 0},  {0.5, 2.25, 3},  {1, 2, 0},      {1, 2, 3},       {-1.5, 1.5, 0},
                {-1.5, 1.5, 3},  {-2.25, -1, 0},  {-2.25, -1, 3}, {-0.5, 0, 0},    {-0.5, 0, 3},
                {0, 0.75, 1},    {1.25, 1.75, 0}, {1.2, 1.25, 3}, {1.2, 1.25, 0},  {0.2, 0.21, 2},
                {1.25, 1.3, 0},  {1, 1.5, 1},     {-3, 12.5, 2},  {1.05, 1.05, 0}, {0.99, 11, 0},
                {-0.05, 0.05, 3}};
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        char schema[128], *gbnf, text[32];
        nib_error err = {NIB_OK, ""};
        pda p;
        automaton m;
        snprintf(schema, sizeof schema, "{\"type\":\"number\",\"%s\":%g,\"%s\":%g}",
                 rows[i].out & 1 ? "exclusiveMinimum" : "minimum", rows[i].lo,
                 rows[i].out & 2 ? "exclusiveMaximum" : "maximum", rows[i].hi);
        if (schema_grammar(schema, strlen(schema), "root", &gbnf, &err))
            fail_msg("%s: %s", schema, err.message);
        with_grammar(gbnf, &p, &m);
        for (int x = -1300; x <= 1300;
             x++) /* hundredths, with as many digits as are needed, and with three */
            for (int digits = x % 100 == 0 ? 0 : x % 10 == 0 ? 1 : 2; digits <= 3; digits++) {
                const double v = x / 100.0;
                snprintf(text, sizeof text, "%.*f", digits, v);
                const bool in = v >= rows[i].lo && v <= rows[i].hi && !(rows[i].out & 1 && v == rows[i].lo) &&
                                !(rows[i].out & 2 && v == rows[i].hi);
                if ((judge(&m, text, strlen(text)) == WHOLE) != in)
                    fail_msg("%s: %s is%s\n%s", schema, text, in ? " not" : "", gbnf);
            }
        without(&p, &m);
        mem_free(gbnf);
    }
}

static void test_schemas_that_are_refused(void **state) {
    static const struct {
        const char *schema, *says;
    } rows[] = {
        {"{", "not valid JSON"},
        {"[]", "expected a schema"},
        {"{\"type\":\"strange\"}", "found 'strange'"},
        {"{\"properties\":{\"a\":{\"pattern\":\"(x\"}}}",
         "at #/properties/a: 'pattern': expected ')' at the end of a group"},
        {"{\"pattern\":1}", "'pattern': expected a text"},
        {"{\"pattern\":\"^x$\",\"minLength\":2}", "that some string matches"},
        {"{\"pattern\":\"x\",\"format\":\"date\"}", "that some string matches"},
        {"{\"pattern\":\"(?=x)\"}", "lookahead and lookbehind"},
        {"{\"pattern\":\"(?<!x)y\"}", "lookahead and lookbehind"},
        {"{\"pattern\":\"(a)\\\\1\"}", "this escape is not supported"},
        {"{\"pattern\":\"\\\\bx\"}", "this escape is not supported"},
        {"{\"pattern\":\"\\\\p{L}\"}", "this escape is not supported"},
        {"{\"pattern\":\"a^b\"}", "an anchor"},
        {"{\"pattern\":\"(a$)\"}", "an anchor"},
        {"{\"pattern\":\"[a\"}", "expected ']' at the end of a class"},
        {"{\"pattern\":\"[]\"}", "found an empty one"},
        {"{\"pattern\":\"[z-a]\"}", "not above its last"},
        {"{\"pattern\":\"a**\"}", "nothing to repeat"},
        {"{\"pattern\":\"+\"}", "nothing to repeat"},
        {"{\"pattern\":\"a{3,2}\"}", "the smaller number first"},
        {"{\"pattern\":\"a)\"}", "expected '(' before ')'"},
        {"{\"pattern\":\"\\\\u12\"}", "the code of a character"},
        {"{\"pattern\":\"\\\\ud800\"}", "the code of a character"},
        {"{\"pattern\":\"\\\\u{dfff}\"}", "the code of a character"},
        {"{\"not\":{}}", "'not' is not supported"},
        {"{\"items\":{\"multipleOf\":0}}", "#/items: 'multipleOf': expected a number above 0"},
        {"{\"items\":{\"contains\":{}}}", "#/items: 'contains'"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems'"},
        {"{\"$ref\":\"#/$defs/x\"}", "within the schema, found '#/$defs/x'"},
        {"{\"$ref\":\"http://x/y\"}", "expected a target within the schema"},
        {"{\"type\":\"number\",\"maximum\":1,\"exclusiveMinimum\":1}", "that some number matches"},
        {"{\"type\":\"number\",\"minimum\":1e-500}", "at most 400 digits after the point"},
        {"{\"type\":\"number\",\"minimum\":\"1\"}", "'minimum': expected a number"},
        {"{\"allOf\":[]}", "'allOf': expected an array"},
        {"{\"allOf\":[1,{}]}", "expected an array of schemas"},
        {"{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"^b\"}]}", "that some string matches"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}",
         "expected values of 'type' that can be combined"},
        {"{\"allOf\":[{\"enum\":[1]},{\"enum\":[2]}]}", "expected values of 'enum' that can be combined"},
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"minItems\":1}]}", "that contains itself"},
        {"{\"allOf\":[{\"$ref\":\"#/x\"},{\"minItems\":1}]}", "'#/x' is not in the schema"},
        {"{\"allOf\":[{\"if\":{},\"then\":{}},{\"minItems\":1}]}", "'if' is not supported"},
        {"{\"allOf\":[{\"additionalProperties\":false},{\"required\":[\"a\"]}]}",
         "a name that another keyword allows, found 'a'"},
        {"{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "that some integer matches"},
        {"{\"additionalProperties\":false,\"required\":[\"a\"]}",
         "a name that another keyword allows, found 'a'"},
        {"{\"minLength\":2,\"maxLength\":1}", "at least 'minLength'"},
        {"{\"maxItems\":-1}", "'maxItems': expected a whole number"},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        nib_error err = {NIB_OK, ""};
        char *gbnf = NULL;
        if (schema_grammar(rows[i].schema, strlen(rows[i].schema), "root", &gbnf, &err) != NIB_E_USAGE)
            fail_msg("%s: %s", rows[i].schema, gbnf);
        if (!strstr(err.message, rows[i].says))
            fail_msg("%s: '%s' says nothing of '%s'", rows[i].schema, err.message, rows[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_ambiguity_is_bounded),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_integer_ranges),
        cmocka_unit_test(test_number_ranges),
        cmocka_unit_test(test_schemas_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
