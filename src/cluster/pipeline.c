/* pipeline.c - see pipeline.h. */
#include "cluster/pipeline.h"

#include "base/mem.h"
#include "base/num.h"
#include "cluster/heartbeat.h"
#include "cluster/inbox.h"
#include "cluster/shared.h"
#include "engine/rates.h"
#include "state/kv_calls.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct pipeline {
    step_links links;
    rank_link link;
    processes others;
    heartbeat *lives;
    inbox *inbox;
    shared_sums sums; /* of ranks that share every layer */
    int64_t n_sent;   /* number of the last part that was sent */
    kv_log *log;
    void *calls; /* not sent yet */
    size_t n_call, cap_call;
    message_segment *segments;
    int32_t *tokens;
    size_t cap_segment, cap_token;
    int64_t stream_width, hidden_width, n_vocab;
    pthread_mutex_t lock; /* of the fields below: passes end on other threads than they begin on */
    bool broken;          /* a connection has failed: no pass can run */
    nib_error why;
};

/* Ends the use of the connections; all later passes fail with the same error. */
static nib_status break_off(pipeline *p, nib_status status, nib_error *err) {
    pthread_mutex_lock(&p->lock);
    if (!p->broken && heartbeat_silent(p->lives))
        processes_kill(&p->others, heartbeat_silent(p->lives), &p->why);
    else if (!p->broken && status == NIB_E_IO)
        processes_blame(&p->others, heartbeat_ended(p->lives), &p->why);
    else if (!p->broken)
        nib_fail(&p->why, status, "%s", err ? err->message : "a rank has failed");
    p->broken = true;
    pthread_mutex_unlock(&p->lock);
    return nib_fail(err, p->why.status, "%s", p->why.message);
}

static bool is_broken(pipeline *p) {
    pthread_mutex_lock(&p->lock);
    const bool broken = p->broken;
    pthread_mutex_unlock(&p->lock);
    return broken;
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
    const float *stream = NULL;
    int64_t n_row = 0;
    if (is_broken(to))
        return break_off(to, NIB_E_FAILED, err);
    NIB_TRY(gather(to, p, &n_row, err));
    if (to->sums.of)
        sums_begin(to->sums.of, p->number);
    else
        NIB_TRY(by->kind->read_stream(by, 0, n_row, &stream, err));
    nib_status status = kv_log_take(to->log, &to->calls, &to->cap_call, &to->n_call, err);
    if (status != NIB_OK)
        return break_off(to, status, err);
    const link_part parts[] = {{to->calls, to->n_call},
                               {to->segments, (size_t)p->n_segment * sizeof *to->segments},
                               {to->tokens, message_padded((size_t)n_row * sizeof *to->tokens)},
                               {stream, stream ? (size_t)(n_row * to->stream_width) * sizeof *stream : 0}};
    const message_header head = {.kind = MESSAGE_PASS,
                                 .n_segment = p->n_segment,
                                 .n_best = p->n_best,
                                 .wants = wants(p),
                                 .pass = p->number,
                                 .n_row = n_row,
                                 .n_cell = to->links.n_cell,
                                 .n_head = to->links.n_head,
                                 .streams = to->links.whole,
                                 .n_call = to->n_call};
    to->n_call = 0;
    to->n_sent = p->number;
    status = message_send(&to->link, head, parts, 4, err);
    return status == NIB_OK ? NIB_OK : break_off(to, status, err);
}

/* ---- results ---- */

