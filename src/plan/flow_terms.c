/* flow_terms.c - the terms of a block's time and the rows of its memory; see flow.h. */
#include "plan/flow.h"

#include "base/num.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { PROMPT, TOKEN }; /* phases: a layer's prompts; a layer's rows of one token */

/* What a term moves or computes, for the whole block in one layer. */
typedef enum quantity {
    WEIGHTS,
    STREAM_PROMPT,
    STREAM_TOKEN,
    KV_PROMPT, /* written */
    KV_TOKEN,  /* written */
    KV_READ,   /* in the middle of the answers */
    PRODUCT_PROMPT,
    ATTEND_PROMPT,
    PRODUCT_TOKEN,
    WEIGHTS_EACH, /* the weights once for each batch */
    VISITS,       /* one for each batch, and one of the prompts of a pass */
    PASSES,       /* passes with prompts */
    ONCE,
    N_QUANTITY
} quantity;

/* When a term counts. */
enum { ALWAYS, IF_DEVICE_ATTENDS, IF_REFILL, IF_TURNS, IF_HOST_TURNS, IF_DEVICE_TURNS, IF_HOST_ADDS };

typedef struct term {
    uint8_t phase, lane, column, what;
    double factor;
    size_t rate; /* in flow_rates */
    uint8_t when;
} term;

#define RATE(name) offsetof(flow_rates, name)

