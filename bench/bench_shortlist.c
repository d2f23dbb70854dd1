/* bench_shortlist.c - the output head in two steps (exec/cpu/shortlist.h) beside the whole head, over a text:
 * whether any of the n_best largest logits is missing or has other bits, and how much of the head was
 * computed.
 *
 *   bench_shortlist MODEL TEXT [n_best 1] [tokens 4096] */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "nib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256, MAX_BYTES = 4 << 20 };

typedef struct best {
    int32_t id;
    float logit;
} best;

typedef struct comparison {
    int n_best;
    int64_t n_vocab, n_row, n_missing, n_left_out;
    best *list; /* [CHUNK, n_best] of the whole head */
} comparison;

static int by_logit(const void *a, const void *b) {
    const best *x = a, *y = b;
    return x->logit < y->logit ? 1 : x->logit > y->logit ? -1 : x->id - y->id;
}

/* The n_best largest of the whole head. */
static void keep(void *user, int64_t position, const float *logits) {
    comparison *c = user;
    best *list = c->list + position * c->n_best;
    int n = 0;
    for (int64_t v = 0; v < c->n_vocab; v++) {
        if (n == c->n_best && !(logits[v] > list[n - 1].logit))
            continue;
        const best now = {(int32_t)v, logits[v]};
        int at = n < c->n_best ? n++ : n - 1;
        for (; at > 0 && by_logit(&now, &list[at - 1]) < 0; at--)
            list[at] = list[at - 1];
        list[at] = now;
    }
}

static void compare(void *user, int64_t position, const float *logits) {
    comparison *c = user;
    const best *list = c->list + position * c->n_best;
    for (int i = 0; i < c->n_best; i++)
        c->n_missing += memcmp(&logits[list[i].id], &list[i].logit, sizeof *logits) != 0;
    for (int64_t v = 0; v < c->n_vocab; v++)
        c->n_left_out += logits[v] == -INFINITY;
    c->n_row++;
}

typedef struct side {
    nib_engine *e;
    nib_session *s;
} side;

static nib_status open_side(const char *model, int n_best, side *out, nib_error *err) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_ctx = CHUNK;
    o.n_best = n_best;
    o.shortlist = NIB_SHORTLIST_ON;
    const nib_status status = nib_engine_open(model, &o, &out->e, err);
    return status ? status : nib_session_open(out->e, NULL, &out->s, err);
}

static void close_side(side *s) {
    nib_session_close(s->s);
    nib_engine_close(s->e);
}

static nib_status run(side *whole, side *two, const int32_t *tokens, size_t n, comparison *c,
                      nib_error *err) {
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t some = NUM_MIN(n - at, (size_t)CHUNK);
        nib_status status = nib_session_forward(whole->s, tokens + at, some, 0, keep, c, err);
        if (!status)
            status = nib_session_forward(two->s, tokens + at, some, 0, compare, c, err);
        if (status)
            return status;
    }
    return NIB_OK;
}

static nib_status measure(side *whole, side *two, char **argv, comparison *c, size_t max, nib_error *err) {
    char *text = NULL;
    size_t n_byte, n;
    int32_t *tokens = NULL;
    nib_status status = file_read_all(argv[2], MAX_BYTES, &text, &n_byte, err);
    if (!status)
        status = nib_tokenize(whole->e, text, n_byte, 0, &tokens, &n, err);
    if (!status)
        status = run(whole, two, tokens, NUM_MIN(n, max), c, err);
    mem_free(text);
    nib_free(tokens);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_shortlist MODEL TEXT [n_best] [tokens]\n");
        return 2;
    }
    comparison c = {.n_best = argc > 3 ? atoi(argv[3]) : 1};
    const long max = argc > 4 ? atol(argv[4]) : 4096;
    nib_error err = {0};
    side whole = {0}, two = {0};
    nib_traffic t;
    c.list = calloc((size_t)CHUNK * (size_t)NUM_MAX(c.n_best, 1), sizeof *c.list);
    nib_status status = c.list && c.n_best > 0 && max > 0 ? NIB_OK : NIB_E_USAGE;
    if (!status)
        status = open_side(argv[1], 0, &whole, &err);
    if (!status)
        status = open_side(argv[1], c.n_best, &two, &err);
    if (!status) {
        c.n_vocab = nib_engine_info(whole.e)->n_vocab;
        status = measure(&whole, &two, argv, &c, (size_t)max, &err);
    }
    if (!status) {
        nib_engine_traffic(two.e, &t);
        printf("%lld rows of logits, the best %d of each: %lld missing or different; %.2f %% of the head "
               "computed, "
               "%.1f %% of the logits left out\n",
               (long long)c.n_row, c.n_best, (long long)c.n_missing, t.head_share * 100,
               100.0 * (double)c.n_left_out / (double)c.n_row / (double)c.n_vocab);
    } else {
        fprintf(stderr, "bench_shortlist: %s\n", err.message);
    }
    close_side(&whole);
    close_side(&two);
    free(c.list);
    return status || c.n_missing ? 1 : 0;
}
