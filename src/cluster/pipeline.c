/* pipeline.c - see pipeline.h. */
#include "cluster/pipeline.h"

#include "base/mem.h"
#include "base/num.h"
#include "cluster/heartbeat.h"
#include "cluster/inbox.h"
#include "state/kv_calls.h"

#include <string.h>

struct pipeline {
    step_links links;
    rank_link link;
    processes others;
    heartbeat *lives;
    inbox *inbox;
    kv_log *log;
    int64_t n_pass; /* sent */
    message got;
    void *calls; /* not sent yet */
    size_t n_call, cap_call;
    message_segment *segments;
    int32_t *tokens;
    size_t cap_segment, cap_token;
    int64_t stream_width, n_vocab;
    bool broken; /* a connection has failed: no pass can run */
    nib_error why;
};

/* Ends the use of the connections; all later passes fail with the same error. */
static nib_status break_off(pipeline *p, nib_status status, nib_error *err) {
    if (!p->broken && heartbeat_silent(p->lives))
        processes_kill(&p->others, heartbeat_silent(p->lives), &p->why);
    else if (!p->broken && status == NIB_E_IO)
        processes_blame(&p->others, &p->why);
    else if (!p->broken)
        nib_fail(&p->why, status, "%s", err ? err->message : "a rank has failed");
    p->broken = true;
    return nib_fail(err, p->why.status, "%s", p->why.message);
}

static nib_status of_rank(const message_header *head, nib_error *err) {
    return head->error.status == NIB_OK
               ? NIB_OK
               : nib_fail(err, head->error.status, "rank %d: %s", head->rank, head->error.message);
}

/* ---- sending a pass ---- */

static int32_t wants(const pass *p) {
    bool any = false;
    for (int i = 0; i < p->n_segment; i++)
        any = any || p->segments[i].head_row < p->segments[i].n_row;
    return !any ? 0 : p->hidden ? MESSAGE_HIDDEN : p->n_best ? MESSAGE_BEST : MESSAGE_LOGITS;
}

/* Gathers the segments and their tokens. */
static nib_status gather(pipeline *to, const pass *p, int64_t *n_row, nib_error *err) {
    size_t at = 0, n = 0;
    for (int i = 0; i < p->n_segment; i++)
        n += (size_t)p->segments[i].n_row;
    if (mem_grow((void **)&to->segments, &to->cap_segment, (size_t)p->n_segment + 1, sizeof *to->segments) ||
        mem_grow((void **)&to->tokens, &to->cap_token, n + 2, sizeof *to->tokens))
        return nib_fail_nomem(err, n * sizeof *to->tokens, "the rows of a pass");
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        to->segments[i] = (message_segment){.table = s->kv->number,
                                            .generated = s->generated,
                                            .position = s->position,
                                            .length = s->length,
                                            .n_row = s->n_row,
                                            .head_row = s->head_row};
        memcpy(to->tokens + at, s->tokens, (size_t)s->n_row * sizeof *s->tokens);
        at += (size_t)s->n_row;
    }
    to->tokens[n] = to->tokens[n + 1] = 0; /* padding */
    *n_row = (int64_t)n;
    return NIB_OK;
}

static nib_status send_pass(void *user, const pass *p, backend *by, nib_error *err) {
    pipeline *to = user;
    const float *stream;
    int64_t n_row = 0;
    if (to->broken)
        return break_off(to, NIB_E_FAILED, err);
    NIB_TRY(gather(to, p, &n_row, err));
    NIB_TRY(by->kind->read_stream(by, 0, n_row, &stream, err));
    nib_status status = kv_log_take(to->log, &to->calls, &to->cap_call, &to->n_call, err);
    if (status != NIB_OK)
        return break_off(to, status, err);
    const link_part parts[] = {{to->calls, to->n_call},
                               {to->segments, (size_t)p->n_segment * sizeof *to->segments},
                               {to->tokens, message_padded((size_t)n_row * sizeof *to->tokens)},
                               {stream, (size_t)(n_row * to->stream_width) * sizeof *stream}};
    const message_header head = {.kind = MESSAGE_PASS,
                                 .n_segment = p->n_segment,
                                 .n_best = p->n_best,
                                 .wants = wants(p),
                                 .pass = ++to->n_pass,
                                 .n_row = n_row,
                                 .n_call = to->n_call};
    to->n_call = 0;
    status = message_send(&to->link, head, parts, 4, err);
    return status == NIB_OK ? NIB_OK : break_off(to, status, err);
}

/* ---- results ---- */

