/* rank.c - a rank after the first one: opens its stage, repeats the calls of sequences, and runs passes. It
 * has no rule of its own and ends when the rank before it does. */
#include "nib_tools.h"

#include "base/mem.h"
#include "base/num.h"
#include "cluster/heartbeat.h"
#include "cluster/inbox.h"
#include "cluster/launch.h"
#include "cluster/setup.h"
#include "cluster/shared.h"
#include "engine/engine.h"
#include "engine/rates.h"
#include "state/kv_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank {
    rank_link link;
    heartbeat *lives;
    inbox *inbox;
    int number, n_rank;
    nib_engine *engine;
    engine_parts on;
    step_links links;
    shared_sums sums; /* of ranks that share every layer */
    kv_repeat *tables;
    segment *segments;
    size_t cap_segment;
    message got;
    nib_error failed; /* not NIB_OK: this rank computes no more */
    /* the current pass */
    message_pass in;
    nib_status sent; /* of the message to the next rank */
    bool passed_on;
    nib_log_fn log;
    void *user;
} rank;

static bool is_last(const rank *r) {
    return r->number == r->n_rank - 1;
}

/* The message's first error, or this rank's. */
static void put_error(const rank *r, message_header *head, const nib_error *own) {
    if (own->status == NIB_OK || head->error.status != NIB_OK)
        return;
    head->error = *own;
    head->rank = r->number;
}

static nib_status take_stream(void *user, const pass *p, backend *by, nib_error *err);
static nib_status send_stream(void *user, const pass *p, backend *by, nib_error *err);

/* ---- opening ---- */

static nib_status find_memory(void *user, kv_formats formats, kv_call_memory *out, nib_error *err) {
    rank *r = user;
    sequence_memory memory;
    NIB_TRY(engine_sequence_memory(r->engine, formats, &memory, err));
    *out = (kv_call_memory){memory.pages, memory.layout, memory.device, memory.ledger};
    return NIB_OK;
}

#define GPU_VARIABLE "CUDA_VISIBLE_DEVICES"

/* Leaves the rank's GPU alone among those that the process sees, before CUDA is loaded: a driver takes memory
 * for each. */
static nib_status show_gpu(int gpu, nib_error *err) {
    const char *seen = getenv(GPU_VARIABLE);
    char name[64];
    if (gpu < 0)
        return NIB_OK;
    snprintf(name, sizeof name, "%d", gpu);
    for (int i = 0; seen && *seen; i++) {
        const size_t n = strcspn(seen, ",");
        if (i == gpu)
            snprintf(name, sizeof name, "%.*s", (int)n, seen);
        seen += n + (seen[n] == ',');
    }
    return setenv(GPU_VARIABLE, name, 1) ? nib_fail_nomem(err, sizeof name, "the environment of a rank")
                                         : NIB_OK;
}

/* Whether this host's model is the first one's. */
static nib_status check_model(const char *path, const uint64_t want[2], nib_error *err) {
    const logger log = {0};
    container *c;
    uint64_t got[2];
    NIB_TRY(container_open(path, &log, &c, err));
    const nib_status status = container_content_hash(c, got, err);
    container_close(c);
    NIB_TRY(status);
    return memcmp(got, want, sizeof got) == 0
               ? NIB_OK
               : nib_fail(
                     err, NIB_E_MODEL,
                     "the model %s on this host is another one: expected content %016llx%016llx, as on the "
                     "first host, found %016llx%016llx",
                     path, (unsigned long long)want[0], (unsigned long long)want[1],
                     (unsigned long long)got[0], (unsigned long long)got[1]);
}

static bool has_ended(void *user) {
    const rank *r = user;
    return inbox_is_over(r->inbox);
}

static nib_status open_stage(rank *r, const cluster_setup *s, nib_error *err) {
    const cluster_stage stage = s->ranks[r->number].stage;
    const cluster_place *place = &s->ranks[r->number].place;
    const char *path = place->model[0] ? place->model : s->model;
    const canceller ended = {has_ended, r};
    engine_internal with = {.stage_first = stage.first, .stage_end = stage.end};
    if (s->sums) {
        NIB_TRY(shared_join(&r->sums, s->sums, r->number, r->n_rank, s->width, &ended, err));
        with.share = (model_share){r->number, r->n_rank};
        with.sums = r->sums.of;
    }
    nib_engine_options options = s->options;
    cluster_place_options(place, &options);
    options.log = r->log;
    options.user = r->user;
    NIB_TRY(show_gpu(place->gpu, err));
    if (place->host > 0)
        NIB_TRY(check_model(path, s->content, err));
    NIB_TRY(engine_open(path, &options, &with, &r->engine, err));
    r->on = engine_parts_of(r->engine);
    r->links = (step_links){.first = stage.first,
                            .end = stage.end,
                            .shares = r->sums.of != NULL,
                            .repeats = true,
                            .receive = r->sums.of ? NULL : take_stream,
                            .send = r->sums.of || is_last(r) ? NULL : send_stream,
                            .user = r};
    r->on.step->links = &r->links;
    if (r->sums.of && r->on.step->backend->device != device_host())
        inbox_hurry(r->inbox, r->n_rank);
    return kv_repeat_open(find_memory, r, &r->tables, err);
}

