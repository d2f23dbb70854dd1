/* logits.c - see logits.h. */
#include "support/logits.h"
#include "support/engine.h"

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
