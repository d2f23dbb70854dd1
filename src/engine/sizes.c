/* sizes.c - defaults for the context and for the rows of a pass.
 * The default context is the trained one, within reason. Under a cap that cannot hold the whole model beside
 * it, keys and values take at most a quarter of the cap; the rest saves weights from being read again for
 * each token. While everything is resident, a pass has the default number of rows, in cells of 64 rows (128
 * without a cap). A cell is the rows that go through a block together. Streamed weights are read again in
 * every pass and, if a block is larger than the pager's ring, in every cell. So a longer prompt then gets
 * more rows at a time, for a small share of the cap. A block that fits the ring needs only the residual
 * stream and the rotary tables of more rows; a larger one needs all registers of more rows in a cell. */
#include "engine/sizes.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/kv_auto.h"
#include "engine/packed_folder.h"
#include "engine/sessions.h"
#include "plan/homes.h"
#include "profile/machine.h"

#include "nib_tools.h"

#include <string.h>

enum {
    SMALL_KV = 2 << 20, /* bytes up to which a KV cache is f32 by default */
    HEAD_ROWS =
        16, /* rows of logits computed together for evaluation: 16 MiB with the largest vocabularies */
    USUAL_CONTEXT = 4096,
    MIN_CONTEXT = 256, /* if it fits */
    CONTEXT_STEP = 64,
    CONTEXT_SHARE = 4,  /* keys and values take at most this fraction of the cap */
    MACHINE_SHARE = 8,  /* this fraction of the machine's free memory is left to other processes */
    SHARE = 32,         /* fraction of the cap for more rows */
    DEVICE_ROWS = 512,  /* rows with a window that a device under a cap attends to together: enough for it */
    STEP = 16,          /* rows are added in steps of this size */
    ENOUGH_DRAFTS = 32, /* rows of logits of all sequences with their proposed tokens */
    RUNTIME = 8 << 20,  /* bytes of a process before it opens a model */
    MIN_CELL = 8,
    MIN_PASS = 32
};

/* ---- rows ---- */

/* Generation computes one row of logits at a time, in the session's own memory. Under a cap, no memory is
 * reserved for evaluation unless it was requested. */
int64_t sizes_logits_rows(const engine_core *e) {
    const settings *o = &e->resolved;
    if (e->resolved.n_best) /* a shortlist is made row by row */
        return 1;
    int64_t n = e->requested.n_logits > 0          ? e->requested.n_logits
                : o->cap[NIB_TIER_RAM] == NIB_AUTO ? HEAD_ROWS
                                                   : 1;
    if (o->n_draft > 0) /* a streamed head is read once for all of them */
        n = NUM_MAX(n, NUM_MIN(o->n_sequence * (1 + o->n_draft), NUM_MAX(o->n_sequence, ENOUGH_DRAFTS)));
    return NUM_MIN(n, o->n_batch);
}

int64_t sizes_cell_rows(const settings *s) {
    return NUM_MIN(s->n_batch,
                   (int64_t)(s->cap[NIB_TIER_RAM] == NIB_AUTO ? ENGINE_CELL_ROWS_FREE : ENGINE_CELL_ROWS));
}

/* Free bytes under the cap, also if the ledger has no cap because only a plan is made. */
uint64_t sizes_free_ram(const engine_core *e) {
    const uint64_t cap = e->resolved.cap[NIB_TIER_RAM], held = ledger_promised(e->ledger, PLACE_RAM);
    if (cap == NIB_AUTO || ledger_cap(e->ledger, PLACE_RAM) != NIB_AUTO)
        return ledger_free(e->ledger, PLACE_RAM);
    return cap > held + LEDGER_RUNTIME_MARGIN ? cap - held - LEDGER_RUNTIME_MARGIN : 0;
}

/* Whether the rows of a pass are limited because several layers read the keys and values of a window. */
static bool reads_again(const engine_core *e) {
    const kv_formats slide = {.type = TYPE_F16, .slides = e->kind->slides};
    kv_paging p;
    return kv_paging_size(&p, e->layout, slide, false, NULL) == NIB_OK && p.read_again;
}

