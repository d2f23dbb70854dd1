/* workload.c - the plan of many requests together (plan/flow.h), for a model and a machine.
 *
 * A page of the weights is a "layer" of the program: all pages are alike, and each is needed once in a sweep.
 * The keys and values of a sequence are whole KV pages of its longest positions, beside its tables.
 *
 * Where the processor computes, RAM is the device: nothing crosses a link, and its rate is that of the
 * device's own memory. Keys and values may be on the disk there (kv_formats.on_disk): that takes a stage, and
 * their incomplete pages stay in RAM.
 *
 * Where the options leave formats open (formats.c), all this is done for each that keeps the bound on the
 * loss, and the fastest plan is taken. A format that loses more has to gain something. */
#include "engine/planning/planning.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/packed_folder.h"
#include "engine/sizes.h"
#include "nib_batch.h"
#include "plan/flow.h"
#include "profile/machine.h"
#include "schedule/sweeps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 64, FREE_SHARE = 8, SPARE_LAYERS = 2, MAX_PASS = 4096 };
/* Of the expected rate, where keys and values or weights cross a GPU's link: on an H200 OPT-30B in kv4 made
 * 0.78 of it. */
#define CROSSING 0.8
/* Seconds for a byte of a GPU's resident weights, which the first pass copies: 0.10 a GiB (an H200 with 16
 * cores). */
#define FIRST_COPY 0.093e-9
#define GAIN       1.01 /* of a format that loses more, at least */
#define UNLIKE     1.3  /* numbers of sequences that are worth a comparison differ by this factor */
#define SAME       1e-9 /* relative difference up to which two rates are the same */

/* Of numbers of rows with the same speed the first is chosen: large cells have fewer barriers. */
static const int batches[] = {128, 64, 48, 32, 24, 20, 16, 12, 10, 9, 8, 6, 4, 2, 1};

/* What the program reads of a model and a machine. */
typedef struct facts {
    flow_shape shape;
    flow_rates rates;
    flow_case c;
    flow_caps caps;
    double fixed[FLOW_N_SHARE];
    double sequence; /* bytes of a sequence's keys, values and tables */
    int64_t max_cell;
    bool on_gpu, stages; /* stages: keys and values of layers may be in RAM */
    bool attends;        /* the processor attends to those: it is faster than the link */
    int n_disk;          /* layers whose keys and values may be on the disk; 0: none */
    double stage;        /* bytes in RAM that this needs */
    double disk;         /* bytes on the disk for them */
    double disk_page;    /* bytes on it of a page of all these layers */
    int64_t n_page;      /* pages of a sequence */
    int64_t n_context;   /* pages of a context: a batch reserves whole ones */
    int64_t n_pass;      /* rows of a pass; 0: those that a plan chooses */
    int64_t n_trained;   /* positions that the model was trained with; 0: not known */
    bool guessed;        /* some of the rates were not measured */
    bool bound;          /* homes that this build cannot have count too */
    int format;          /* of planning_formats.list */
} facts;

/* Positions of the longest request. */
static double longest(const nib_workload *w) {
    return w->n_position > 0 ? (double)w->n_position : w->n_prompt + w->n_gen + 0.5;
}

/* Bytes of a sequence's keys and values that do not depend on its length: with codes, its newest positions.
 */
static nib_status fixed_bytes(const engine_core *e, const plan_cache *cache, double *out, nib_error *err) {
    enum { SOME = 16 * KV_BLOCK };
    kv_formats whole = e->resolved.formats;
    uint64_t bytes;
    whole.slides = false;
    whole.on_disk = 0;
    NIB_TRY(kv_table_bytes(e->layout, whole, false, SOME, &bytes, err));
    *out = NUM_MAX((double)bytes - SOME * (double)cache->position, 0);
    return NIB_OK;
}