/* Fills in the rates of this machine. */
static nib_status tell_rates(rank *r, nib_error *err) {
    const logger log = {r->log, r->user, false};
    message_header head = r->got.head;
    cluster_rates *all;
    NIB_TRY(rates_read(&r->got, head.n_segment, &all, err));
    if (head.rank < 1 || head.rank >= head.n_segment)
        return nib_fail(err, NIB_E_FAILED, "expected rates for a rank, found rank %d of %d", head.rank,
                        head.n_segment);
    cluster_rates *own = &all[head.rank++];
    rates_here(&log, cluster_threads(own->n_thread, own->n_beside), CLUSTER_READ, CLUSTER_READ, &own->rates);
    own->free = cluster_free(own->n_beside);
    return message_send(&r->link, head, &(link_part){all, head.n_byte}, 1, err);
}

/* Takes the options and passes them on; the next rank opens its stage meanwhile. */
static nib_status set_up(rank *r, nib_error *err) {
    cluster_setup s;
    NIB_TRY(setup_read(&r->got, &s, err));
    r->number = r->got.head.rank;
    r->n_rank = s.n_rank;
    if (!is_last(r)) {
        message_header head = r->got.head;
        head.rank++;
        NIB_TRY(message_send(&r->link, head, &(link_part){r->got.body, r->got.head.n_byte}, 1, err));
    }
    open_stage(r, &s, &r->failed);
    return NIB_OK;
}

static nib_status synchronise(rank *r, nib_error *err) {
    message_header head = r->got.head;
    if (r->failed.status == NIB_OK) {
        const backend *by = r->on.step->backend;
        head.n_pass = NUM_MIN(head.n_pass, by->rows.n_pass);
        head.n_cell = NUM_MIN(head.n_cell, by->rows.n_cell);
        head.n_head = NUM_MIN(head.n_head, by->rows.n_head);
        if (by->max_generated > 0)
            head.max_generated =
                head.max_generated ? NUM_MIN(head.max_generated, by->max_generated) : by->max_generated;
        head.streams = head.streams || pager_streams(r->on.step->pager);
        if (head.by_role != by->by_role)
            nib_fail(&r->failed, NIB_E_DEVICE, "expected kernels as on the first rank, found others");
    }
    put_error(r, &head, &r->failed);
    return message_send(&r->link, head, NULL, 0, err);
}

/* ---- a pass ---- */

static nib_status take_stream(void *user, const pass *p, backend *by, nib_error *err) {
    const rank *r = user;
    const segment *last = &p->segments[p->n_segment - 1];
    return by->kind->write_stream(by, 0, last->row + last->n_row, r->in.stream, err);
}

/* Passes the message on, with this rank's stream instead of the one before; stream NULL: none. */
static nib_status pass_on(rank *r, const float *stream) {
    const message_header *h = &r->got.head;
    const size_t width = (size_t)model_reg_width(r->on.m, REG_X), n = (size_t)h->n_row;
    const link_part parts[] = {{r->got.body, (size_t)((const uint8_t *)r->in.tokens - r->got.body) +
                                                 message_padded(n * sizeof *r->in.tokens)},
                               {stream, stream ? n * width * sizeof *stream : 0}};
    nib_error why;
    r->passed_on = true;
    return r->sent = message_send(&r->link, *h, parts, 2, &why);
}

static nib_status send_stream(void *user, const pass *p, backend *by, nib_error *err) {
    rank *r = user;
    const segment *last = &p->segments[p->n_segment - 1];
    const float *stream;
    NIB_TRY(by->kind->read_stream(by, 0, last->row + last->n_row, &stream, err));
    return pass_on(r, stream) == NIB_OK ? NIB_OK : nib_fail(err, NIB_E_IO, "the next rank has ended");
}

static nib_status send_rows(rank *r, message_header head, const void *ids, const void *rows, size_t each,
                            nib_error *err) {
    const size_t n_byte = (size_t)head.n_row * each;
    const link_part parts[] = {{ids, ids ? n_byte : 0}, {rows, n_byte}};
    r->sent = message_send(&r->link, head, parts, 2, err);
    return r->sent;
}

static nib_status send_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    rank *r = user;
    const message_header head = {.kind = MESSAGE_LOGITS,
                                 .pass = r->got.head.pass,
                                 .segment = segment_index,
                                 .row = row,
                                 .n_row = n_row};
    return send_rows(r, head, NULL, logits, (size_t)model_hparams(r->on.m)->n_vocab * sizeof *logits, err);
}