/* Promised bytes of the activations of passes with these rows. */
uint64_t sizes_pass_bytes(const engine_core *e, int64_t n_pass, int64_t n_cell) {
    const backend_setup setup = core_backend_setup(e, e->resolved.n_thread);
    return e->kind->row_bytes(&setup, &(backend_rows){n_pass, n_cell, sizes_logits_rows(e), 0}, 0, NULL);
}

uint64_t sizes_beside_rows(const engine_core *e, uint64_t cap) {
    const settings *s = &e->resolved;
    const uint64_t rows = sizes_pass_bytes(e, NUM_MIN(s->n_batch, s->n_ctx), sizes_cell_rows(s));
    const uint64_t beside =
        rows + (e->kind->tier == NIB_TIER_RAM ? RUNTIME + LEDGER_RUNTIME_MARGIN + SIZES_SLACK : 0);
    return cap == NIB_AUTO ? NIB_AUTO : cap - NUM_MIN(cap, beside);
}

bool sizes_will_stream(const engine_core *e, const pager_need *need, uint64_t before, uint64_t after) {
    const uint64_t left = sizes_free_ram(e);
    uint64_t whole;
    if (layout_homes(e->layout))
        return true;
    return left != NIB_AUTO && (!num_add_u64(homes_whole(need, after), need->tables + SIZES_SLACK, &whole) ||
                                !num_add_u64(whole, before, &whole) || whole > left);
}

void sizes_rows_streamed(const engine_core *e, uint64_t cap, const pager_need *need, int64_t *n_pass,
                         int64_t *n_cell) {
    const int64_t n_batch = e->resolved.n_batch, n_ctx = e->resolved.n_ctx;
    *n_pass = n_batch;
    *n_cell = sizes_cell_rows(&e->resolved);
    if (!e->resolved.free_batch || cap == NIB_AUTO)
        return;
    const uint64_t base = sizes_pass_bytes(e, *n_pass, *n_cell);
    if (need->block_in_ring) {
        const uint64_t row = sizes_pass_bytes(e, *n_pass + STEP, *n_cell) - base;
        *n_pass = NUM_MIN(reads_again(e) ? n_batch : n_ctx,
                          n_batch + (int64_t)(cap / SHARE / NUM_MAX(row, 1)) * STEP);
    } else {
        const uint64_t row = sizes_pass_bytes(e, *n_pass, *n_cell + STEP) - base;
        *n_cell = NUM_MIN(n_batch, *n_cell + (int64_t)(cap / SHARE / NUM_MAX(row, 1)) * STEP);
    }
}

/* Charged bytes with the minimum of resident weights, or with the plan's; UINT64_MAX: overflow. */
uint64_t sizes_min(const engine_core *e, const pager_need *need, uint64_t session, int64_t n_pass,
                   int64_t n_cell) {
    const uint64_t rows = sizes_pass_bytes(e, n_pass, n_cell);
    const uint64_t resident = layout_home_bytes(e->layout, PLACE_RAM);
    const uint64_t parts[] = {need->tables, homes_min(need, session), resident, rows};
    uint64_t all = SIZES_SLACK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!num_add_u64(all, parts[i], &all))
            return UINT64_MAX;
    return all;
}

/* Fewer rows make prompts slower, but a model that does not fit is refused. */
bool sizes_rows_halve(const engine_core *e, int64_t *n_pass, int64_t *n_cell) {
    const int64_t min_pass = NUM_MAX((int64_t)MIN_PASS, (int64_t)e->resolved.n_sequence);
    if (*n_cell > MIN_CELL)
        *n_cell /= 2;
    else if (*n_pass > min_pass)
        *n_pass = NUM_MAX(*n_pass / 2, min_pass);
    else
        return false;
    *n_cell = NUM_MIN(*n_cell, *n_pass);
    return true;
}