static nib_status set_shape(const planning *f, const engine_core *e, const nib_workload *w, facts *out,
                            nib_error *err) {
    const plan_question *q = &f->q;
    const plan_cache *cache = &q->caches[0];
    const double pages = (double)num_div_up((int64_t)longest(w), KV_BLOCK);
    double bytes = 0, macs = 0, fixed;
    NIB_TRY(fixed_bytes(e, cache, &fixed, err));
    for (int b = 0; b < q->n_block; b++) {
        bytes += (double)q->blocks[b].choices[0].bytes;
        macs += (double)q->blocks[b].macs;
    }
    const double n = NUM_MAX(bytes / NUM_MAX((double)q->need.max_page, 1), 4);
    out->shape = (flow_shape){.n_layer = (int)n, .weights = bytes / (int)n, .row_ops = 2 * macs / (int)n};
    out->shape.attend_ops = 2 * (double)q->attention_macs / 2 / (int)n; /* half of a prompt's pairs */
    out->sequence = pages * KV_BLOCK * (double)cache->position + fixed + (double)q->session;
    const double held = w->n_prompt + w->n_gen * (out->c.rule == FLOW_REFILL ? 0.5 : 1);
    out->shape.kv = out->sequence / held / (int)n; /* width 0: the working memory of rows is held already */
    return NIB_OK;
}

/* Seconds of a pass's launches of generated rows. */
static double device_launches(const planning *f) {
    double n = 1;
    for (int b = 0; b < f->q.device->n_block; b++)
        n += f->q.device->blocks[b].n_launch;
    return n * f->q.rates.vram_launch;
}

static void set_rates(const planning *f, int n_cached, facts *out) {
    const plan_rates *r = &f->q.rates;
    const int bits = f->q.blocks[NUM_MIN(1, f->q.n_block - 1)].choices[0].bits;
    const double read = 1 / plan_disk_seconds(&f->q, f->q.packed);
    out->rates = (flow_rates){.read = read,
                              .read_weights = read,
                              .write_kv = r->at[PLACE_DISK].to[PLACE_RAM],
                              .write_stream = r->at[PLACE_DISK].to[PLACE_RAM],
                              .write_token = r->at[PLACE_DISK].to[PLACE_RAM],
                              .product_prompt = 2 * r->many_rows[bits],
                              .product_token = 2 * r->many_rows[bits],
                              .attend_prompt = 2 * r->many_rows[0],
                              .attend_token = r->at[PLACE_RAM].read,
                              .pack = f->q.packed ? 0 : r->pack * r->n_core,
                              .hbm = NUM_MIN(r->at[PLACE_RAM].read, r->one_row[bits])};
    out->rates.hbm_kv = out->rates.hbm;
    out->n_pass = out->on_gpu ? 0 : f->base.n_pass;
    out->guessed = r->guessed || (out->on_gpu && r->vram_guessed);
    if (!out->on_gpu)
        return;
    out->rates.up = out->rates.down_kv = out->rates.down_stream = r->at[PLACE_RAM].to[PLACE_GPU];
    const plan_device_rows rows = plan_device_of_rows(r, f->q.device->kv);
    out->rates.product_token = 2 * rows.products;
    out->rates.product_prompt = 2 * rows.prompts;
    out->rates.prompt_passes = out->rates.product_prompt / (out->shape.row_ops * rows.pass_rows);
    out->rates.attend_prompt = 2 * plan_device_attention(r);
    out->rates.hbm = rows.read;
    out->rates.attend_token = out->rates.hbm_kv = rows.attend;
    out->rates.host_attend = r->attend[f->q.device->kv];
    out->rates.ram = r->at[PLACE_RAM].read;
    out->rates.pack = 0;
    out->rates.launches = out->shape.n_layer / device_launches(f);
    out->rates.turns = out->shape.n_layer / (n_cached * HOMES_ATTEND_TURN);
    out->attends = out->stages && f->q.device->attends && out->rates.host_attend > out->rates.up;
}

static double or_zero(double a, double b) {
    return a > b ? a - b : 0;
}

/* Bytes on the disk under its cap, or those that are free, beside the packed file that may be written. */
static double disk_for_kv(const planning *f, const engine_core *e, const facts *x) {
    const double weights = f->q.packed ? x->shape.weights * x->shape.n_layer : 0;
    const uint64_t cap = f->q.cap[NIB_TIER_DISK];
    char *folder = engine_disk_folder(e, "kv");
    const double left = (double)(cap != NIB_AUTO ? cap : folder ? path_disk_left(folder) : 0);
    mem_free(folder);
    return weights < left ? left - weights : left; /* a file that does not fit is not written */
}