static nib_status send_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    rank *r = user;
    const message_header head = {
        .kind = MESSAGE_BEST, .pass = r->got.head.pass, .segment = segment_index, .row = row, .n_row = n_row};
    return send_rows(r, head, ids, logits, (size_t)r->got.head.n_best * sizeof *logits, err);
}

static void send_hidden(void *user, int64_t row, int64_t n_row, const float *x, int64_t width) {
    rank *r = user;
    const message_header head = {
        .kind = MESSAGE_HIDDEN, .pass = r->got.head.pass, .row = row, .n_row = n_row, .width = width};
    nib_error why; /* kept in `sent` */
    send_rows(r, head, NULL, x, (size_t)width * sizeof *x, &why);
}

/* Of ranks that share every layer the first one has the hidden states itself. */
static void drop_hidden(void *user, int64_t row, int64_t n_row, const float *x, int64_t width) {
    (void)user, (void)row, (void)n_row, (void)x, (void)width;
}

/* Makes the pass's segments on this rank's tables. */
static nib_status make_segments(rank *r, nib_error *err) {
    const message_header *h = &r->got.head;
    int64_t n_row = 0;
    if (mem_grow((void **)&r->segments, &r->cap_segment, (size_t)h->n_segment + 1, sizeof *r->segments))
        return nib_fail_nomem(err, (size_t)h->n_segment * sizeof *r->segments, "the segments of a pass");
    for (int i = 0; i < h->n_segment; i++) {
        const message_segment *from = &r->in.segments[i];
        kv_table *kv = kv_repeat_table(r->tables, from->table);
        if (!kv || from->n_row < 1 || from->n_row > h->n_row - n_row || from->position < 0 ||
            from->position + from->n_row > kv->n_ctx || from->head_row < 0 || from->head_row > from->n_row)
            return nib_fail(err, NIB_E_FAILED, "expected rows of an open sequence, found table %d",
                            from->table);
        r->segments[i] = (segment){.kv = kv,
                                   .tokens = r->in.tokens + n_row,
                                   .position = from->position,
                                   .length = from->length,
                                   .n_row = from->n_row,
                                   .generated = from->generated,
                                   .head_row = from->head_row};
        n_row += from->n_row;
    }
    if (n_row != h->n_row || n_row > r->on.step->backend->rows.n_pass)
        return nib_fail(err, NIB_E_FAILED, "expected at most %lld rows, found %lld",
                        (long long)r->on.step->backend->rows.n_pass, (long long)h->n_row);
    segments_number(r->segments, h->n_segment);
    return NIB_OK;
}

static nib_status run_pass(rank *r, nib_error *err) {
    const message_header *h = &r->got.head;
    const hidden_receiver hidden = {r->sums.of ? drop_hidden : send_hidden, r};
    const bool results = is_last(r) && !r->sums.of;
    const pass p = {.segments = r->segments,
                    .n_segment = h->n_segment,
                    .n_head = r->on.step->backend->rows.n_head,
                    .rows = results && h->wants == MESSAGE_LOGITS ? send_logits : NULL,
                    .n_best = results && h->wants == MESSAGE_BEST ? h->n_best : 0,
                    .best = send_best,
                    .hidden = (results || r->sums.of) && h->wants == MESSAGE_HIDDEN ? &hidden : NULL,
                    .user = r};
    return step_pass(r->on.step, &p, err);
}

/* Repeats the calls and computes the rows. This rank fails for good if it cannot follow the first one; a
 * pass that fails for another reason is the first rank's to repeat. */
static nib_status take_pass(rank *r, nib_error *err) {
    nib_error why = {NIB_OK, ""};
    r->passed_on = false;
    r->sent = NIB_OK;
    if (r->failed.status == NIB_OK)
        kv_repeat_calls(r->tables, r->in.calls, r->got.head.n_call, &r->failed);
    if (r->failed.status == NIB_OK && r->got.head.error.status == NIB_OK && r->in.stream)
        (void)(make_segments(r, &r->failed) || run_pass(r, &why));
    put_error(r, &r->got.head, &r->failed);
    put_error(r, &r->got.head, &why);
    if (r->sent != NIB_OK)
        return nib_fail(err, r->sent, "the next rank has ended");
    if (!is_last(r))
        return r->passed_on ? NIB_OK : pass_on(r, NULL);
    const message_header *h = &r->got.head;
    const message_header done = {.kind = MESSAGE_DONE, .pass = h->pass, .error = h->error, .rank = h->rank};
    return message_send(&r->link, done, NULL, 0, err);
}

/* The error of the ranks so far, or this rank's, if they have failed because of another only. */
static void add_error(const rank *r, message_header *head, const nib_error *own) {
    if (head->error.status == NIB_E_CANCELLED && own->status != NIB_OK)
        head->error.status = NIB_OK;
    put_error(r, head, own);
}