void sizes_rows(const engine_core *e, uint64_t session, int64_t *n_pass, int64_t *n_cell) {
    const uint64_t cap = ledger_cap(e->ledger, PLACE_RAM);
    *n_pass = e->resolved.n_batch;
    *n_cell = sizes_cell_rows(&e->resolved);
    if (cap == NIB_AUTO || !e->resolved.stream)
        return;
    const uint64_t base = sizes_pass_bytes(e, *n_pass, *n_cell);
    const pager_need need = pager_needs(e->layout, e->resolved.n_thread);
    if (!sizes_will_stream(e, &need, base, session))
        return;
    sizes_rows_streamed(e, cap, &need, n_pass, n_cell);
    while (e->resolved.free_batch && sizes_min(e, &need, session, *n_pass, *n_cell) > sizes_free_ram(e) &&
           sizes_rows_halve(e, n_pass, n_cell))
        ;
}

/* ---- the context ---- */

/* The default context if memory is not scarce. */
static int64_t usual_context(const model *m) {
    const int64_t trained = model_hparams(m)->n_ctx_train;
    return trained > 0 ? NUM_MIN(trained, (int64_t)USUAL_CONTEXT) : USUAL_CONTEXT;
}

/* Maximum positions (at most `max`) of each session within n_byte bytes. A session takes a constant and about
 * the same bytes for each position, so scaling `max` by the share of bytes approaches the answer from above
 * in a few rounds. */
static int64_t positions(const engine_core *e, int64_t max, uint64_t n_byte) {
    while (max > CONTEXT_STEP) {
        uint64_t bytes;
        const bool counted = sessions_bytes(e, e->resolved.formats, max, &bytes, NULL) == NIB_OK;
        if (counted && bytes <= n_byte)
            break;
        const double share = counted ? (double)n_byte / (double)bytes : 0.5;
        const int64_t fewer = (int64_t)((double)max * share) + 1; /* + 1: rounding never skips a value */
        max = NUM_MIN(fewer, max - 1) / CONTEXT_STEP * CONTEXT_STEP;
    }
    return NUM_MAX(max, (int64_t)CONTEXT_STEP);
}

/* Bytes that sessions may take besides the weights and the rows of a pass; NIB_AUTO: no limit. Without a cap
 * only the whole trained context (`whole`) can be too large. */
static uint64_t session_bytes_left(const engine_core *e, int64_t n, bool whole) {
    const settings *o = &e->resolved;
    const int64_t n_pass = NUM_MIN(o->n_batch, n), n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    const uint64_t rows = sizes_pass_bytes(e, n_pass, n_cell);
    uint64_t session, left = sizes_free_ram(e);
    machine here;
    if (o->cap[NIB_TIER_RAM] == NIB_AUTO && !whole)
        return NIB_AUTO;
    const pager_need need = pager_needs(e->layout, e->resolved.n_thread);
    if (o->cap[NIB_TIER_RAM] == NIB_AUTO) {
        machine_detect(&here);
        left = here.ram_free ? here.ram_free - here.ram_free / MACHINE_SHARE : NIB_AUTO;
    }
    const uint64_t all = need.image + need.tables + rows + SIZES_SLACK;
    const bool counted = sessions_bytes(e, e->resolved.formats, n, &session, NULL) == NIB_OK;
    if (left == NIB_AUTO || (!counted && !whole) ||
        (counted && !sizes_will_stream(e, &need, rows, session) && o->cap[NIB_TIER_RAM] != NIB_AUTO))
        return NIB_AUTO;
    const bool streams = o->stream && o->cap[NIB_TIER_RAM] != NIB_AUTO;
    const uint64_t others = streams ? sizes_min(e, &need, 0, n_pass, n_cell) : all;
    const uint64_t spare = whole ? others + SIZES_SLACK : others; /* a plan counts slightly more bytes */
    const uint64_t beside = left > spare ? left - spare : 0;
    return streams && !whole ? NUM_MIN(o->cap[NIB_TIER_RAM] / CONTEXT_SHARE, beside) : beside;
}

/* The requested or the default context, whatever fits: the usual one; with NIB_CTX_WHOLE: the trained one. */
static int64_t wanted_context(const engine_core *e) {
    const hparams *hp = model_hparams(e->m);
    const bool whole = e->resolved.n_ctx == NIB_CTX_WHOLE;
    int64_t n = usual_context(e->m);
    if (e->resolved.n_ctx > 0)
        return e->resolved.n_ctx;
    if (whole && hp->n_ctx_train > 0)
        n = hp->n_ctx_train;
    if (hp->n_ctx_max > 0)
        n = NUM_MIN(n, hp->n_ctx_max);
    if (!whole && e->requested.max_n_ctx > 0)
        n = NUM_MIN(n, num_round_up(e->requested.max_n_ctx, CONTEXT_STEP));
    return n;
}