/* Whether keys and values may be on the disk, and what is in RAM then. */
static nib_status set_disk(const planning *f, const engine_core *e, const nib_workload *w, facts *out,
                           nib_error *err) {
    engine_core with = *e;
    const int most = kv_paging_max_on_disk(e->layout, e->resolved.formats);
    uint64_t kept, page;
    if (!sizes_may_use_disk(e) || most < model_n_kv_layer(e->m))
        return NIB_OK;
    with.resolved.formats.on_disk = most;
    with.resolved.n_sequence = FEW;
    const uint64_t bytes = sizes_pass_bytes(&with, f->base.n_pass, f->base.n_cell);
    out->stage = or_zero((double)bytes, (double)sizes_pass_bytes(e, f->base.n_pass, f->base.n_cell));
    out->n_page = num_div_up((int64_t)longest(w), KV_BLOCK);
    out->n_context = kv_table_pages(with.resolved.formats, f->q.n_ctx);
    NIB_TRY(kv_tables_bytes(e->layout, with.resolved.formats, false, 1, out->n_page, &kept, err));
    NIB_TRY(kv_tables_on_disk(e->layout, with.resolved.formats, 1, &page, err));
    out->disk_page = (double)page;
    out->disk = disk_for_kv(f, e, out);
    out->shape.kv_kept = ((double)kept + (double)f->q.session) / out->sequence;
    out->n_disk = most;
    return NIB_OK;
}

/* Bytes for weights, keys and values under the caps. */
static void set_caps(const planning *f, bool rounded, facts *out) {
    const plan_question *q = &f->q;
    const plan_cache *cache = &q->caches[0];
    machine here;
    machine_detect(&here);
    const double beside = (double)(plan_ram_beside(q, cache, true, q->packed, 0) - cache->bytes);
    const uint64_t left = here.ram_free - here.ram_free / FREE_SHARE;
    const double ram = (double)(q->cap[NIB_TIER_RAM] != NIB_AUTO ? q->cap[NIB_TIER_RAM] : left);
    /* rounding takes far longer than reading, so rounded weights are streamed from a packed file only */
    const double disk = q->stream && (q->packed || !rounded) ? 1e15 : 0;
    /* the program keeps two layers free for streamed ones, which the ring is already */
    const double spare = SPARE_LAYERS * out->shape.weights;
    out->caps = (flow_caps){or_zero(ram, beside) + spare, spare, disk};
    if (out->on_gpu)
        out->caps = (flow_caps){
            or_zero((double)f->q.device->capacity, (double)(f->q.device->fixed + f->q.device->activations)),
            or_zero(ram, beside), disk};
}

/* One of the ways to compute between which the program does not choose by itself. */
typedef struct variant {
    bool host_attends, on_disk;
} variant;

/* What this build cannot do is fixed: the residual stream is on the device, keys and values there or in RAM,
 * from where they come to the device or where the processor attends, or on the disk. */
static void set_variant(facts *x, variant v) {
    x->c.host_attends = v.host_attends;
    for (int i = 0; i < FLOW_N_SHARE; i++)
        x->fixed[i] = -1;
    for (int i = FLOW_CG; i < FLOW_N_SHARE && !x->bound; i++)
        x->fixed[i] = i == FLOW_CG || i == FLOW_HG;
    if (x->stages && !x->bound)
        x->fixed[FLOW_CG] = x->fixed[FLOW_CC] = -1;
    if (v.on_disk)
        x->fixed[FLOW_CG] = x->fixed[FLOW_CN] = -1;
    for (int i = FLOW_WC; i < FLOW_N_SHARE && !x->on_gpu; i += 3)
        x->fixed[i] = 0;
    x->c.fixed = x->fixed;
    x->c.shape = &x->shape;
    x->c.rates = &x->rates;
    x->c.caps = x->caps;
    x->c.caps.device = or_zero(x->caps.device, v.on_disk ? x->stage : 0);
}

static nib_shares shares_of(const flow_answer *a, flow_column first, bool on_gpu) {
    double s[3];
    for (int i = 0; i < 3; i++)
        s[i] = fmax(a->share[first + i], 0); /* the solver's may be below by its tolerance */
    return on_gpu ? (nib_shares){s[0], s[1], s[2]} : (nib_shares){0, s[0], s[2]};
}