static const term terms[] = {
    {PROMPT, FLOW_UP, FLOW_WC, WEIGHTS, 1, RATE(up), ALWAYS},
    {PROMPT, FLOW_UP, FLOW_WN, WEIGHTS, 1, RATE(up), ALWAYS},
    {PROMPT, FLOW_UP, FLOW_HC, STREAM_PROMPT, 1, RATE(up), ALWAYS},
    {PROMPT, FLOW_UP, FLOW_HN, STREAM_PROMPT, 1, RATE(up), ALWAYS},
    {PROMPT, FLOW_DOWN, FLOW_CC, KV_PROMPT, 1, RATE(down_kv), ALWAYS},
    {PROMPT, FLOW_DOWN, FLOW_CN, KV_PROMPT, 1, RATE(down_kv), ALWAYS},
    {PROMPT, FLOW_DOWN, FLOW_HC, STREAM_PROMPT, 1, RATE(down_stream), ALWAYS},
    {PROMPT, FLOW_DOWN, FLOW_HN, STREAM_PROMPT, 1, RATE(down_stream), ALWAYS},
    {PROMPT, FLOW_READ, FLOW_WN, WEIGHTS, 1, RATE(read), ALWAYS},
    {PROMPT, FLOW_READ, FLOW_HN, STREAM_PROMPT, 1, RATE(read), ALWAYS},
    {PROMPT, FLOW_WRITE, FLOW_CN, KV_PROMPT, 1, RATE(write_kv), ALWAYS},
    {PROMPT, FLOW_WRITE, FLOW_HN, STREAM_PROMPT, 1, RATE(write_stream), ALWAYS},
    {PROMPT, FLOW_COMPUTE, FLOW_ONE, PRODUCT_PROMPT, 1, RATE(product_prompt), ALWAYS},
    {PROMPT, FLOW_COMPUTE, FLOW_ONE, ATTEND_PROMPT, 1, RATE(attend_prompt), ALWAYS},
    {TOKEN, FLOW_UP, FLOW_WC, WEIGHTS, 1, RATE(up), ALWAYS},
    {TOKEN, FLOW_UP, FLOW_WN, WEIGHTS, 1, RATE(up), ALWAYS},
    {TOKEN, FLOW_UP, FLOW_HC, STREAM_TOKEN, 1, RATE(up), ALWAYS},
    {TOKEN, FLOW_UP, FLOW_HN, STREAM_TOKEN, 1, RATE(up), ALWAYS},
    {TOKEN, FLOW_UP, FLOW_CC, KV_READ, 1, RATE(up), IF_DEVICE_ATTENDS},
    {TOKEN, FLOW_UP, FLOW_CN, KV_READ, 1, RATE(up), IF_DEVICE_ATTENDS},
    {TOKEN, FLOW_DOWN, FLOW_HC, STREAM_TOKEN, 1, RATE(down_stream), ALWAYS},
    {TOKEN, FLOW_DOWN, FLOW_HN, STREAM_TOKEN, 1, RATE(down_stream), ALWAYS},
    {TOKEN, FLOW_READ, FLOW_CN, KV_READ, 1, RATE(read), ALWAYS},
    {TOKEN, FLOW_READ, FLOW_WN, WEIGHTS, 1, RATE(read_weights), ALWAYS},
    {TOKEN, FLOW_READ, FLOW_HN, STREAM_TOKEN, 1, RATE(read), ALWAYS},
    {TOKEN, FLOW_WRITE, FLOW_CN, KV_TOKEN, 1, RATE(write_token), ALWAYS},
    {TOKEN, FLOW_WRITE, FLOW_HN, STREAM_TOKEN, 1, RATE(write_token), ALWAYS},
    {TOKEN, FLOW_COMPUTE, FLOW_ONE, PRODUCT_TOKEN, 1, RATE(product_token), ALWAYS},
    {TOKEN, FLOW_COMPUTE, FLOW_CG, KV_READ, 1, RATE(attend_token), ALWAYS},
    {TOKEN, FLOW_COMPUTE, FLOW_CC, KV_READ, 1, RATE(host_attend), IF_HOST_ADDS},
    {TOKEN, FLOW_COMPUTE, FLOW_CN, KV_READ, 1, RATE(host_attend), IF_HOST_ADDS},
    {TOKEN, FLOW_COMPUTE, FLOW_CC, KV_READ, 1, RATE(attend_token), IF_DEVICE_ATTENDS},
    {TOKEN, FLOW_COMPUTE, FLOW_CN, KV_READ, 1, RATE(attend_token), IF_DEVICE_ATTENDS},
    {PROMPT, FLOW_COMPUTE, FLOW_WN, WEIGHTS, 1, RATE(pack), ALWAYS},
    {TOKEN, FLOW_COMPUTE, FLOW_WN, WEIGHTS, 1, RATE(pack), ALWAYS},
    /* Not in the paper: what shares the rate of RAM. Bytes from disk enter it and leave it. */
    {TOKEN, FLOW_RAM, FLOW_WC, WEIGHTS, 1, RATE(ram), ALWAYS},
    {TOKEN, FLOW_RAM, FLOW_WN, WEIGHTS, 2, RATE(ram), ALWAYS},
    {TOKEN, FLOW_RAM, FLOW_HC, STREAM_TOKEN, 2, RATE(ram), ALWAYS},
    {TOKEN, FLOW_RAM, FLOW_HN, STREAM_TOKEN, 2, RATE(ram), ALWAYS},
    {TOKEN, FLOW_RAM, FLOW_CC, KV_READ, 1, RATE(ram), ALWAYS},
    {TOKEN, FLOW_RAM, FLOW_CN, KV_READ, 2, RATE(ram), ALWAYS},
    /* Nor this: what the device reads of its own memory, during which prompts are not computed. */
    {TOKEN, FLOW_HBM, FLOW_ONE, WEIGHTS_EACH, 1, RATE(hbm), ALWAYS},
    {TOKEN, FLOW_HBM, FLOW_CG, KV_READ, 1, RATE(hbm_kv), ALWAYS},
    {PROMPT, FLOW_HBM, FLOW_ONE, PRODUCT_PROMPT, 1, RATE(product_prompt), IF_REFILL},
    {PROMPT, FLOW_HBM, FLOW_ONE, ATTEND_PROMPT, 1, RATE(attend_prompt), IF_REFILL},
    {TOKEN, FLOW_HBM, FLOW_ONE, VISITS, 1, RATE(launches), IF_REFILL},
    {PROMPT, FLOW_HBM, FLOW_ONE, PASSES, 1, RATE(prompt_passes), IF_REFILL},
    {TOKEN, FLOW_COMPUTE, FLOW_ONE, VISITS, 1, RATE(launches), IF_REFILL},
    {PROMPT, FLOW_COMPUTE, FLOW_ONE, PASSES, 1, RATE(prompt_passes), IF_REFILL},
    /* Nor this: in the layers with keys and values in RAM (CC) the time of the processor or of the link
     * counts, in the others the device's. What the device does in the former overlaps. */
    {TOKEN, FLOW_TURNS, FLOW_CC, KV_READ, 1, RATE(host_attend), IF_HOST_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_CC, ONCE, 1, RATE(turns), IF_HOST_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_CC, KV_READ, 1, RATE(up), IF_DEVICE_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_CG, KV_READ, 1, RATE(hbm_kv), IF_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_ONE, WEIGHTS_EACH, 1, RATE(hbm), IF_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_CC, WEIGHTS_EACH, -1, RATE(hbm), IF_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_ONE, VISITS, 1, RATE(launches), IF_TURNS},
    {TOKEN, FLOW_TURNS, FLOW_CC, VISITS, -1, RATE(launches), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_ONE, PRODUCT_PROMPT, 1, RATE(product_prompt), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_CC, PRODUCT_PROMPT, -1, RATE(product_prompt), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_ONE, ATTEND_PROMPT, 1, RATE(attend_prompt), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_CC, ATTEND_PROMPT, -1, RATE(attend_prompt), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_ONE, PASSES, 1, RATE(prompt_passes), IF_TURNS},
    {PROMPT, FLOW_TURNS, FLOW_CC, PASSES, -1, RATE(prompt_passes), IF_TURNS},
};

