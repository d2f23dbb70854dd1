/* Grammars with vocabularies: masks against a plain walk over all tokens of real ones, long answers, random
 * answers, failing allocations. */
#include "base/mem.h"
#include "formats/container.h"
#include "grammar/automaton.h"
#include "grammar/grammar_parts.h"
#include "grammar/schema.h"
#include "support/faults.h"
#include "support/grammars.h"
#include "support/vocabulary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(list) (sizeof(list) / sizeof *(list))

static tokenizer *open_vocabulary(const char *name) {
    static const logger silent = {0};
    nib_error err;
    container *c;
    tokenizer *t;
    assert_int_equal(container_open(vocabulary_path(name), &silent, &c, &err), NIB_OK);
    assert_int_equal(tokenizer_open(c, &silent, &t, &err), NIB_OK);
    container_close(c);
    return t;
}

static ledger *open_ledger(void) {
    const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    nib_error err;
    ledger *l;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    return l;
}

/* At each step of a walk the allowed tokens are those whose bytes the automaton can read. */
static void check_masks(const char *name, const char *grammar_text, int n_step) {
    tokenizer *t = open_vocabulary(name);
    const int32_t n = tokenizer_n_vocab(t);
    ledger *l = open_ledger();
    grammar_store store;
    constraint c;
    nib_error err = {NIB_OK, ""};
    pda p;
    automaton m;
    float *logits = malloc((size_t)n * sizeof *logits);
    unsigned seed = 1;
    grammar_store_open(&store, l, t, n);
    if (constraint_open(&c, &store, grammar_text, &err))
        fail_msg("%s", err.message);
    with_grammar(grammar_text, &p, &m);
    uint32_t s = m.start;
    for (int step = 0; step < n_step; step++) {
        constraint_next next;
        int32_t chosen = -1, n_left = 0;
        for (int32_t i = 0; i < n; i++)
            logits[i] = 1;
        if (constraint_apply(&c, logits, true, &next, &err))
            fail_msg("%s", err.message);
        for (int32_t i = 0; i < n; i++) {
            text_buffer bytes = {0};
            uint32_t to = s;
            assert_int_equal(tokenizer_bytes(t, i, &bytes, &err), NIB_OK);
            m.work_left = AUTOMATON_WORK;
            for (size_t k = 0; k < bytes.n && to != AUTOMATON_DEAD; k++)
                to = automaton_step(&m, to, (uint8_t)bytes.data[k]);
            const bool may = tokenizer_is_end(t, i) ? m.states[s].ends && next != CONSTRAINT_END
                                                    : bytes.n > 0 && to != AUTOMATON_DEAD;
            text_buffer_clear(&bytes);
            if (may != (logits[i] == 1) && next != CONSTRAINT_END)
                fail_msg("%s: step %d, token %d: %g", name, step, (int)i, (double)logits[i]);
            if (logits[i] == 1 && !tokenizer_is_end(t, i) &&
                (seed = seed * 1103515245 + 12345) / 65536 % (unsigned)++n_left == 0)
                chosen = i;
        }
        if (chosen < 0)
            break;
        text_buffer bytes = {0};
        tokenizer_bytes(t, chosen, &bytes, &err);
        for (size_t k = 0; k < bytes.n; k++)
            s = automaton_step(&m, s, (uint8_t)bytes.data[k]);
        text_buffer_clear(&bytes);
        assert_int_equal(constraint_allowed(&c, chosen, true), chosen);
        assert_int_equal(constraint_accept(&c, chosen, &err), NIB_OK);
    }
    constraint_close(&c);
    grammar_store_close(&store);
    without(&p, &m);
    nib_memory now;
    ledger_report(l, &now);
    assert_int_equal(now.owner[NIB_OWNER_ACTIVATIONS], 0);
    assert_int_equal(now.owner[NIB_OWNER_TABLES], 0);
    ledger_close(l);
    tokenizer_close(t);
    free(logits);
}

static void test_masks_of_real_vocabularies(void **state) {
    nib_error err;
    char *json;
    (void)state;
    assert_int_equal(schema_grammar("{}", 2, "root", &json, &err), NIB_OK);
    check_masks("gpt-2", json, 8);
    check_masks("llama-spm", json, 8);
    check_masks("gpt-2", "root ::= [^\\x00-\\x7f]{3} \"!\"", 8);
    mem_free(json);
}

