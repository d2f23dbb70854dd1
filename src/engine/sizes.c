/* sizes.c - how long the context is, and how many rows go through the blocks together, when nobody said.
 *
 * The context is what the model was made for within reason. Under a cap that cannot hold the whole model
 * beside it, keys and values take at most a quarter of the cap: the rest keeps weights from being read again
 * for each token.
 *
 * While everything is resident a pass has the default number of rows, in cells of 64, without a cap of 128.
 * What is streamed is read anew for every pass, and, when a block is larger than the
 * pager's ring, for every cell: so there a longer prompt is given more rows at a time, for a small share of
 * the cap. A block that the ring holds needs only the residual stream and the rotary tables of more rows; a
 * larger one needs all registers of more rows in a cell. */
#include "engine/state.h"

#include "base/num.h"
#include "exec/shortlist.h"
#include "plan/residency.h"
#include "profile/machine.h"

#include <string.h>

enum {
    USUAL_CONTEXT = 4096,
    MIN_CONTEXT = 256, /* where it fits */
    CONTEXT_STEP = 64,
    CONTEXT_SHARE = 4, /* of the cap */
    MACHINE_SHARE = 8, /* of the machine's free memory, left to others */
    SHARE = 32,        /* of the cap, for more rows */
    STEP = 16,         /* rows are added by so many */
    SLACK = 1 << 20, /* lists that are charged later, and what becomes resident meanwhile; as a plan counts */
    MIN_CELL = 8,
    MIN_PASS = 32
};

/* What is left under the cap, also where the ledger has none because only a plan is made. */
static uint64_t room(const nib_engine *e) {
    const uint64_t cap = e->options.ram, held = ledger_promised(e->ledger, NIB_TIER_RAM);
    if (cap == NIB_AUTO || ledger_cap(e->ledger, NIB_TIER_RAM) != NIB_AUTO)
        return ledger_free(e->ledger, NIB_TIER_RAM);
    return cap > held + LEDGER_RUNTIME_MARGIN ? cap - held - LEDGER_RUNTIME_MARGIN : 0;
}

/* What the activations of such passes are promised. */
static uint64_t pass_bytes(const nib_engine *e, int n_thread, int64_t n_pass, int64_t n_cell) {
    const backend_setup setup = engine_backend_setup(e, n_thread);
    return e->kind->row_bytes(&setup, &(backend_rows){n_pass, n_cell, engine_logits_rows(e)}, 0, NULL);
}

/* before: what is charged before the weights are loaded, beside what loading takes; after: what is charged
 * when they are there, and takes its place. */
static bool will_stream(const nib_engine *e, const pager_need *need, uint64_t before, uint64_t after) {
    const uint64_t left = room(e);
    uint64_t whole;
    if (e->kept)
        return true;
    return left != NIB_AUTO && (!num_add_u64(residency_whole(need, after), need->tables + SLACK, &whole) ||
                                !num_add_u64(whole, before, &whole) || whole > left);
}

void engine_rows_streamed(const nib_engine *e, int n_thread, uint64_t cap, const pager_need *need,
                          int64_t *n_pass, int64_t *n_cell) {
    const int64_t n_batch = e->options.n_batch, n_ctx = e->options.n_ctx;
    *n_pass = n_batch;
    *n_cell = engine_cell_rows(&e->options);
    if (!e->free_batch || cap == NIB_AUTO)
        return;
    const uint64_t base = pass_bytes(e, n_thread, *n_pass, *n_cell);
    if (need->block_in_ring) {
        const uint64_t row = pass_bytes(e, n_thread, *n_pass + STEP, *n_cell) - base;
        *n_pass = NUM_MIN(n_ctx, n_batch + (int64_t)(cap / SHARE / NUM_MAX(row, 1)) * STEP);
    } else {
        const uint64_t row = pass_bytes(e, n_thread, *n_pass, *n_cell + STEP) - base;
        *n_cell = NUM_MIN(n_batch, *n_cell + (int64_t)(cap / SHARE / NUM_MAX(row, 1)) * STEP);
    }
}

/* What a plan keeps, of all blocks. */
static uint64_t kept_bytes(const nib_engine *e) {
    uint64_t sum = 0;
    for (int b = 0; e->kept && b < model_n_block(e->m); b++)
        sum += NUM_MIN(e->kept[b], layout_block(e->layout, b)->bytes);
    return sum;
}

/* What is charged when nothing but the least of the weights stays, or what a plan keeps; UINT64_MAX: it
 * overflows. */
static uint64_t min(const nib_engine *e, const pager_need *need, uint64_t session, int64_t n_pass,
                    int64_t n_cell) {
    const uint64_t rows = pass_bytes(e, pool_size(e->threads), n_pass, n_cell);
    const uint64_t parts[] = {need->tables, min_residency(need, session), kept_bytes(e), rows};
    uint64_t all = SLACK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!num_add_u64(all, parts[i], &all))
            return UINT64_MAX;
    return all;
}