/* The default context, or as much of it as fits. */
static int64_t context(const engine_core *e) {
    const settings *o = &e->resolved;
    const bool whole = o->n_ctx == NIB_CTX_WHOLE;
    const int64_t n = wanted_context(e);
    const uint64_t max = session_bytes_left(e, n, whole);
    if (max == NIB_AUTO)
        return n;
    const int64_t fits = NUM_MIN(n, NUM_MAX(positions(e, n, max), (int64_t)MIN_CONTEXT));
    if (fits < n && whole)
        log_line(&e->log, "the context has %lld of the model's %lld positions, as many as fit %s",
                 (long long)fits, (long long)n,
                 o->cap[NIB_TIER_RAM] == NIB_AUTO ? "the machine's memory" : "the cap");
    else if (fits < n)
        log_line(&e->log, "the context has %lld positions, which fit the cap; -c N requests more",
                 (long long)fits);
    return fits;
}

/* ---- resolving ---- */

/* Whether the default cache is f32: for a small cache f16 saves too little to justify its rounding. Depends
 * on the model only, so that another context does not change the answers. */
static bool small_cache(const engine_core *e) {
    uint64_t bytes;
    return kv_table_bytes(e->layout, kv_formats_all(TYPE_F32), false, usual_context(e->m), &bytes, NULL) ==
               NIB_OK &&
           bytes <= SMALL_KV;
}

/* kv_formats.rows */
static int window_rows(const engine_core *e, bool capped) {
    const int64_t n = NUM_MIN(NUM_MAX(e->resolved.n_batch, (int64_t)e->resolved.n_sequence), INT32_MAX);
    if (reads_again(e))
        return (int)n;
    return e->kind->memory ? (int)NUM_MIN(n, capped ? DEVICE_ROWS : INT32_MAX) : 0;
}

/* Checks a requested context. */
static nib_status check_context(const engine_core *e, nib_error *err) {
    const int64_t n = e->resolved.n_ctx, trained = model_hparams(e->m)->n_ctx_train;
    NIB_TRY(sessions_check_positions(e, e->resolved.formats, n, err));
    if (trained > 0 && n > trained)
        log_line(&e->log,
                 "the context of %lld positions is longer than the %lld that the model was trained with: "
                 "answers beyond them may be poor",
                 (long long)n, (long long)trained);
    return NIB_OK;
}

/* Checks a request for attention to few values. */
static nib_status check_sparse_v(const engine_core *e, nib_error *err) {
    if (e->requested.sparse_v <= 0)
        return NIB_OK;
    if (!e->kind->has_sparse_v)
        return nib_fail(err, NIB_E_USAGE, "sparse values: expected the processor, found the back end '%s'",
                        e->kind->name);
    for (int i = 0; i < model_n_kv_layer(e->m); i++) {
        int64_t k_width, v_width;
        model_kv_widths(e->m, i, &k_width, &v_width);
        if (k_width > 0 && v_width == 0)
            return nib_fail(err, NIB_E_USAGE, "sparse values: those of layer %d are its keys", i);
    }
    return NIB_OK;
}

static bool has_again(const engine_core *e) {
    for (int i = 0; i < model_n_kv_layer(e->m); i++)
        if (kv_paging_reads_again(e->layout, i))
            return true;
    return false;
}