/* The id of a token by its bytes. */
static int32_t token_of(const tokenizer *t, const char *text) {
    for (int32_t i = 0; i < tokenizer_n_vocab(t); i++) {
        text_buffer bytes = {0};
        nib_error err;
        assert_int_equal(tokenizer_bytes(t, i, &bytes, &err), NIB_OK);
        const bool same = bytes.n == strlen(text) && !memcmp(bytes.data, text, bytes.n);
        text_buffer_clear(&bytes);
        if (same)
            return i;
    }
    fail_msg("no token '%s'", text);
    return -1;
}

/* A counted answer that has more states than memory holds, and two answers that drive each other's states
 * out: each is exact to its end, and states in the middle of a long repetition share a mask. */
static void test_long_answers(void **state) {
    enum { LONG = 30000 };
    tokenizer *t = open_vocabulary("gpt-2");
    const uint64_t caps[NIB_N_TIER] = {256 << 20, NIB_AUTO, NIB_AUTO};
    const int32_t x = token_of(t, "x"), end = token_of(t, "!"), n = tokenizer_n_vocab(t);
    float *logits = malloc((size_t)n * sizeof *logits);
    grammar_store store;
    constraint c[2];
    constraint_next next;
    nib_error err = {NIB_OK, ""};
    ledger *l;
    int n_mask = 0;
    (void)state;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    grammar_store_open(&store, l, t, n);
    for (int k = 0; k < 2; k++)
        assert_int_equal(constraint_open(&c[k], &store, "root ::= [a-z]{29000,30000} \"!\"", &err), NIB_OK);
    for (int i = 0; i < LONG; i++) {
        for (int32_t v = 0; v < n && i % 500 == 0; v++)
            logits[v] = 1;
        if (i % 500 == 0 && constraint_apply(&c[0], logits, true, &next, &err))
            fail_msg("%s", err.message);
        assert_true(i % 500 || (logits[x] == 1 && (logits[end] == 1) == (i >= 29000)));
        assert_int_equal(constraint_accept(&c[0], x, &err), NIB_OK);
        if (i % 10000 == 0)
            assert_int_equal(constraint_accept(&c[1], x, &err), NIB_OK);
    }
    for (uint32_t s = 0; s < c[0].of->automaton.n_state; s++)
        n_mask += c[0].of->automaton.states[s].mask >= 0;
    assert_true(n_mask > 0 && n_mask < 20);
    assert_int_equal(constraint_allowed(&c[0], x, true), end);
    assert_int_equal(constraint_allowed(&c[1], end, true) == end, 0);
    for (int k = 0; k < 2; k++)
        constraint_close(&c[k]);
    grammar_store_close(&store);
    ledger_close(l);
    tokenizer_close(t);
    free(logits);
}

/* Texts of random tokens, among those that are allowed, end as texts that match: no choice leads to a dead
 * end, and little memory for states is enough. */
static void make_texts(tokenizer *t, const char *schema, int n_text) {
    enum { LONGEST = 2000 };
    const int32_t n = tokenizer_n_vocab(t);
    const uint64_t caps[NIB_N_TIER] = {256 << 20, NIB_AUTO, NIB_AUTO};
    float *logits = malloc((size_t)n * sizeof *logits);
    nib_error err = {NIB_OK, ""};
    grammar_store store;
    unsigned seed = 1;
    char *gbnf = NULL;
    ledger *l;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    if (schema_grammar(schema, strlen(schema), "root", &gbnf, &err))
        fail_msg("%s: %s", schema, err.message);
    grammar_store_open(&store, l, t, n);
    for (int i = 0; i < n_text; i++) {
        constraint c;
        constraint_next next = CONSTRAINT_TOKENS;
        if (constraint_open(&c, &store, gbnf, &err))
            fail_msg("%s: %s", schema, err.message);
        for (int k = 0; k < LONGEST && next == CONSTRAINT_TOKENS; k++) {
            for (int32_t v = 0; v < n; v++)
                logits[v] = 1;
            if (constraint_apply(&c, logits, true, &next, &err))
                fail_msg("%s: after '%.*s': %s", schema, (int)c.n, (const char *)c.read, err.message);
            const int32_t from = (int32_t)((seed = seed * 1103515245 + 12345) / 65536 * 7919u % (unsigned)n);
            int32_t v = from;
            while (next == CONSTRAINT_TOKENS && (logits[v] != 1 || tokenizer_is_end(t, v)))
                v = (v + 1) % n;
            if (next == CONSTRAINT_TOKENS && constraint_accept(&c, v, &err))
                fail_msg("%s: %s", schema, err.message);
        }
        if (next == CONSTRAINT_TOKENS)
            fail_msg("%s: '%.*s' does not end", schema, (int)c.n, (const char *)c.read);
        constraint_close(&c);
    }
    grammar_store_close(&store);
    ledger_close(l);
    mem_free(gbnf);
    free(logits);
}

