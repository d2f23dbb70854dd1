/* workload.c - the plan of many requests together (plan/flow.h), for a model and a machine.
 *
 * A page of the weights is a "layer" of the program: all pages are alike, and each is needed once in a sweep.
 * The keys and values of a sequence are whole KV pages of its longest positions, beside its tables.
 *
 * Where the processor computes, RAM is the device: nothing crosses a link, and its rate is that of the
 * device's own memory. */
#include "engine/planning/planning.h"

#include "base/num.h"
#include "plan/flow.h"
#include "profile/machine.h"
#include "schedule/sweeps.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FEW = 64, FREE_SHARE = 8, SPARE_LAYERS = 2, MAX_PASS = 4096 };

/* Of numbers of rows with the same speed the first is chosen: large cells have fewer barriers. */
static const int batches[] = {128, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1};

/* What the program reads of a model and a machine. */
typedef struct facts {
    flow_shape shape;
    flow_rates rates;
    flow_case c;
    double fixed[FLOW_N_SHARE];
    int64_t max_cell;
    bool on_gpu, stages; /* stages: keys and values of layers may be in RAM */
    bool attends;        /* the processor attends to those: it is faster than the link */
    bool guessed;        /* some of the rates were not measured */
    bool bound;          /* homes that this build cannot have count too */
} facts;

static void set_shape(const planning *f, const nib_workload *w, facts *out) {
    const plan_question *q = &f->q;
    const plan_cache *cache = &q->caches[0];
    const double n_position = w->n_position > 0 ? (double)w->n_position : w->n_prompt + w->n_gen;
    const double pages = (double)num_div_up((int64_t)(n_position + 0.5), KV_BLOCK);
    double bytes = 0, macs = 0;
    for (int b = 0; b < q->n_block; b++) {
        bytes += (double)q->blocks[b].choices[0].bytes;
        macs += (double)q->blocks[b].macs;
    }
    const double n = NUM_MAX(bytes / NUM_MAX((double)q->need.max_page, 1), 4);
    out->shape = (flow_shape){.n_layer = (int)n, .weights = bytes / (int)n, .row_ops = 2 * macs / (int)n};
    out->shape.attend_ops = 2 * (double)q->attention_macs / 2 / (int)n; /* half of a prompt's pairs */
    const double sequence = pages * KV_BLOCK * (double)cache->position + (double)q->session;
    const double held = w->n_prompt + w->n_gen * (out->c.rule == FLOW_REFILL ? 0.5 : 1);
    out->shape.kv = sequence / held / (int)n; /* width 0: the working memory of rows is held already */
}

static void set_rates(const planning *f, facts *out) {
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
    out->guessed = r->guessed || (out->on_gpu && r->vram_guessed);
    if (!out->on_gpu)
        return;
    out->rates.up = out->rates.down_kv = out->rates.down_stream = r->at[PLACE_RAM].to[PLACE_GPU];
    out->rates.product_prompt = out->rates.product_token = 2 * plan_device_products(r);
    out->rates.attend_prompt = 2 * plan_device_attention(r);
    out->rates.attend_token = out->rates.hbm = r->at[PLACE_GPU].read;
    out->rates.host_attend = r->attend[f->q.device->kv];
    out->rates.ram = r->at[PLACE_RAM].read;
    out->rates.pack = 0;
    out->attends = out->stages && f->q.device->attends && out->rates.host_attend > out->rates.up;
}

static double or_zero(double a, double b) {
    return a > b ? a - b : 0;
}

/* Bytes for weights, keys and values under the caps. */
static void set_caps(const planning *f, facts *out) {
    const plan_question *q = &f->q;
    const plan_cache *cache = &q->caches[0];
    machine here;
    machine_detect(&here);
    const double beside = (double)(plan_ram_beside(q, cache, true, q->packed, 0) - cache->bytes);
    const uint64_t left = here.ram_free - here.ram_free / FREE_SHARE;
    const double ram = (double)(q->cap[NIB_TIER_RAM] != NIB_AUTO ? q->cap[NIB_TIER_RAM] : left);
    const double disk = q->stream ? 1e15 : 0;
    /* the program keeps two layers free for streamed ones, which the ring is already */
    const double spare = SPARE_LAYERS * out->shape.weights;
    out->c.caps = (flow_caps){or_zero(ram, beside) + spare, spare, disk};
    if (out->on_gpu)
        out->c.caps = (flow_caps){
            or_zero((double)f->q.device->capacity, (double)(f->q.device->fixed + f->q.device->activations)),
            or_zero(ram, beside), disk};
}