/* Gives the rows of a message to the receiver of the pass, whose row `first` is the part's first one. */
static nib_status give(const pipeline *from, const pass *p, int64_t first, const message *m, nib_error *err) {
    const message_header *h = &m->head;
    const int32_t *ids = (const int32_t *)(const void *)m->body;
    const float *rows = (const float *)(const void *)m->body;
    const uint64_t n = (uint64_t)h->n_row;
    const segment *last = &p->segments[p->n_segment - 1];
    const int64_t all = last->row + last->n_row;
    if (h->n_row < 1 || h->n_row > all || h->row < 0 || h->row > all - h->n_row)
        return nib_fail(err, NIB_E_FAILED, "expected results of %lld rows, found %lld from %lld",
                        (long long)all, (long long)h->n_row, (long long)h->row);
    if (h->kind == MESSAGE_HIDDEN && p->hidden && h->width == from->hidden_width &&
        h->n_byte == n * (uint64_t)h->width * sizeof *rows) {
        p->hidden->receive(p->hidden->user, h->row, h->n_row, rows, h->width);
        return NIB_OK;
    }
    const segment *begin = visits_segment(p->segments, p->n_segment, false, &first);
    if (!begin || h->segment < 0 || h->segment >= p->n_segment - (begin - p->segments))
        return nib_fail(err, NIB_E_FAILED, "expected rows of %d segments, found segment %d", p->n_segment,
                        h->segment);
    const int at = (int)(begin - p->segments) + h->segment;
    const int64_t row = h->row + (h->segment == 0 ? first : 0), of = p->segments[at].n_row;
    if (row > of - h->n_row)
        return nib_fail(err, NIB_E_FAILED, "expected results of a segment of %lld rows, found %lld from %lld",
                        (long long)of, (long long)h->n_row, (long long)row);
    if (h->kind == MESSAGE_BEST && p->n_best && h->n_byte == n * (uint64_t)p->n_best * 8)
        return p->best(p->user, at, row, h->n_row, ids, rows + n * (uint64_t)p->n_best, err);
    const bool whole = h->kind == MESSAGE_LOGITS && h->n_byte == n * (uint64_t)from->n_vocab * sizeof *rows;
    if (whole && p->logits && n == 1) {
        memcpy(p->logits, rows, h->n_byte);
        return NIB_OK;
    }
    if (whole && p->rows)
        return p->rows(p->user, at, row, h->n_row, rows, err);
    return nib_fail(err, NIB_E_FAILED, "expected results of a pass, found a message of kind %d", h->kind);
}

static nib_status take_results(void *user, const pass *p, int64_t number, int64_t row, nib_error *err) {
    pipeline *from = user;
    nib_status status = NIB_OK;
    message got = {0};
    for (;;) {
        const nib_status received = inbox_take(from->inbox, number, &got, NULL, err);
        if (received != NIB_OK) {
            status = break_off(from, received, err);
            break;
        }
        if (got.head.kind == MESSAGE_DONE) {
            status = status == NIB_OK ? of_rank(&got.head, err) : status;
            break;
        }
        if (status == NIB_OK && p)
            status = give(from, p, row, &got, err);
    }
    inbox_return(from->inbox, &got);
    return status;
}

/* Ends a part of ranks that share every layer, after this rank has failed: the others wait for its sums. */
static nib_status abandon(void *user, int64_t number, nib_status status, nib_error *err) {
    pipeline *p = user;
    nib_error theirs = {NIB_OK, ""};
    if (p->n_sent != number)
        return status;
    sums_fail(p->sums.of, number);
    take_results(p, NULL, number, 0, &theirs);
    const bool is_cause = theirs.status != NIB_OK && theirs.status != NIB_E_CANCELLED;
    return is_cause ? nib_fail(err, theirs.status, "%s", theirs.message) : status;
}

/* ---- its life ---- */

static bool has_ended(void *user) {
    const pipeline *p = user;
    return inbox_is_over(p->inbox);
}

rank_sums *pipeline_sums(const pipeline *p) {
    return p->sums.of;
}

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
    shared_close(&p->sums);
    mem_free(p->calls);
    mem_free(p->segments);
    mem_free(p->tokens);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* What passes do with the other ranks. */
static step_links links_of(pipeline *p, const cluster_setup *s) {
    step_links l = {
        .first = s->ranks[0].stage.first, .end = s->ranks[0].stage.end, .results = take_results, .user = p};
    if (s->options.split == NIB_SPLIT_TENSOR) {
        l.shares = true;
        l.receive = send_pass;
        l.abandon = abandon;
    } else {
        l.send = send_pass;
    }
    return l;
}

nib_status pipeline_open(const nib_engine_options *o, const cluster_places *places, pipeline **out,
                         nib_error *err) {
    const canceller cancel = {o->cancel, o->user};
    const processes_how how = {o->program ? o->program : "nibble", o->launcher ? o->launcher : "ssh", places,
                               &cancel};
    pipeline *p = mem_calloc(1, sizeof *p);
    if (!p)
        return nib_fail_nomem(err, sizeof *p, "a pipeline");
    int controls[CLUSTER_MAX_RANK];
    p->link = (rank_link){-1, -1, -1};
    pthread_mutex_init(&p->lock, NULL);
    nib_status status = kv_log_open(&p->log, err);
    if (status == NIB_OK)
        status = processes_start(&p->others, &how, &p->link, controls, err);
    const bool started = status == NIB_OK;
    if (started)
        status = heartbeat_watch(controls, places->n - 1, &p->link, &p->lives, err);
    for (int i = 0; i < places->n - 1 && started && status != NIB_OK; i++)
        close(controls[i]);
    if (status == NIB_OK)
        status = inbox_open(&p->link, &p->inbox, err);
    if (status == NIB_OK)
        *out = p;
    else
        pipeline_close(p);
    return status;
}

