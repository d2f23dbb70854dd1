/* bench_grammar MODEL [SCHEMA-FILE] [TEXTS]: what holding an answer to a grammar takes for each token, with
 * the model's own vocabulary. Texts of the schema (a person with a list of pets unless a file has another
 * one) are made by drawing among the allowed tokens at random; the same texts are made twice, so the second
 * time every state has been visited. */
#include "base/file.h"
#include "base/mem.h"
#include "formats/container.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char USUAL[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"age\":{\"type\":"
    "\"integer\",\"minimum\":0,\"maximum\":150},\"pets\":{\"type\":\"array\",\"maxItems\":4,\"items\":{"
    "\"type\":"
    "\"object\",\"properties\":{\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"name\":{\"type\":\"string\"}},"
    "\"required\":["
    "\"kind\",\"name\"]}}},\"required\":[\"name\",\"age\",\"pets\"]}";

enum { MOST = 256 };

typedef struct times {
    double sum, max;
    long n;
} times;

/* Of this thread alone: other programs on the machine do not count. */
static double busy(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* One of the tokens that are left, by chance. */
static int32_t choose(const float *logits, int64_t n, uint64_t *seed) {
    const int64_t from = (int64_t)(draw(seed) % (uint64_t)n);
    for (int64_t i = 0; i < n; i++)
        if (logits[(from + i) % n] == 1)
            return (int32_t)((from + i) % n);
    return -1;
}

static bool make_text(grammar_store *s, const char *gbnf, uint64_t seed, float *logits, times *t) {
    constraint c;
    nib_error err;
    constraint_next next;
    bool good = constraint_open(&c, s, gbnf, &err) == NIB_OK;
    for (int i = 0; i < MOST && good; i++) {
        for (int64_t k = 0; k < s->n_vocab; k++)
            logits[k] = 1;
        const double start = busy();
        good = constraint_apply(&c, logits, true, &next, &err) == NIB_OK;
        const double applied = busy();
        const int32_t token = good && next != CONSTRAINT_END ? choose(logits, s->n_vocab, &seed) : -1;
        const double chosen = busy();
        if (token < 0 || tokenizer_is_end(s->tokenizer, token))
            break;
        good = constraint_accept(&c, constraint_allowed(&c, token, true), &err) == NIB_OK;
        const double took = applied - start + (busy() - chosen);
        t->sum += took;
        t->max = took > t->max ? took : t->max;
        t->n++;
    }
    if (!good)
        fprintf(stderr, "%s\n", err.message);
    constraint_close(&c);
    return good;
}

static int run(const tokenizer *t, const char *schema, int n_text) {
    const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    nib_error err = {NIB_OK, ""};
    ledger *l = NULL;
    char *gbnf = NULL;
    grammar_store s = {0};
    grammar *g = NULL;
    const int64_t n = tokenizer_n_vocab(t);
    float *logits = malloc((size_t)n * sizeof *logits);
    bool good = logits && ledger_open(caps, &l, &err) == NIB_OK &&
                schema_grammar(schema, strlen(schema), "root", &gbnf, &err) == NIB_OK;
    if (good) {
        grammar_store_open(&s, l, t, n);
        const double start = busy();
        good = grammar_acquire(&s, gbnf, strlen(gbnf), &g, &err) == NIB_OK;
        printf("%lld tokens, tree of %u nodes (%.1f MiB), compiled in %.1f ms\n", (long long)n, s.trie.n_node,
               (double)s.trie.n_byte / (1 << 20), 1e3 * (busy() - start));
    }
    for (int again = 0; again < 2 && good; again++) {
        times x = {0};
        const uint64_t before = grammar_n_mask(g);
        for (int i = 0; i < n_text && good; i++)
            good = make_text(&s, gbnf, (uint64_t)i + 1, logits, &x);
        printf("%s: %ld tokens, %.1f us a token in the mean, %.1f at most; %llu masks made\n",
               again ? "again" : "first", x.n, 1e6 * x.sum / (double)x.n, 1e6 * x.max,
               (unsigned long long)(grammar_n_mask(g) - before));
    }
    if (!good)
        fprintf(stderr, "%s\n", err.message);
    grammar_release(g);
    grammar_store_close(&s);
    mem_free(gbnf);
    ledger_close(l);
    free(logits);
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    static const logger silent = {0};
    nib_error err;
    container *c;
    tokenizer *t;
    char *schema = NULL;
    size_t n_byte;
    if (argc < 2)
        return fprintf(stderr, "bench_grammar MODEL.gguf [SCHEMA-FILE] [TEXTS]\n"), 2;
    if (container_open(argv[1], &silent, &c, &err) || tokenizer_open(c, &silent, &t, &err) ||
        (argc > 2 && file_read_all(argv[2], 1 << 20, &schema, &n_byte, &err)))
        return fprintf(stderr, "%s\n", err.message), 1;
    container_close(c);
    const int code = run(t, schema ? schema : USUAL, argc > 3 ? atoi(argv[3]) : 20);
    tokenizer_close(t);
    mem_free(schema);
    return code;
}