static double block_of(const flow_case *c) {
    return (double)c->batch * c->n_batch;
}

/* A sweep with a part of its prompts and of its rows of answers. */
typedef struct sweep {
    double prompts, rows;
} sweep;
static const sweep whole = {1, 1};

static void measure(const flow_case *c, sweep part, double q[N_QUANTITY]) {
    const flow_shape *s = c->shape;
    const double block = block_of(c), n = c->n_prompt, rows = block * part.rows;
    const double n_batch = NUM_MAX(c->n_batch * part.rows, 1);
    /* a sweep has one pass with prompts, or fewer where fewer answers end */
    const double passes = c->rule == FLOW_REFILL ? NUM_MIN(block, c->n_gen) : c->n_gen;
    q[WEIGHTS] = s->weights;
    q[STREAM_PROMPT] = s->stream * n * block;
    q[STREAM_TOKEN] = s->stream * rows;
    q[KV_PROMPT] = s->kv * (n + 1) * block;
    q[KV_TOKEN] = s->kv * rows;
    q[KV_READ] = s->kv * (n + c->n_gen / 2) * rows;
    q[PRODUCT_PROMPT] = s->row_ops * n * block;
    q[ATTEND_PROMPT] = s->attend_ops * n * n * block;
    q[PRODUCT_TOKEN] = s->row_ops * rows;
    q[WEIGHTS_EACH] = s->weights * n_batch;
    q[PASSES] = passes;
    q[VISITS] = n_batch + part.prompts * passes / c->n_gen;
    q[ONCE] = 1;
}

/* The processor's rate of attention, which falls with small batches and narrow rows. */
static double host_rate(const flow_case *c) {
    const double *fit = c->rates->host_fit;
    if (!(fit[0] > 0))
        return c->rates->host_attend;
    const double few = NUM_MAX(log2(64.0 / c->batch), 0), narrow = NUM_MAX(log2(4096 / c->shape->width), 0);
    return c->rates->host_attend * NUM_MAX(1 + fit[0] * few * narrow - fit[1] * few - fit[2] * narrow, 0.1);
}

static bool counts(const flow_case *c, const term *t, double rate) {
    const bool turns = c->rule == FLOW_REFILL && c->rates->turns > 0, host = c->host_attends;
    switch (t->when) {
    case IF_DEVICE_ATTENDS: return !host;
    case IF_HOST_ADDS: return host && !turns;
    case IF_TURNS:
    case IF_HOST_TURNS:
    case IF_DEVICE_TURNS:
        return turns && rate > 0 && (t->when == IF_TURNS || host == (t->when == IF_HOST_TURNS));
    default: break;
    }
    if (t->lane == FLOW_HBM && !(c->rates->hbm > 0))
        return false;
    return rate > 0 && (t->when == ALWAYS || c->rule == FLOW_REFILL);
}

/* Calls `add` for each term of the case with its seconds for the whole share. With refill a sweep has the
 * prompts of an n_gen-th of the block, and their weights are there already. */