/* Rows of a pass in which the prompts that enter for the answers that end are computed together: what crosses
 * the link crosses it once for all of them. */
static int64_t pass_rows(const nib_workload *w, int64_t n_sequence) {
    const int64_t ends = num_div_up(n_sequence, (int64_t)NUM_MAX(w->n_gen, 1));
    const int64_t rows = n_sequence + ends * ((int64_t)w->n_prompt + 1);
    return NUM_MIN(num_round_up(rows, (int64_t)FEW), (int64_t)MAX_PASS);
}

/* Layers with their keys and values on the disk. */
static int disk_layers(const facts *x, const flow_answer *a) {
    return x->bound ? 0 : (int)ceil(a->share[FLOW_CN] * x->n_disk - 1e-6);
}

/* Positions that a request may need: twice as many as estimated, unless it is certain that none is longer. */
static int64_t context_of(const facts *x, const nib_workload *w) {
    const int64_t twice = 2 * (int64_t)longest(w);
    const int64_t n =
        num_round_up(w->max_n_ctx > 0 ? NUM_MIN(w->max_n_ctx, twice) : twice, (int64_t)KV_BLOCK);
    return x->n_trained > 0 ? NUM_MIN(n, x->n_trained) : n;
}

static nib_status write_formats(const planning_formats *f, int chosen, nib_flow *out, nib_error *err) {
    const planning_format *x = &f->list[chosen];
    for (int i = 0; i < f->n; i++)
        out->formats[i] = f->list[i].is;
    out->n_format = f->n;
    out->format = chosen;
    out->max_loss = f->max_loss;
    out->kv_loss = x->kv_loss;
    if (x->is.kv_type != NIB_KV_AUTO ||
        kv_formats_print(x->as.resolved.formats, out->kv_layers, sizeof out->kv_layers))
        return NIB_OK;
    return nib_fail(err, NIB_E_NOFIT, "a plan has at most %zu bytes for formats of keys and values by layer",
                    sizeof out->kv_layers);
}

/* Sweeps in which the first prompts enter. */
static double enter_sweeps(const facts *x, const nib_workload *w, double n) {
    const double rows = (double)(x->n_pass > 0 ? x->n_pass : pass_rows(w, (int64_t)n)) - n;
    return n * w->n_prompt / NUM_MAX(rows, 1);
}

/* The part of the program's rate that is expected. Where weights cross a GPU's link, or keys and values are
 * in RAM, lanes wait for each other in ways that the program does not have (CROSSING). */
static double expected(const facts *x, const flow_answer *a) {
    const bool all_here = a->share[FLOW_WG] > 1 - 1e-6 && a->share[FLOW_CG] > 1 - 1e-6;
    return x->on_gpu && !x->bound && !all_here ? CROSSING : 1;
}

/* Seconds of the whole workload: its first and last sweeps have fewer rows, and the first one copies the
 * weights that stay on the GPU. Plans are chosen without them. With them few sequences together were chosen
 * on an H200 (a quarter of OPT-30B, 192 requests), which ran slower: 521 tok/s with 48, 773 with 128. */
static double expected_seconds(const facts *x, const nib_workload *w, const flow_case *c,
                               const flow_answer *a) {
    const double n = (double)w->n_request, together = NUM_MIN((double)c->batch * c->n_batch, n);
    const double copies =
        x->on_gpu ? a->share[FLOW_WG] * x->shape.weights * x->shape.n_layer * FIRST_COPY : 0;
    return flow_job_seconds(c, a->share, n, enter_sweeps(x, w, together)) / expected(x, a) + copies;
}