/* A slow prompt rather than none. */
bool engine_rows_halve(int64_t *n_pass, int64_t *n_cell) {
    if (*n_cell > MIN_CELL)
        *n_cell /= 2;
    else if (*n_pass > MIN_PASS)
        *n_pass /= 2;
    else
        return false;
    *n_cell = NUM_MIN(*n_cell, *n_pass);
    return true;
}

void engine_rows(const nib_engine *e, uint64_t session, int64_t *n_pass, int64_t *n_cell) {
    const int n_thread = pool_size(e->threads);
    const uint64_t cap = ledger_cap(e->ledger, NIB_TIER_RAM);
    *n_pass = e->options.n_batch;
    *n_cell = engine_cell_rows(&e->options);
    if (cap == NIB_AUTO || !e->options.stream)
        return;
    const uint64_t base = pass_bytes(e, n_thread, *n_pass, *n_cell);
    const pager_need need = pager_needs(e->layout, n_thread);
    if (!will_stream(e, &need, base, session))
        return;
    engine_rows_streamed(e, n_thread, cap, &need, n_pass, n_cell);
    while (e->free_batch && min(e, &need, session, *n_pass, *n_cell) > room(e) &&
           engine_rows_halve(n_pass, n_cell))
        ;
}

int64_t engine_usual_context(const model *m) {
    const int64_t trained = model_hparams(m)->n_ctx_train;
    return trained > 0 ? NUM_MIN(trained, (int64_t)USUAL_CONTEXT) : USUAL_CONTEXT;
}

/* Positions, at most `most`, of each session within n_byte. What one takes is a constant and about as much
 * for each position, so a share of `most` by bytes is too many still, and soon few too many. */
static int64_t positions(const nib_engine *e, int64_t max, uint64_t n_byte) {
    while (max > CONTEXT_STEP) {
        uint64_t bytes;
        const bool counted = engine_sessions_bytes(e, e->kv_type, max, &bytes, NULL) == NIB_OK;
        if (counted && bytes <= n_byte)
            break;
        const double share = counted ? (double)n_byte / (double)bytes : 0.5;
        const int64_t fewer = (int64_t)((double)max * share) + 1; /* rounding never leaves one out */
        max = NUM_MIN(fewer, max - 1) / CONTEXT_STEP * CONTEXT_STEP;
    }
    return NUM_MAX(max, (int64_t)CONTEXT_STEP);
}

/* What the sessions may take beside the weights and the rows of a pass; NIB_AUTO: nothing is scarce. Without
 * a cap only the whole of a long context can be. */
static uint64_t room_for_sessions(const nib_engine *e, int64_t n, bool whole) {
    const nib_engine_options *o = &e->options;
    const int n_thread = pool_size(e->threads);
    const int64_t n_pass = NUM_MIN(o->n_batch, n), n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    const uint64_t rows = pass_bytes(e, n_thread, n_pass, n_cell);
    uint64_t session, left = room(e);
    machine here;
    if (o->ram == NIB_AUTO && !whole)
        return NIB_AUTO;
    const pager_need need = pager_needs(e->layout, n_thread);
    if (o->ram == NIB_AUTO) {
        machine_look(&here);
        left = here.ram_free ? here.ram_free - here.ram_free / MACHINE_SHARE : NIB_AUTO;
    }
    const uint64_t all = need.image + need.tables + rows + SLACK;
    const bool counted = engine_sessions_bytes(e, e->kv_type, n, &session, NULL) == NIB_OK;
    if (left == NIB_AUTO || (!counted && !whole) ||
        (counted && !will_stream(e, &need, rows, session) && o->ram != NIB_AUTO))
        return NIB_AUTO;
    const bool streams = o->stream && o->ram != NIB_AUTO;
    const uint64_t others = streams ? min(e, &need, 0, n_pass, n_cell) : all;
    const uint64_t spare = whole ? others + SLACK : others; /* a plan counts a little more */
    const uint64_t beside = left > spare ? left - spare : 0;
    return streams && !whole ? NUM_MIN(o->ram / CONTEXT_SHARE, beside) : beside;
}

int64_t engine_context(const nib_engine *e) {
    const nib_engine_options *o = &e->options;
    const hparams *hp = model_hparams(e->m);
    const bool whole = o->n_ctx == NIB_CTX_WHOLE;
    int64_t n = engine_usual_context(e->m);
    if (whole && hp->n_ctx_train > 0)
        n = hp->n_ctx_max > 0 ? NUM_MIN(hp->n_ctx_max, hp->n_ctx_train) : hp->n_ctx_train;
    if (!whole && o->max_n_ctx > 0)
        n = NUM_MIN(n, num_round_up(o->max_n_ctx, CONTEXT_STEP));
    const uint64_t max = room_for_sessions(e, n, whole);
    if (max == NIB_AUTO)
        return n;
    const int64_t fits = NUM_MIN(n, NUM_MAX(positions(e, n, max), (int64_t)MIN_CONTEXT));
    if (fits < n && whole)
        log_line(&e->log, "the context has %lld of the model's %lld positions, for which %s has room",
                 (long long)fits, (long long)n, o->ram == NIB_AUTO ? "the machine's memory" : "the cap");
    else if (fits < n)
        log_line(&e->log, "the context has %lld positions, for which the cap has room; -c N asks for more",
                 (long long)fits);
    return fits;
}