typedef void (*add_fn)(void *to, const term *t, double seconds);
static void each_term(const flow_case *c, sweep of, add_fn add, void *to) {
    const bool refill = c->rule == FLOW_REFILL;
    double q[N_QUANTITY];
    measure(c, of, q);
    for (size_t i = 0; i < NUM_COUNT(terms); i++) {
        const term *t = &terms[i];
        double rate;
        memcpy(&rate, (const uint8_t *)c->rates + t->rate, sizeof rate);
        if (t->rate == RATE(host_attend))
            rate = host_rate(c);
        if (!counts(c, t, rate) || (refill && t->phase == PROMPT && t->what == WEIGHTS))
            continue;
        const double part = refill && t->phase == PROMPT ? of.prompts / c->n_gen : 1;
        add(to, t, rate > 0 ? t->factor * q[t->what] * part / rate : 0);
    }
}

/* ---- the report ---- */

typedef struct lane_sum {
    const double *share;
    bool refill;
    double (*lane)[FLOW_N_LANE];
} lane_sum;

static void add_to_lane(void *to, const term *t, double seconds) {
    const lane_sum *s = to;
    s->lane[s->refill ? TOKEN : t->phase][t->lane] +=
        t->column == FLOW_ONE ? seconds : seconds * s->share[t->column];
}

static void lanes_of(const flow_case *c, sweep of, const double *share, double lane[2][FLOW_N_LANE]) {
    lane_sum s = {share, c->rule == FLOW_REFILL, lane};
    memset(lane, 0, 2 * sizeof lane[0]);
    each_term(c, of, add_to_lane, &s);
}

void flow_lanes(const flow_case *c, const double *share, double lane[2][FLOW_N_LANE]) {
    lanes_of(c, whole, share, lane);
}

static double sweep_seconds(const flow_case *c, sweep of, const double *share) {
    double lane[2][FLOW_N_LANE], longest = 0;
    lanes_of(c, of, share, lane);
    for (int l = 0; l < FLOW_N_LANE; l++)
        longest = NUM_MAX(longest, lane[TOKEN][l]);
    return longest * c->shape->n_layer;
}

double flow_job_seconds(const flow_case *c, const double *share, double n_request, double n_enter) {
    const sweep begins = {1, 0.5}, ends = {0, 0.5};
    const double n = c->n_gen * NUM_MAX(n_request / block_of(c), 1), enter = NUM_MIN(n_enter, c->n_gen);
    return (n - enter) * sweep_seconds(c, whole, share) +
           enter * (sweep_seconds(c, begins, share) + sweep_seconds(c, ends, share));
}

typedef struct lane_cost {
    flow_lane lane;
    double *cost;
} lane_cost;

static void add_to_cost(void *to, const term *t, double seconds) {
    const lane_cost *l = to;
    if (t->lane == l->lane && t->column != FLOW_ONE)
        l->cost[t->column] += seconds;
}

void flow_lane_cost(const flow_case *c, flow_lane l, double *cost) {
    lane_cost to = {l, cost};
    memset(cost, 0, FLOW_N_COLUMN * sizeof *cost);
    each_term(c, whole, add_to_cost, &to);
}

/* ---- the program ---- */

/* Which lanes' seconds together are at most the phase's: a bit for each lane. The paper's lanes all overlap.
 * The authors' program adds some of them. */
static const uint8_t overlapped[] = {1 << FLOW_UP,      1 << FLOW_DOWN, 1 << FLOW_READ, 1 << FLOW_WRITE,
                                     1 << FLOW_COMPUTE, 1 << FLOW_RAM,  1 << FLOW_HBM,  1 << FLOW_TURNS};
static const uint8_t authors_prompt[] = {1 << FLOW_UP | 1 << FLOW_READ, 1 << FLOW_DOWN | 1 << FLOW_WRITE,
                                         1 << FLOW_COMPUTE};
static const uint8_t authors_token[] = {1 << FLOW_UP | 1 << FLOW_DOWN, 1 << FLOW_UP | 1 << FLOW_READ,
                                        1 << FLOW_UP | 1 << FLOW_WRITE, 1 << FLOW_UP | 1 << FLOW_COMPUTE};