static void write_down(const facts *x, const nib_workload *w, const flow_answer *a, nib_flow *out) {
    const double most = NUM_MIN((double)a->batch * a->n_batch, (double)w->n_request);
    const bool gpu = x->on_gpu;
    out->schedule = NIB_SCHEDULE_REFILL;
    out->n_sequence = (int64_t)most;
    out->n_cell = NUM_MIN(x->max_cell, (int64_t)most); /* a pass fills its cells */
    out->n_pass = gpu ? pass_rows(w, out->n_sequence) : 0;
    out->n_ctx = context_of(x, w);
    out->weights = shares_of(a, FLOW_WG, gpu);
    out->kv = shares_of(a, FLOW_CG, gpu);
    out->stream = shares_of(a, FLOW_HG, gpu);
    out->host_attends = gpu && x->c.host_attends && a->share[FLOW_CG] < 1;
    out->guessed = x->guessed;
    out->kv_on_disk = disk_layers(x, a);
    out->tok_s = a->tok_s * expected(x, a);
    out->latency_s = (a->prompt_s + a->token_s) / expected(x, a);
    out->seconds = expected_seconds(x, w, &x->c, a);
    snprintf(out->binds, sizeof out->binds, "%s",
             a->binds[1] == FLOW_HBM && !gpu ? "RAM" : flow_lane_name(a->binds[1]));
    for (int i = 0; i < 3; i++)
        out->one_more_gb[i] = gpu ? a->more[i] : i == 1 ? a->more[0] : i == 2 ? a->more[2] : 0;
}

/* Numbers of rows that the workload can fill and a pass can have. */
static flow_space space_of(const facts *x, const nib_workload *w) {
    const int64_t most = NUM_MIN(w->n_request, (int64_t)ENGINE_MAX_SESSION);
    size_t first = 0;
    while (batches[first] > NUM_MIN(most, x->max_cell))
        first++;
    return (flow_space){.batches = batches + first,
                        .n = (int)(NUM_COUNT(batches) - first),
                        .max_n_batch = (int)NUM_MIN(num_div_up(most, batches[first]), FEW)};
}

/* A feasible plan. */
typedef struct found {
    int format;
    variant v;
    int batch, n_batch;
    int64_t n_sequence;
    double tok_s, latency_s;
} found;

typedef struct all_found {
    found *list;
    size_t n, max;
    const facts *x;
    const nib_workload *w;
    variant v;
    double least_s; /* the shortest latency of all */
    double most_s;  /* longer ones are not listed; 0: all are */
    bool full;      /* no memory for one more */
} all_found;

/* Whether the disk holds the plan's part of so many sequences. */
static bool fits_disk(const facts *x, const flow_answer *a, int64_t n_sequence) {
    const int n = disk_layers(x, a);
    return n == 0 || (double)num_round_up(n_sequence * x->n_page, x->n_context) * x->disk_page * n <=
                         x->disk * x->n_disk;
}

static void list_one(void *user, const flow_case *c, const flow_answer *a) {
    all_found *all = user;
    const double part = expected(all->x, a), latency = (a->prompt_s + a->token_s) / part;
    const int64_t n_sequence = NUM_MIN((int64_t)c->batch * c->n_batch, all->w->n_request);
    if (!fits_disk(all->x, a, n_sequence))
        return;
    all->least_s = all->least_s > 0 ? NUM_MIN(all->least_s, latency) : latency;
    if (all->most_s > 0 && latency > all->most_s)
        return;
    if (mem_grow((void **)&all->list, &all->max, all->n + 1, sizeof *all->list)) {
        all->full = true;
        return;
    }
    all->list[all->n++] = (found){.format = all->x->format,
                                  .v = all->v,
                                  .batch = c->batch,
                                  .n_batch = c->n_batch,
                                  .n_sequence = n_sequence,
                                  .tok_s = a->tok_s * part,
                                  .latency_s = latency};
}

/* Sets what each format can reach. Returns the one to take: with the least loss of those of which none is
 * faster by GAIN. */
static int best_format(const all_found *all, planning_formats *f) {
    double most = 0;
    int best = -1;
    for (int i = 0; i < f->n; i++)
        f->list[i].is.tok_s = 0;
    for (size_t i = 0; i < all->n; i++) {
        double *tok_s = &f->list[all->list[i].format].is.tok_s;
        *tok_s = NUM_MAX(*tok_s, all->list[i].tok_s);
        most = NUM_MAX(most, *tok_s);
    }
    for (int i = 0; i < f->n; i++) {
        const nib_flow_format *at = &f->list[i].is;
        if (at->tok_s > 0 && at->tok_s * GAIN >= most && (best < 0 || at->loss < f->list[best].is.loss))
            best = i;
    }
    return best;
}