nib_status sizes_formats(engine_core *e, nib_error *err) {
    settings *s = &e->resolved;
    const int n = model_n_kv_layer(e->m);
    /* entries of compressed attention are never in codes */
    const bool is_auto = s->kv == NIB_KV_AUTO && model_hparams(e->m)->pool_all == 0;
    const bool listed = s->kv_layers && *s->kv_layers;
    type_id type;
    bool same = true;
    if (!settings_kv_type(s->kv, &type))
        type = s->kv != NIB_KV_AUTO && small_cache(e) && !e->kind->no_f32_cache ? TYPE_F32 : TYPE_F16;
    const bool capped = s->cap[e->kind->tier] != NIB_AUTO;
    /* a sequence with a recurrent state goes back to a checkpoint, which may be long ago */
    s->formats = (kv_formats){.type = type,
                              .slides = e->kind->slides,
                              .kept = capped && model_state_bytes(e->m) == 0 ? 0 : KV_KEPT,
                              .rows = window_rows(e, capped),
                              .on_disk = s->formats.on_disk};
    if (!is_auto && !listed && !(kv_is_coded(type) && has_again(e)))
        return NIB_OK;
    if (!s->kv_types && !(s->kv_types = mem_alloc((size_t)n)))
        return nib_fail_nomem(err, (size_t)n, "the formats of keys and values");
    memset(s->kv_types, (int)type, (size_t)n);
    if (is_auto)
        NIB_TRY(kv_auto(e, s->kv_types, err));
    if (listed)
        NIB_TRY(kv_formats_parse(s->kv_layers, s->kv_types, n, err));
    for (int i = 0; i < n; i++)
        if (kv_is_coded((type_id)s->kv_types[i]) && kv_paging_reads_again(e->layout, i))
            s->kv_types[i] = TYPE_F16;
    for (int i = 1; i < n; i++)
        same = same && s->kv_types[i] == s->kv_types[0];
    if (same)
        s->formats.type = (type_id)s->kv_types[0];
    s->formats.layers = same ? NULL : s->kv_types;
    s->formats.n_layer = same ? 0 : n;
    return NIB_OK;
}

bool sizes_hold_all(engine_core *e, uint64_t more) {
    const pager_need need = pager_needs(e->layout, e->resolved.n_thread);
    const int64_t n = wanted_context(e), n_pass = NUM_MIN(e->resolved.n_batch, n);
    uint64_t session, before;
    return sizes_formats(e, NULL) == NIB_OK &&
           (e->resolved.cap[NIB_TIER_RAM] == NIB_AUTO ||
            (sessions_bytes(e, e->resolved.formats, n, &session, NULL) == NIB_OK &&
             num_add_u64(more, sizes_pass_bytes(e, n_pass, NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS)),
                         &before) &&
             !sizes_will_stream(e, &need, before, session)));
}

/* The requested number of proposed tokens; negative: only while weights are streamed. Recurrent states do not
 * go back on several devices. */
static int64_t asked_proposals(const engine_core *e) {
    const bool joined = e->stage_end || e->share.n > 1;
    return joined && model_state_bytes(e->m) > 0 ? 0 : e->requested.n_draft;
}

/* Sets the number of proposed tokens. Speculation pays while weights are streamed: a pass then takes about
 * the same time for several rows. Memory for their logits, and for a second recurrent state, is never what
 * makes a model not fit. */
static void resolve_proposals(engine_core *e) {
    settings *s = &e->resolved;
    const int64_t n = asked_proposals(e);
    uint64_t session;
    if (n >= 0 || s->cap[NIB_TIER_RAM] == NIB_AUTO || !s->stream ||
        sessions_bytes(e, s->formats, s->n_ctx, &session, NULL) != NIB_OK)
        return;
    const pager_need need = pager_needs(e->layout, s->n_thread);
    const int64_t n_pass = NUM_MIN(s->n_batch, s->n_ctx), n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    if (!sizes_will_stream(e, &need, sizes_pass_bytes(e, n_pass, n_cell), session))
        return;
    s->n_draft = -n;
    const uint64_t least = sessions_bytes(e, s->formats, s->n_ctx, &session, NULL) == NIB_OK
                               ? sizes_min(e, &need, session, n_pass, n_cell)
                               : UINT64_MAX;
    if (least == UINT64_MAX || least + s->cap[NIB_TIER_RAM] / SHARE > sizes_free_ram(e))
        s->n_draft = 0;
}

/* Whether the model fits the cap with the keys and values of so many layers on the disk, if a pass has the
 * fewest rows. whole: with all weights in RAM. */