/* ---- the output head ---- */

uint64_t engine_shortlist_bytes(const nib_engine *e, uint64_t *staging) {
    uint64_t bytes = 0;
    *staging = 0;
    if (e->n_best && !e->has_sketch)
        e->kind->shortlist_bytes(e->layout,
                                 e->options.n_thread ? e->options.n_thread : thread_physical_cores(),
                                 e->n_best, &bytes, staging);
    return bytes;
}

bool engine_has_room(const nib_engine *e, uint64_t session) {
    const int n_thread = pool_size(e->threads);
    const int64_t n_pass = NUM_MIN(e->options.n_batch, e->options.n_ctx);
    const int64_t n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    if (e->options.ram == NIB_AUTO)
        return true;
    const pager_need need = pager_needs(e->layout, n_thread);
    const uint64_t rows = pass_bytes(e, n_thread, n_pass, n_cell);
    return !will_stream(e, &need, rows, session) ||
           (e->options.stream && min(e, &need, session, n_pass, n_cell) <= room(e));
}

/* Under a cap: where the model and the sketch fit it together, or where the model does not fit and the sketch
 * does, so that the head need not be streamed. */
static bool helps(const nib_engine *e, uint64_t sketch, uint64_t staging) {
    const nib_engine_options *o = &e->options;
    const int n_thread = pool_size(e->threads);
    const int64_t n_pass = NUM_MIN(o->n_batch, o->n_ctx), n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    uint64_t session;
    if (o->ram == NIB_AUTO || engine_sessions_bytes(e, e->kv_type, o->n_ctx, &session, NULL) != NIB_OK)
        return false;
    const pager_need need = pager_needs(e->layout, n_thread);
    const uint64_t rows = pass_bytes(e, n_thread, n_pass, n_cell);
    if (!will_stream(e, &need, rows + sketch, session))
        return true;
    /* where more than a few are wanted, the rows on disk of a small head cost more than the head */
    const weight *head = NULL;
    layout_head(e->layout, &head);
    if (e->n_best > SHORTLIST_FEW && (!head || head->bytes < need.image / 2))
        return false;
    const uint64_t running = min(e, &need, session, n_pass, n_cell), loading = staging + SLACK;
    return will_stream(e, &need, rows, session) && o->stream && running < UINT64_MAX / 2 &&
           NUM_MAX(running, loading) + sketch <= room(e);
}

/* What asks for no more than the file's own weights; a plan that rounds them decides for itself. */
static bool is_plain(const nib_engine *e) {
    const nib_plan_options *how = e->options.planning;
    return e->options.activation != 4 &&
           (!how || ((!how->quality || !strcmp(how->quality, "lossless")) && how->speed <= 0 &&
                     (how->mode | 32) != 'b' && (how->mode | 32) != 'c'));
}

static nib_status settle_by_plan(nib_engine *e, const plan *p, nib_error *err) {
    if (p->n_best == 0)
        return NIB_OK;
    if (e->options.shortlist == NIB_SHORTLIST_OFF)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan has the output head in two steps, and the shortlist is off: make a plan "
                        "without it");
    if (e->options.n_best == 0 || e->options.n_best > p->n_best)
        return nib_fail(
            err, NIB_E_USAGE,
            "the plan is for the best %d tokens of each step (top-k), and %s asked for: make a plan "
            "for those",
            p->n_best, e->options.n_best ? "more were" : "all were");
    e->n_best = p->n_best;
    return NIB_OK;
}

nib_status engine_settle_shortlist(nib_engine *e, const plan *p, nib_error *err) {
    const nib_engine_options *o = &e->options;
    uint64_t bytes, staging;
    if (e->n_best)
        return NIB_OK;
    if (p)
        NIB_TRY(settle_by_plan(e, p, err));
    else if (o->shortlist != NIB_SHORTLIST_OFF && is_plain(e))
        e->n_best = o->n_best;
    if (!e->n_best)
        return NIB_OK;
    const bool can = e->kind->shortlist_bytes &&
                     e->kind->shortlist_bytes(e->layout, pool_size(e->threads), e->n_best, &bytes, &staging);
    if (p && !can)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan has the output head in two steps, which this one cannot have");
    if (!can || (!p && o->shortlist == NIB_SHORTLIST_AUTO && !helps(e, bytes, staging)))
        e->n_best = 0;
    if (!e->n_best)
        return NIB_OK;
    layout *with;
    NIB_TRY(layout_with_shortlist(e->layout, true, &with, err));
    return engine_set_layout(e, with, err);
}