/* Gives the rows of a message to the pass's receiver. */
static nib_status give(const pass *p, const message *m, int64_t n_vocab, nib_error *err) {
    const message_header *h = &m->head;
    const int32_t *ids = (const int32_t *)(const void *)m->body;
    const float *rows = (const float *)(const void *)m->body;
    const uint64_t n = (uint64_t)h->n_row;
    if (h->kind == MESSAGE_HIDDEN && p->hidden && h->n_byte == n * (uint64_t)h->width * sizeof *rows) {
        p->hidden->receive(p->hidden->user, h->row, h->n_row, rows, h->width);
        return NIB_OK;
    }
    if (h->segment < 0 || h->segment >= p->n_segment)
        return nib_fail(err, NIB_E_FAILED, "expected rows of %d segments, found segment %d", p->n_segment,
                        h->segment);
    if (h->kind == MESSAGE_BEST && p->n_best && h->n_byte == n * (uint64_t)p->n_best * 8)
        return p->best(p->user, h->segment, h->row, h->n_row, ids, rows + n * (uint64_t)p->n_best, err);
    const bool whole = h->kind == MESSAGE_LOGITS && h->n_byte == n * (uint64_t)n_vocab * sizeof *rows;
    if (whole && p->logits && n == 1) {
        memcpy(p->logits, rows, h->n_byte);
        return NIB_OK;
    }
    if (whole && p->rows)
        return p->rows(p->user, h->segment, h->row, h->n_row, rows, err);
    return nib_fail(err, NIB_E_FAILED, "expected results of a pass, found a message of kind %d", h->kind);
}

static nib_status take_results(void *user, const pass *p, nib_error *err) {
    pipeline *from = user;
    nib_status status = NIB_OK;
    for (;;) {
        const nib_status received = inbox_take(from->inbox, from->n_pass, &from->got, NULL, err);
        if (received != NIB_OK)
            return break_off(from, received, err);
        if (from->got.head.kind == MESSAGE_DONE)
            break;
        if (status == NIB_OK)
            status = give(p, &from->got, from->n_vocab, err);
    }
    return status == NIB_OK ? of_rank(&from->got.head, err) : status;
}

/* ---- its life ---- */

static void close_links(void *user) {
    pipeline_close(user);
}

static nib_status check_links(void *user, nib_error *err) {
    pipeline *p = user;
    return inbox_is_over(p->inbox) ? nib_fail(err, NIB_E_IO, "a rank of the model has ended") : NIB_OK;
}

void pipeline_close(pipeline *p) {
    if (!p)
        return;
    heartbeat_end(p->lives);
    link_shut(&p->link);
    inbox_close(p->inbox);
    link_close(&p->link);
    processes_end(&p->others);
    kv_log_close(p->log);
    message_clear(&p->got);
    mem_free(p->calls);
    mem_free(p->segments);
    mem_free(p->tokens);
    mem_free(p);
}

nib_status pipeline_open(const cluster_setup *s, const cluster_places *places, pipeline **out,
                         nib_error *err) {
    const char *path = s->options.program ? s->options.program : "nibble";
    pipeline *p = mem_calloc(1, sizeof *p);
    if (!p)
        return nib_fail_nomem(err, sizeof *p, "a pipeline");
    int controls[CLUSTER_MAX_RANK];
    p->link = (rank_link){-1, -1, -1};
    p->links = (step_links){.first = s->ranks[0].stage.first,
                            .end = s->ranks[0].stage.end,
                            .send = send_pass,
                            .results = take_results,
                            .user = p};
    nib_status status = kv_log_open(&p->log, err);
    if (status == NIB_OK)
        status = processes_start(&p->others, path, places, &p->link, controls, err);
    if (status == NIB_OK)
        status = heartbeat_watch(controls, places->n - 1, &p->link, &p->lives, err);
    if (status == NIB_OK)
        status = inbox_open(&p->link, &p->inbox, err);
    if (status == NIB_OK && (status = setup_send(&p->link, s, err)) != NIB_OK)
        status = break_off(p, status, err);
    if (status == NIB_OK)
        *out = p;
    else
        pipeline_close(p);
    return status;
}

nib_status pipeline_join(pipeline *p, nib_engine *e, nib_error *err) {
    const engine_parts parts = engine_parts_of(e);
    const backend *by = parts.step->backend;
    const message_header head = {.kind = MESSAGE_SYNC,
                                 .n_pass = by->rows.n_pass,
                                 .max_generated = by->max_generated,
                                 .by_role = by->by_role};
    nib_status status = message_send(&p->link, head, NULL, 0, err);
    if (status == NIB_OK)
        status = inbox_take(p->inbox, INBOX_ANY, &p->got, NULL, err);
    if (status != NIB_OK)
        return break_off(p, status, err);
    NIB_TRY(of_rank(&p->got.head, err));
    p->stream_width = model_reg_width(parts.m, REG_X);
    p->n_vocab = model_hparams(parts.m)->n_vocab;
    const engine_pipeline with = {&p->links, p->log, check_links, close_links, p};
    engine_join(e, &with, p->got.head.n_pass, p->got.head.max_generated);
    return NIB_OK;
}