nib_status pipeline_rates(pipeline *p, const nib_engine_options *o, const cluster_places *places,
                          plan_rates *rates, uint64_t *free, nib_error *err) {
    const logger log = {o->log, o->user, o->log_details};
    const int n = places->n;
    cluster_rates *all = mem_array((size_t)n, sizeof *all), *got = NULL;
    message m = {0};
    if (!all)
        return nib_fail_nomem(err, (size_t)n * sizeof *all, "the rates of ranks");
    memset(all, 0, (size_t)n * sizeof *all);
    for (int i = 0; i < n; i++) {
        all[i].n_thread = o->n_thread;
        all[i].n_beside = places->place[i].n_beside;
    }
    nib_status status = rates_send(&p->link, all, n, err);
    if (status == NIB_OK)
        status = inbox_take(p->inbox, INBOX_ANY, &m, NULL, err);
    if (status == NIB_OK)
        status = rates_read(&m, n, &got, err);
    rates_here(&log, cluster_threads(o->n_thread, places->place[0].n_beside), CLUSTER_READ, CLUSTER_READ,
               rates);
    free[0] = cluster_free(places->place[0].n_beside);
    for (int i = 1; i < n && status == NIB_OK; i++) {
        rates[i] = got[i].rates;
        free[i] = got[i].free;
    }
    message_clear(&m);
    mem_free(all);
    return status == NIB_OK ? NIB_OK : break_off(p, status, err);
}

nib_status pipeline_begin(pipeline *p, const cluster_setup *from, nib_error *err) {
    cluster_setup s = *from;
    const canceller ended = {has_ended, p};
    p->links = links_of(p, from);
    if (s.options.split == NIB_SPLIT_TENSOR) {
        NIB_TRY(shared_make(&p->sums, s.n_rank, s.width, &ended, err));
        s.sums = p->sums.path;
    }
    const nib_status status = setup_send(&p->link, &s, err);
    return status == NIB_OK ? NIB_OK : break_off(p, status, err);
}

nib_status pipeline_join(pipeline *p, nib_engine *e, nib_error *err) {
    const engine_parts parts = engine_parts_of(e);
    const backend *by = parts.step->backend;
    const message_header head = {.kind = MESSAGE_SYNC,
                                 .n_pass = by->rows.n_pass,
                                 .max_generated = by->max_generated,
                                 .n_cell = by->rows.n_cell,
                                 .n_head = by->rows.n_head,
                                 .by_role = by->by_role,
                                 .streams = pager_streams(parts.step->pager)};
    message got = {0};
    nib_status status = message_send(&p->link, head, NULL, 0, err);
    if (status == NIB_OK)
        status = inbox_take(p->inbox, INBOX_ANY, &got, NULL, err);
    if (status != NIB_OK)
        return break_off(p, status, err);
    const message_header all = got.head;
    message_clear(&got);
    NIB_TRY(of_rank(&all, err));
    p->stream_width = model_reg_width(parts.m, REG_X);
    p->hidden_width = nib_engine_info(e)->d_embed;
    p->n_vocab = model_hparams(parts.m)->n_vocab;
    const engine_pipeline with = {&p->links, p->log, check_links, close_links, p};
    /* weights that are streamed are read once for all rows */
    if (p->sums.of && by->device != device_host())
        inbox_hurry(p->inbox, p->others.n + 1);
    p->links.n_part = !p->sums.of && by->device == device_host() && !all.streams ? by->rows.n_cell : 0;
    p->links.n_pass = p->sums.of ? 1 : p->others.n + 1;
    p->links.n_cell = p->sums.of ? all.n_cell : 0;
    p->links.n_head = p->sums.of ? all.n_head : 0;
    p->links.whole = p->sums.of && all.streams;
    engine_join(e, &with, all.n_pass, all.max_generated);
    return NIB_OK;
}