/* What this build cannot do is fixed: the residual stream is on the device, keys and values there or in RAM,
 * from where they come to the device or where the processor attends. */
static void fix_homes(facts *out, bool bound) {
    out->bound = bound;
    for (int i = 0; i < FLOW_N_SHARE; i++)
        out->fixed[i] = -1;
    for (int i = FLOW_CG; i < FLOW_N_SHARE && !bound; i++)
        out->fixed[i] = i == FLOW_CG || i == FLOW_HG;
    if (out->stages && !bound)
        out->fixed[FLOW_CG] = out->fixed[FLOW_CC] = -1;
    for (int i = FLOW_WC; i < FLOW_N_SHARE && !out->on_gpu; i += 3)
        out->fixed[i] = 0;
    out->c.fixed = out->fixed;
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

static void write_down(const facts *x, const nib_workload *w, const flow_answer *a, nib_flow *out) {
    const double most = NUM_MIN((double)a->batch * a->n_batch, (double)w->n_request);
    const bool gpu = x->on_gpu;
    out->schedule = NIB_SCHEDULE_REFILL;
    out->n_sequence = (int64_t)most;
    out->n_cell = NUM_MIN(x->max_cell, (int64_t)most); /* a pass fills its cells */
    out->n_pass = gpu ? pass_rows(w, out->n_sequence) : 0;
    out->weights = shares_of(a, FLOW_WG, gpu);
    out->kv = shares_of(a, FLOW_CG, gpu);
    out->stream = shares_of(a, FLOW_HG, gpu);
    out->host_attends = gpu && x->c.host_attends && a->share[FLOW_CG] < 1;
    out->guessed = x->guessed;
    out->tok_s = a->tok_s;
    out->seconds = (double)w->n_request * w->n_gen / a->tok_s;
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

static nib_status search(facts *x, const nib_workload *w, nib_flow *out, nib_error *err) {
    const flow_space space = space_of(x, w);
    const double begun = time_now();
    *out = (nib_flow){0};
    flow_answer best = {0};
    bool host_attends = false;
    const int last = x->on_gpu && (x->bound || x->attends) ? 1 : 0;
    for (int host = 0; host <= last; host++) {
        flow_answer a;
        int n;
        x->c.host_attends = host;
        NIB_TRY(flow_search(&x->c, &space, &a, &n, err));
        out->n_program += n;
        if (!a.feasible || a.tok_s <= best.tok_s)
            continue;
        best = a;
        host_attends = host;
    }
    out->search_s = time_now() - begun;
    if (!best.feasible)
        return nib_fail(err, NIB_E_NOFIT, "the caps leave no memory for one sequence of %.0f + %.0f tokens",
                        w->n_prompt, w->n_gen);
    x->c.host_attends = host_attends;
    write_down(x, w, &best, out);
    return NIB_OK;
}

nib_status planning_workload(const engine_core *e, const nib_workload *w, nib_flow *out, nib_flow *bound,
                             nib_error *err) {
    planning f;
    facts x = {.on_gpu = e->kind->tier == NIB_TIER_VRAM};
    const planning_of of = {.n_prompt = (int64_t)w->n_prompt, .n_gen = (int64_t)w->n_gen};
    if (w->n_request < 1 || !(w->n_prompt >= 1) || !(w->n_gen >= 1))
        return nib_fail(err, NIB_E_USAGE,
                        "a workload: expected at least one request with a prompt and an answer, found %lld "
                        "with %.0f and %.0f tokens",
                        (long long)w->n_request, w->n_prompt, w->n_gen);
    nib_status status = planning_gather(&f, e, &of, err);
    x.c = (flow_case){.shape = &x.shape,
                      .rates = &x.rates,
                      .rule = FLOW_REFILL,
                      .n_prompt = w->n_prompt,
                      .n_gen = NUM_MAX(w->n_gen, 2)};
    x.max_cell = x.on_gpu ? FEW : f.base.n_cell;
    if (status == NIB_OK) {
        x.stages = x.on_gpu && f.q.device->stages;
        set_shape(&f, w, &x);
        set_rates(&f, &x);
        set_caps(&f, &x);
        fix_homes(&x, false);
        status = search(&x, w, out, err);
    }
    if (status == NIB_OK && bound) {
        fix_homes(&x, true);
        status = search(&x, w, bound, err);
    }
    planning_close(&f);
    return status;
}