/* Whether both are the same to run: about as many sequences, and keys and values on the same tiers. */
static bool are_alike(const found *a, const found *b) {
    const double ratio = (double)a->n_sequence / (double)b->n_sequence;
    return a->v.on_disk == b->v.on_disk && ratio > 1 / UNLIKE && ratio < UNLIKE;
}

/* Moves the fastest plans that differ to the front of the list, and returns their number. The first of equal
 * ones has the largest cells. All have one format, so that no measured time decides the answers. */
static size_t keep_fastest(all_found *all, int format, size_t max) {
    size_t n = 0, n_left = 0;
    for (size_t i = 0; i < all->n; i++)
        if (all->list[i].format == format)
            all->list[n_left++] = all->list[i];
    all->n = n_left;
    for (; n < max; n++) {
        size_t best = all->n;
        for (size_t i = n; i < all->n; i++) {
            bool known = false;
            for (size_t k = 0; k < n; k++)
                known = known || are_alike(&all->list[i], &all->list[k]);
            if (!known && (best == all->n || all->list[i].tok_s > all->list[best].tok_s * (1 + SAME)))
                best = i;
        }
        if (best == all->n)
            break;
        const found x = all->list[best];
        memmove(&all->list[n + 1], &all->list[n], (best - n) * sizeof *all->list);
        all->list[n] = x;
    }
    return n;
}

static int by_latency(const void *a, const void *b) {
    const found *x = a, *y = b;
    return x->latency_s != y->latency_s ? (x->latency_s > y->latency_s) - (x->latency_s < y->latency_s)
                                        : (x->tok_s < y->tok_s) - (x->tok_s > y->tok_s);
}

/* Likewise the frontier: a longer latency only for more tokens a second, by at least a max-th of them. */
static size_t keep_frontier(all_found *all, size_t max) {
    size_t n = 0;
    double most = 0;
    for (size_t i = 0; i < all->n; i++)
        most = NUM_MAX(most, all->list[i].tok_s);
    if (all->n > 0)
        qsort(all->list, all->n, sizeof *all->list, by_latency);
    for (size_t i = 0; i < all->n && n < max; i++)
        if (n == 0 || all->list[i].tok_s > all->list[n - 1].tok_s + most / (double)max)
            all->list[n++] = all->list[i];
    return n;
}

/* Lists the plans of all variants. */
static nib_status list_variants(facts *x, const nib_workload *w, all_found *all, int *n_program,
                                nib_error *err) {
    const flow_space space = space_of(x, w);
    const int last_host = x->on_gpu && (x->bound || x->attends), last_disk = x->n_disk > 0 && !x->bound;
    for (int i = 0; i < 2 * 2; i++) {
        int n;
        all->v = (variant){i / 2, i % 2};
        if (i / 2 > last_host || i % 2 > last_disk)
            continue;
        set_variant(x, all->v);
        NIB_TRY(flow_enumerate(&x->c, &space, list_one, all, &n, err));
        *n_program += n;
    }
    return NIB_OK;
}

/* Likewise of all formats. */
static nib_status list_all(facts *x, const planning_formats *f, const nib_workload *w, all_found *all,
                           int *n_program, nib_error *err) {
    for (int i = 0; i < f->n; i++) {
        all->x = &x[i];
        if (f->allowed[i])
            NIB_TRY(list_variants(&x[i], w, all, n_program, err));
    }
    if (all->full)
        return nib_fail_nomem(err, (all->n + 1) * sizeof *all->list, "the plans of a workload");
    if (all->n > 0)
        return NIB_OK;
    if (all->least_s > 0)
        return nib_fail(err, NIB_E_NOFIT, "no answer is expected within %g s: the shortest latency is %.3g s",
                        all->most_s, all->least_s);
    return nib_fail(err, NIB_E_NOFIT, "the caps leave no memory for one sequence of %.0f + %.0f tokens",
                    w->n_prompt, w->n_gen);
}

/* Writes the wanted plans down, with ties broken. x: those of all formats. */
static nib_status write_all(facts *x, const planning_formats *f, const nib_workload *w, const found *list,
                            size_t n, nib_flow *out, nib_error *err) {
    for (size_t i = 0; i < n; i++) {
        facts *at = &x[list[i].format];
        flow_answer a;
        set_variant(at, list[i].v);
        at->c.batch = list[i].batch;
        at->c.n_batch = list[i].n_batch;
        NIB_TRY(flow_solve(&at->c, &a, err));
        write_down(at, w, &a, &out[i]);
        NIB_TRY(write_formats(f, list[i].format, &out[i], err));
    }
    return NIB_OK;
}