typedef struct time_rows {
    lp_problem *p;
    const uint8_t *lanes; /* [n] */
    int n, first, phase;
    bool refill;
} time_rows;

static void add_to_rows(void *to, const term *t, double seconds) {
    const time_rows *s = to;
    if (t->phase != s->phase && !s->refill)
        return;
    for (int i = 0; i < s->n; i++) {
        if (!(s->lanes[i] >> t->lane & 1))
            continue;
        if (t->column == FLOW_ONE)
            s->p->row_high[s->first + i] -= seconds;
        else
            s->p->a[s->first + i][t->column] += seconds;
    }
}

static int new_row(lp_problem *p, double low, double high) {
    p->row_low[p->n_row] = low;
    p->row_high[p->n_row] = high;
    return p->n_row++;
}

static void add_times(const flow_case *c, lp_problem *p, int phase, const uint8_t *lanes, int n) {
    time_rows rows = {p, lanes, n, p->n_row, phase, c->rule == FLOW_REFILL};
    for (int i = 0; i < n; i++)
        p->a[new_row(p, -LP_NO_BOUND, 0)][phase == PROMPT ? FLOW_T_PROMPT : FLOW_T_TOKEN] = -1;
    each_term(c, whole, add_to_rows, &rows);
}

static void add_all_times(const flow_case *c, lp_problem *p) {
    if (c->rule == FLOW_AUTHORS) {
        add_times(c, p, PROMPT, authors_prompt, NUM_COUNT(authors_prompt));
        add_times(c, p, TOKEN, authors_token, NUM_COUNT(authors_token));
        return;
    }
    if (c->rule == FLOW_PAPER)
        add_times(c, p, PROMPT, overlapped, NUM_COUNT(overlapped));
    add_times(c, p, TOKEN, overlapped, NUM_COUNT(overlapped));
}

/* ---- memory ---- */

/* A linear function of the shares. */
typedef struct linear {
    double one, of[FLOW_N_SHARE];
} linear;

/* Adds a row `used` <= cap, scaled to 1. */
static void add_capacity(lp_problem *p, const linear *used, double cap) {
    const double scale = cap > 0 ? cap : 1;
    const int r = new_row(p, -LP_NO_BOUND, (cap - used->one) / scale);
    for (int c = 0; c < FLOW_N_SHARE; c++)
        p->a[r][c] = used->of[c] / scale;
}

static linear plus(const linear *a, double one, flow_column column, double of) {
    linear sum = *a;
    sum.one += one;
    sum.of[column] += of;
    return sum;
}

/* What the device holds while it computes n rows of each sequence: its shares, two layers of streamed
 * weights, and the rows of a batch. */
static linear device_holds(const flow_case *c, double n, double n_staged, double kv) {
    const flow_shape *s = c->shape;
    linear l = {.one = 2 * s->weights + s->stream * n_staged * c->batch};
    l.of[FLOW_WG] = s->weights * s->n_layer - 2 * s->weights;
    l.of[FLOW_HG] = s->stream * n * block_of(c) - s->stream * n_staged * c->batch;
    l.of[FLOW_CG] = kv;
    l.of[FLOW_CN] = kv * s->kv_kept;
    return l;
}

/* Working memory of ops, in bytes of f16 as the paper counts it (A.3): the ops' inputs and outputs. Attention
 * of a prompt is for its share on the device. */