static void test_no_dead_ends(void **state) {
    static const char *const schemas[] = {
        "{\"type\":\"string\",\"format\":\"date-time\"}",
        "{\"type\":\"string\",\"format\":\"ipv6\",\"maxLength\":12}",
        "{\"type\":\"string\",\"format\":\"email\",\"maxLength\":20}",
        "{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^[0-9a-f]{8}-[0-9a-f]{4}-[1-5]\"}",
        "{\"type\":\"string\",\"pattern\":\"^([a-z]{3}-)*[a-z]{2}$\",\"minLength\":20,\"maxLength\":23}",
        "{\"type\":\"integer\",\"minimum\":-123456789012345678901,\"maximum\":12,\"multipleOf\":7}",
        "{\"type\":\"number\",\"exclusiveMinimum\":0.125,\"maximum\":0.2501,\"multipleOf\":0.03}",
        "{\"patternProperties\":{\"^[ab]+$\":{\"type\":\"integer\"},\"b$\":{\"minimum\":3}},"
        "\"propertyNames\":{"
        "\"maxLength\":3},\"maxProperties\":3}",
    };
    tokenizer *t = open_vocabulary("gpt-2");
    (void)state;
    for (size_t i = 0; i < N(schemas); i++)
        make_texts(t, schemas[i], 10);
    tokenizer_close(t);
}

/* ---- faults ---- */

static nib_status whole_life(void *user, nib_error *err) {
    tokenizer *t = user;
    ledger *l = NULL;
    const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    grammar_store store = {0};
    constraint c = {0};
    char *gbnf = NULL;
    const char *schema = "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"enum\":[1,\"x\"]}},"
                         "\"additionalProperties\":{\"maxLength\":3}}";
    nib_status status = ledger_open(places_of(caps), &l, err);
    if (status == NIB_OK)
        status = schema_grammar(schema, strlen(schema), "root", &gbnf, err);
    if (status == NIB_OK) {
        grammar_store_open(&store, l, t, tokenizer_n_vocab(t));
        status = constraint_open(&c, &store, gbnf, err);
    }
    const int32_t allowed = status == NIB_OK ? constraint_allowed(&c, 0, true) : -1;
    if (status == NIB_OK)
        status = constraint_accept(&c, allowed, err);
    if (status == NIB_OK) {
        fault_made(gbnf, strlen(gbnf));
        fault_made(&allowed, sizeof allowed);
    }
    constraint_close(&c);
    grammar_store_close(&store);
    nib_free(gbnf);
    ledger_close(l);
    if (status != NIB_OK)
        assert_int_equal(status, NIB_E_NOMEM);
    return status;
}

static void test_every_allocation_may_fail(void **state) {
    size_t n_byte;
    char *json = vocabulary_json(VOCABULARY_MERGES, 40, &n_byte);
    tokenizer *t;
    nib_error err;
    (void)state;
    assert_int_equal(tokenizer_open_json(json, n_byte, NULL, 0, &t, &err), NIB_OK);
    fault_sweep(FAULT_ALLOC, 1, whole_life, t);
    tokenizer_close(t);
    mem_free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_of_real_vocabularies),
        cmocka_unit_test(test_long_answers),
        cmocka_unit_test(test_no_dead_ends),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