static nib_status search(facts *x, planning_formats *f, const nib_workload *w, const flows_wanted *wanted,
                         nib_error *err) {
    const double begun = time_now();
    all_found all = {.w = w, .most_s = w->max_latency_s};
    int n_program = 0;
    memset(wanted->out, 0, wanted->max * sizeof *wanted->out);
    nib_status status = list_all(x, f, w, &all, &n_program, err);
    if (status == NIB_OK) {
        const int format = best_format(&all, f);
        *wanted->n =
            wanted->frontier ? keep_frontier(&all, wanted->max) : keep_fastest(&all, format, wanted->max);
        status = write_all(x, f, w, all.list, *wanted->n, wanted->out, err);
    }
    for (size_t i = 0; status == NIB_OK && i < *wanted->n; i++) {
        wanted->out[i].n_program = n_program;
        wanted->out[i].search_s = time_now() - begun;
    }
    mem_free(all.list);
    return status;
}

/* What the program reads of the model with format i. */
static nib_status gather(const planning_formats *formats, int i, const nib_workload *w, facts *x,
                         nib_error *err) {
    const planning_format *with = &formats->list[i];
    const engine_core *e = &with->as;
    const planning_of of = {.n_prompt = (int64_t)w->n_prompt, .n_gen = (int64_t)w->n_gen};
    planning f;
    *x = (facts){
        .on_gpu = e->kind->tier == NIB_TIER_VRAM, .n_trained = model_hparams(e->m)->n_ctx_train, .format = i};
    nib_status status = planning_gather(&f, e, &of, err);
    x->c = (flow_case){.rule = FLOW_REFILL, .n_prompt = w->n_prompt, .n_gen = NUM_MAX(w->n_gen, 2)};
    x->max_cell = x->on_gpu ? FEW : f.base.n_cell;
    if (status == NIB_OK) {
        f.q.packed = engine_packed_expected(e);
        f.q.held[NIB_OWNER_TABLES] += with->channels;
        x->stages = x->on_gpu && f.q.device->stages;
        status = set_shape(&f, e, w, x, err);
    }
    if (status == NIB_OK) {
        set_rates(&f, model_n_kv_layer(e->m), x);
        set_caps(&f, with->lay != NULL, x);
        status = set_disk(&f, e, w, x, err);
    }
    planning_close(&f);
    return status;
}

static nib_status plan_formats(planning_formats *f, facts *x, const nib_workload *w,
                               const flows_wanted *wanted, nib_flow *bound, nib_error *err) {
    size_t n;
    for (int i = 0; i < f->n; i++)
        if (f->allowed[i])
            NIB_TRY(gather(f, i, w, &x[i], err));
    NIB_TRY(search(x, f, w, wanted, err));
    for (int i = 0; i < f->n; i++)
        x[i].bound = true;
    return bound ? search(x, f, w, &(flows_wanted){.out = bound, .max = 1, .n = &n}, err) : NIB_OK;
}

nib_status planning_workload(const engine_core *e, int kv_type, const nib_workload *w,
                             const flows_wanted *wanted, nib_flow *bound, nib_error *err) {
    if (w->n_request < 1 || !(w->n_prompt >= 1) || !(w->n_gen >= 1))
        return nib_fail(err, NIB_E_USAGE,
                        "a workload: expected at least one request with a prompt and an answer, found %lld "
                        "with %.0f and %.0f tokens",
                        (long long)w->n_request, w->n_prompt, w->n_gen);
    planning_formats *f = mem_calloc(1, sizeof *f);
    facts *x = mem_calloc(NIB_FLOW_FORMATS, sizeof *x);
    nib_status status = f && x ? planning_list_formats(e, kv_type, f, err)
                               : nib_fail_nomem(err, sizeof *f, "the formats of a workload");
    if (status == NIB_OK)
        status = plan_formats(f, x, w, wanted, bound, err);
    if (f)
        planning_close_formats(f);
    mem_free(f);
    mem_free(x);
    return status;
}