static bool fits_with(const engine_core *e, const pager_need *need, int on_disk, bool whole) {
    engine_core with = *e;
    int64_t n_pass = NUM_MIN(e->resolved.n_batch, e->resolved.n_ctx),
            n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    uint64_t session;
    with.resolved.formats.on_disk = on_disk;
    while (e->resolved.free_batch && !whole && sizes_rows_halve(e, &n_pass, &n_cell))
        ;
    if (sessions_bytes(&with, with.resolved.formats, e->resolved.n_ctx, &session, NULL) != NIB_OK)
        return false;
    return whole ? !sizes_will_stream(&with, need, sizes_pass_bytes(&with, n_pass, n_cell), session)
                 : sizes_min(&with, need, session, n_pass, n_cell) <= sizes_free_ram(e);
}

bool sizes_may_use_disk(const engine_core *e) {
    return e->kind->has_disk && engine_has_disk(e) && !e->stage_end;
}

/* A requested context that does not fit RAM, even with all weights streamed, has keys and values on the disk,
 * if files there were asked for. A pass reads all of a weight, and of a context only what is written so far:
 * so they leave RAM first, of as few layers as the weights then fit with, or of all. */
static void resolve_disk(engine_core *e) {
    settings *s = &e->resolved;
    s->formats.on_disk = 0;
    if (!sizes_may_use_disk(e))
        return;
    s->formats.on_disk = NUM_MIN(e->requested.kv_on_disk, kv_paging_max_on_disk(e->layout, s->formats));
    if (s->formats.on_disk || s->cap[NIB_TIER_RAM] == NIB_AUTO)
        return;
    const pager_need need = pager_needs(e->layout, s->n_thread);
    int low = 1, high = kv_paging_max_on_disk(e->layout, s->formats);
    if (fits_with(e, &need, 0, !s->stream) || high == 0)
        return;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (fits_with(e, &need, middle, true))
            high = middle;
        else
            low = middle + 1;
    }
    s->formats.on_disk = low; /* also if not even that fits: a refusal then names the smallest cap with it */
    if (fits_with(e, &need, low, !s->stream))
        log_line(&e->log, "keys and values of %d of %d layers are on the disk: they do not fit RAM", low,
                 model_n_kv_layer(e->m));
}

/* Whether passes with as many rows as are fast leave most of the device's memory to keys and values: the
 * weights take at most half of the cap, and rows a small share of it. */
static bool has_room_for_rows(const engine_core *e) {
    enum { WEIGHTS_SHARE = 2, ROWS_SHARE = 16 };
    const uint64_t cap = e->resolved.cap[e->kind->tier];
    uint64_t row = 0;
    if (cap == NIB_AUTO)
        return true;
    for (int r = 0; r < model_n_reg(e->m); r++)
        row += r == REG_LOGITS ? 0 : (uint64_t)model_reg_width(e->m, (reg)r) * sizeof(float);
    return pager_needs(e->layout, e->resolved.n_thread).image <= cap / WEIGHTS_SHARE &&
           (uint64_t)e->kind->n_batch * row <= cap / ROWS_SHARE;
}

nib_status sizes_resolve(engine_core *e, nib_error *err) {
    settings *s = &e->resolved;
    if (s->free_batch && e->kind->n_batch > 0 && has_room_for_rows(e))
        s->n_batch = e->kind->n_batch;
    if (!s->is_resolved)
        s->n_draft = NUM_MAX(asked_proposals(e), 0);
    NIB_TRY(sizes_formats(e, err));
    NIB_TRY(sessions_check_formats(e, s->formats, err));
    NIB_TRY(check_sparse_v(e, err));
    if (s->n_ctx > 0 && !s->is_resolved)
        NIB_TRY(check_context(e, err));
    if (s->n_ctx <= 0)
        s->n_ctx = context(e);
    if (s->free_batch) /* a single sequence never has more rows; each of several has one */
        s->n_batch = NUM_MAX(NUM_MIN(s->n_batch, s->n_ctx), (int64_t)s->n_sequence);
    if (!s->is_resolved) {
        resolve_disk(e);
        resolve_proposals(e);
    }
    s->is_resolved = true;
    return NIB_OK;
}
