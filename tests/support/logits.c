/* logits.c - see logits.h. */
#include "support/logits.h"
#include "exec/step.h"
#include "support/engine.h"
#include "support/expected.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void logits_keep(void *rows, int64_t position, const float *row) {
    logits_rows *l = rows;
    if (position == l->next)
        memcpy(l->data + position * l->n_vocab, row, (size_t)l->n_vocab * sizeof *row);
    l->next = position == l->next ? position + 1 : INT64_MIN;
}

size_t logits_bytes(const logits_rows *r) {
    return (size_t)(r->next * r->n_vocab) * sizeof *r->data;
}

void logits_tokens(int32_t *tokens, int n, int64_t n_vocab, int seed) {
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)((i * 7919 + 13 * seed) % n_vocab);
}

logits_rows logits_of_session(nib_session *s, const int32_t *tokens, int n, int64_t n_vocab) {
    logits_rows r = {calloc((size_t)(n * n_vocab), sizeof *r.data), n_vocab, 0};
    nib_error err = {0};
    assert_non_null(r.data);
    if (nib_session_forward(s, tokens, (size_t)n, 0, logits_keep, &r, &err))
        fail_msg("%s", err.message);
    assert_int_equal(r.next, n);
    return r;
}

logits_rows logits_of(nib_engine *e, const int32_t *tokens, int n) {
    nib_session *s = session_must_open(e);
    const logits_rows r = logits_of_session(s, tokens, n, nib_engine_info(e)->n_vocab);
    nib_session_close(s);
    return r;
}

logits_rows logits_of_file(const char *path, int activation) {
    int32_t tokens[LOGITS_N];
    nib_engine_options o = engine_usual();
    o.activation = activation;
    nib_engine *e = engine_must_open(path, &o, NULL);
    logits_tokens(tokens, LOGITS_N, 104, 5);
    const logits_rows rows = logits_of(e, tokens, LOGITS_N);
    nib_engine_close(e);
    return rows;
}

double logits_distance(const logits_rows *a, const logits_rows *b) {
    assert_true(a->n_vocab == b->n_vocab && a->next == b->next);
    return relative_error(a->data, b->data, a->next * a->n_vocab);
}

typedef struct generated_pass {
    logits_rows *to;
    int64_t first; /* position of its first row */
} generated_pass;

static nib_status take(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                       nib_error *err) {
    const generated_pass *g = user;
    (void)segment_index, (void)err;
    for (int64_t r = 0; r < n_row; r++)
        logits_keep(g->to, g->first + row + r, logits + r * g->to->n_vocab);
    return NIB_OK;
}

logits_rows logits_generated(nib_engine *e, const int32_t *tokens, int n, int n_row) {
    const engine_parts on = engine_parts_of(e);
    logits_rows r = {calloc((size_t)n * (size_t)nib_engine_info(e)->n_vocab, sizeof *r.data),
                     nib_engine_info(e)->n_vocab, 0};
    int32_t *own = calloc((size_t)on.n_ctx, sizeof *own);
    nib_error err = {0};
    sequence_memory memory;
    sequence of;
    if (!r.data || !own || engine_sequence_memory(e, on.kv, &memory, &err) ||
        sequence_open(&of, &memory, on.n_ctx, own, false, &err))
        fail_msg("%s", err.message);
    sequence_set(&of, tokens, n, 0);
    sequence_generates(&of, 0);
    while (of.n < n) {
        const int64_t some = n - of.n < n_row ? n - of.n : n_row;
        segment rows = sequence_rows(&of, some, 0);
        rows.generated = true;
        generated_pass g = {&r, of.n};
        const pass p = {.segments = &rows,
                        .n_segment = 1,
                        .n_head = on.step->backend->rows.n_head,
                        .rows = take,
                        .user = &g};
        if (step_pass(on.step, &p, &err))
            fail_msg("%s", err.message);
        sequence_advance(&of, some);
    }
    sequence_close(&of);
    free(own);
    assert_int_equal(r.next, n);
    return r;
}