/* Checks the rows of a visit that a message asks for. */
static void check_rows(const rank *r, nib_error *err) {
    const backend_rows *rows = &r->on.step->backend->rows;
    if (r->links.n_cell < 1 || r->links.n_cell > rows->n_cell || r->links.n_head < 1 ||
        r->links.n_head > rows->n_head)
        nib_fail(err, NIB_E_FAILED,
                 "expected a pass with up to %lld rows of a cell and %lld of the head, found %lld and %lld",
                 (long long)rows->n_cell, (long long)rows->n_head, (long long)r->links.n_cell,
                 (long long)r->links.n_head);
}

/* The same for a rank that shares every layer: all compute at the same time. */
static nib_status share_pass(rank *r, nib_error *err) {
    nib_error why = {NIB_OK, ""};
    const int64_t number = r->got.head.pass;
    if (!is_last(r))
        NIB_TRY(message_send(&r->link, r->got.head, &(link_part){r->got.body, r->got.head.n_byte}, 1, err));
    if (r->failed.status == NIB_OK)
        kv_repeat_calls(r->tables, r->in.calls, r->got.head.n_call, &r->failed);
    r->links.n_cell = r->got.head.n_cell;
    r->links.n_head = r->got.head.n_head;
    r->links.whole = r->got.head.streams;
    if (r->failed.status == NIB_OK)
        check_rows(r, &r->failed);
    sums_begin(r->sums.of, number);
    if (r->failed.status == NIB_OK)
        (void)(make_segments(r, &r->failed) || run_pass(r, &why));
    if (r->failed.status != NIB_OK || why.status != NIB_OK)
        sums_fail(r->sums.of, number);
    message_header done = {.kind = MESSAGE_DONE, .pass = number};
    if (r->number > 1) {
        NIB_TRY(inbox_take(r->inbox, number, &r->got, NULL, err));
        done = r->got.head;
    }
    add_error(r, &done, &r->failed);
    add_error(r, &done, &why);
    return message_send(&r->link, done, NULL, 0, err);
}

static nib_status take(rank *r, nib_error *err) {
    const bool opened = r->tables || r->failed.status != NIB_OK;
    switch (r->got.head.kind) {
    case MESSAGE_RATES: return tell_rates(r, err);
    case MESSAGE_SETUP:
        if (r->n_rank)
            break;
        return set_up(r, err);
    case MESSAGE_SYNC:
        if (!opened)
            break;
        return synchronise(r, err);
    case MESSAGE_PASS:
        if (!opened)
            break;
        NIB_TRY(
            message_read_pass(&r->got, r->engine ? (size_t)model_reg_width(r->on.m, REG_X) : 0, &r->in, err));
        return r->sums.of ? share_pass(r, err) : take_pass(r, err);
    default: break;
    }
    return nib_fail(err, NIB_E_FAILED, "expected a message for a rank, found kind %d", r->got.head.kind);
}

/* Takes messages until the rank before ends. */
static nib_status serve(rank *r, nib_error *err) {
    bool ended = false;
    NIB_TRY(heartbeat_begin(&r->link, &r->lives, err));
    NIB_TRY(inbox_open(&r->link, &r->inbox, err));
    for (;;) {
        NIB_TRY(inbox_take(r->inbox, INBOX_ANY, &r->got, &ended, err));
        if (ended)
            return NIB_OK;
        NIB_TRY(take(r, err));
    }
}

static nib_status find_links(rank_link *out, const char *connections, nib_error *err) {
    if (!strncmp(connections, LAUNCH_PREFIX, sizeof LAUNCH_PREFIX - 1))
        return launch_join(connections, out, err);
    if (sscanf(connections, "%d,%d,%d", &out->in, &out->out, &out->control) != 3)
        return nib_fail(err, NIB_E_USAGE, "a rank: expected IN,OUT,CONTROL, found '%.64s'", connections);
    return NIB_OK;
}

nib_status nib_rank_serve(const char *connections, nib_log_fn log, void *user, nib_error *err) {
    rank r = {.link = {-1, -1, -1}, .log = log, .user = user};
    nib_status status = find_links(&r.link, connections, err);
    if (status != NIB_OK) {
        link_close(&r.link);
        return status;
    }
    status = serve(&r, err);
    link_shut(&r.link); /* first, so that the others end as well */
    heartbeat_end(r.lives);
    inbox_close(r.inbox);
    link_close(&r.link);
    kv_repeat_close(r.tables);
    nib_engine_close(r.engine);
    shared_close(&r.sums);
    mem_free(r.segments);
    message_clear(&r.got);
    return status == NIB_E_IO ? NIB_OK : status; /* a neighbour's end is the first rank's to report */
}