static void add_device(const flow_case *c, lp_problem *p, double kv) {
    const flow_shape *s = c->shape;
    const double g = c->batch, n = c->n_prompt, all = n + c->n_gen, h = s->width, nh = s->n_head;
    const bool authors = c->rule == FLOW_AUTHORS;
    const linear prompt = device_holds(c, n, n, kv);
    linear token = device_holds(c, 1, authors ? 1 : n, kv);
    const double mlp = 2 * g * (h + s->inner), seen = g * (2 * h + 2 * all * h + 2 * nh * all);
    if (authors) { /* the sum of all ops */
        const double row = 8 * h + 2 * h + 2 * nh * n + 2 * h + 4 * h + 2 * s->inner + 2 * h;
        const linear a = plus(&prompt, g * n * row, FLOW_WG, 0);
        token.of[FLOW_CG] += 4 * g * all * h;
        const linear b = plus(&token, g * (8 * h + 4 * h + 2 * s->inner + 2 * h), FLOW_CG,
                              seen + g * (2 * all * h + 2 * h));
        add_capacity(p, &a, c->caps.device);
        add_capacity(p, &b, c->caps.device);
        return;
    }
    const linear ops[] = {
        plus(&prompt, g * 8 * n * h, FLOW_CG, 0), plus(&prompt, 0, FLOW_CG, g * (4 * n * h + 2 * nh * n * n)),
        plus(&prompt, mlp * n, FLOW_CG, 0),       plus(&token, g * 8 * h, FLOW_CG, 0),
        plus(&token, 0, FLOW_CG, seen),           plus(&token, mlp, FLOW_CG, 0)};
    for (size_t i = 0; i < NUM_COUNT(ops); i++)
        add_capacity(p, &ops[i], c->caps.device);
}

static void add_ram_and_disk(const flow_case *c, lp_problem *p, double kv, int first_capacity[4]) {
    const flow_shape *s = c->shape;
    const double block = block_of(c), g = c->batch, n = c->n_prompt, all = n + c->n_gen, l = s->n_layer;
    const bool authors = c->rule == FLOW_AUTHORS;
    linear prompt = {.one = s->weights + s->stream * n * g}, token = {0}, disk = {0};
    prompt.of[FLOW_WC] = token.of[FLOW_WC] = s->weights * l;
    prompt.of[FLOW_WG] = -s->weights;
    prompt.of[FLOW_HC] = s->stream * n * block;
    prompt.of[FLOW_HG] = -s->stream * n * g;
    prompt.of[FLOW_CC] = authors ? s->kv * n * block * l : kv;
    token.one = 2 * s->n_head * all * g + s->stream * g;
    token.of[FLOW_WN] = s->weights;
    token.of[FLOW_HC] = s->stream * block;
    token.of[FLOW_HN] = 2 * s->stream * g;
    token.of[FLOW_CC] = kv;
    token.of[FLOW_CN] = 2 * s->kv * all * g;
    disk.of[FLOW_WN] = s->weights * l;
    disk.of[FLOW_HN] = s->stream * n * block;
    disk.of[FLOW_CN] = kv;
    first_capacity[1] = p->n_row;
    add_capacity(p, &prompt, c->caps.ram);
    add_capacity(p, &token, c->caps.ram);
    first_capacity[2] = p->n_row;
    add_capacity(p, &disk, c->caps.disk);
}

static void add_sums(const flow_case *c, lp_problem *p) {
    for (int first = 0; first < FLOW_N_SHARE; first += 3) {
        const int r = new_row(p, 1, 1);
        for (int tier = 0; tier < 3; tier++)
            p->a[r][first + tier] = 1;
    }
    for (int i = 0; i < FLOW_N_COLUMN; i++)
        p->high[i] = LP_NO_BOUND;
    for (int i = 0; i < FLOW_N_SHARE; i++)
        if (c->fixed && c->fixed[i] >= 0)
            p->low[i] = p->high[i] = c->fixed[i];
    if (c->rule == FLOW_AUTHORS) /* their program keeps the stream off the disk */
        p->high[FLOW_HN] = 0;
}

void flow_program(const flow_case *c, lp_problem *out, int first_capacity[4]) {
    const double block = block_of(c), l = c->shape->n_layer;
    const double held = c->n_prompt + c->n_gen * (c->rule == FLOW_REFILL ? 0.5 : 1);
    const double kv = c->shape->kv * held * block * l;
    *out = (lp_problem){.n_column = FLOW_N_COLUMN};
    out->cost[FLOW_T_PROMPT] = l / block;
    out->cost[FLOW_T_TOKEN] = l * (c->n_gen - 1) / block;
    if (c->rule == FLOW_REFILL)
        out->cost[FLOW_T_TOKEN] = l * c->n_gen / block;
    add_all_times(c, out);
    first_capacity[0] = out->n_row;
    add_device(c, out, kv);
    add_ram_and_disk(c, out, kv, first_capacity);
    first_capacity[3] = out->n_row;
    add_sums(c, out);
}
