/* decide.c - formats, activations, layers and residency for one question.
 *
 * Two cases are solved and the better is taken: everything stays, or a part is streamed through the ring. In
 * each, choose.h finds the ways of the blocks; then whole pages are handed out. In the modes that leave
 * layers out, those that cost least go first, one more at a time. */
#include "plan/policy.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/choose.h"
#include "plan/residency.h"

#include <math.h>
#include <string.h>

enum { MAX_NODE = 60000 };

/* The paper's threshold (MCAP, section 3.2): layers that score as much take 16-bit activations. */
#define TAU 0.7

/* How a way is read back. */
typedef struct meaning {
    int choice, activation;
} meaning;

typedef struct maker {
    const plan_question *q;
    choose_way *ways;
    meaning *means;
    int *first; /* [n_block + 1] */
    int *picked;
    bool *left_out;
    int *order; /* [n_layer]: layers from the least important on */
    int n_layer;
    uint8_t *tier_of; /* [n_page] */
    uint64_t *bytes;  /* [n_block] */
} maker;

static void maker_close(maker *m) {
    mem_free(m->ways);
    mem_free(m->means);
    mem_free(m->first);
    mem_free(m->picked);
    mem_free(m->left_out);
    mem_free(m->order);
    mem_free(m->tier_of);
    mem_free(m->bytes);
}

/* By what leaving it out costs; where that is not measured, by MCAP's score, which predicts it badly
 * (docs/paper-mcap.md). */
static double rank_of(const plan_block_facts *f) {
    return f->kl_left_out >= 0 ? f->kl_left_out : f->importance;
}

static void rank_layers(maker *m) {
    for (int b = 0; b < m->q->n_block; b++) {
        if (!m->q->blocks[b].is_layer)
            continue;
        int i = m->n_layer++;
        const double r = rank_of(&m->q->blocks[b]);
        for (; i > 0 && rank_of(&m->q->blocks[m->order[i - 1]]) > r; i--)
            m->order[i] = m->order[i - 1];
        m->order[i] = b;
    }
}

static nib_status maker_open(maker *m, const plan_question *q, nib_error *err) {
    const size_t n = (size_t)q->n_block, max = n * PLAN_MAX_CHOICE * 2;
    *m = (maker){.q = q};
    m->ways = mem_array(max, sizeof *m->ways);
    m->means = mem_array(max, sizeof *m->means);
    m->first = mem_array(n + 1, sizeof *m->first);
    m->picked = mem_array(n, sizeof *m->picked);
    m->left_out = mem_calloc(n, sizeof *m->left_out);
    m->order = mem_array(n, sizeof *m->order);
    m->tier_of = mem_array((size_t)q->n_page + 1, sizeof *m->tier_of);
    m->bytes = mem_array(n, sizeof *m->bytes);
    if (!m->ways || !m->means || !m->first || !m->picked || !m->left_out || !m->order || !m->tier_of ||
        !m->bytes) {
        maker_close(m);
        return nib_fail_nomem(err, max * sizeof *m->ways, "planning");
    }
    rank_layers(m);
    return NIB_OK;
}

/* ---- the ways of a block ---- */

static void add_way(maker *m, int b, int choice, int activation, bool streamed, double loss) {
    const int i = m->first[b + 1]++;
    const plan_choice *c = &m->q->blocks[b].choices[choice];
    m->means[i] = (meaning){choice, activation};
    m->ways[i] = (choose_way){plan_block_seconds(m->q, b, choice, activation),
                              (double)c->bytes + (streamed ? 0 : (double)c->table_bytes), loss};
}

static void add_activations(maker *m, int b, int choice, bool streamed) {
    const plan_block_facts *f = &m->q->blocks[b];
    const double kl = f->choices[choice].kl;
    const int asked = f->activation ? f->activation : m->q->activation;
    if (asked) {
        const bool eight = asked == 8 && f->kl_a8 > 0;
        add_way(m, b, choice, asked, streamed, kl + (eight ? f->kl_a8 : 0));
    } else if (f->kl_a8 >= 0) {
        add_way(m, b, choice, 8, streamed, kl + f->kl_a8);
        add_way(m, b, choice, 16, streamed, kl);
    } else {
        add_way(m, b, choice, f->importance >= TAU ? 16 : 8, streamed, kl);
    }
}

/* Rounding takes far longer than reading: what is streamed is rounded once, into a packed file, or not at
 * all. */
static void list_ways(maker *m, bool streamed, bool packed) {
    const plan_question *q = m->q;
    const bool round = q->may_round && q->mode != 'b' && (packed || !streamed);
    m->first[0] = 0;
    for (int b = 0; b < q->n_block; b++) {
        m->first[b + 1] = m->first[b];
        if (m->left_out[b] || q->blocks[b].gone) {
            m->means[m->first[b + 1]] = (meaning){-1, 8};
            m->ways[m->first[b + 1]++] = (choose_way){0, 0, 0};
            continue;
        }
        for (int c = 0; c < q->blocks[b].n_choice; c++)
            if (c == 0 || (round && q->blocks[b].choices[c].kl >= 0))
                add_activations(m, b, c, streamed);
    }
}

/* ---- residency ---- */

/* The pages that are known are those of the first choices. */
static bool knows_pages(const plan_question *q, const plan_decision *d) {
    bool known = q->pages != NULL;
    for (int b = 0; b < q->n_block && known; b++)
        known = d->choice[b] <= 0;
    return known;
}

static uint64_t bytes_of(const plan_question *q, const plan_decision *d, int b) {
    return d->choice[b] < 0 ? 0 : q->blocks[b].choices[d->choice[b]].bytes;
}

/* Of what products read, as much as fits. */
static void spread(const maker *m, plan_decision *d, uint64_t room) {
    const plan_question *q = m->q;
    const residency_tier tiers[] = {{NIB_TIER_RAM, room}, {NIB_TIER_DISK, NIB_AUTO}};
    if (!knows_pages(q, d)) {
        for (int b = 0; b < q->n_block; b++)
            m->bytes[b] = bytes_of(q, d, b);
        residency_share(m->bytes, q->n_block, room, d->kept);
        return;
    }
    for (int i = 0; i < q->n_page; i++)
        m->tier_of[i] = d->choice[q->pages[i].block] < 0 ? NIB_TIER_DISK : RESIDENCY_OPEN;
    residency_spread(q->pages, q->n_page, tiers, NUM_COUNT(tiers), m->tier_of);
    memset(d->kept, 0, (size_t)q->n_block * sizeof *d->kept);
    for (int i = 0; i < q->n_page; i++)
        if (m->tier_of[i] == NIB_TIER_RAM && !q->pages[i].table)
            d->kept[q->pages[i].block] += q->pages[i].bytes;
}

/* ---- one case ---- */

typedef struct which {
    bool streamed, packed;
    double lost; /* by the layers that are left out */
} which;

static void read_back(const maker *m, plan_decision *d) {
    for (int b = 0; b < m->q->n_block; b++) {
        const meaning *x = &m->means[m->first[b] + m->picked[b]];
        d->choice[b] = x->choice;
        d->activation[b] = x->activation;
        d->kept[b] = bytes_of(m->q, d, b);
    }
}

static uint64_t room_of(const plan_question *q, const which *w) {
    const uint64_t beside = plan_ram_beside(q, &q->caches[0], w->streamed, w->packed, 0);
    if (q->cap[NIB_TIER_RAM] == NIB_AUTO)
        return UINT64_MAX / 4;
    return q->cap[NIB_TIER_RAM] > beside ? q->cap[NIB_TIER_RAM] - beside : 0;
}

static nib_status solve(maker *m, const which *w, plan_decision *d, choose_result *r, nib_error *err) {
    const plan_question *q = m->q;
    const uint64_t room = room_of(q, w);
    const double stolen = w->streamed ? plan_stolen_seconds(q, w->packed) : 0;
    list_ways(m, w->streamed, w->packed);
    const choose_problem p = {.ways = m->ways,
                              .first = m->first,
                              .n_block = q->n_block,
                              .room = (double)room,
                              .disk_s = w->streamed ? plan_disk_seconds(q, w->packed) : 0,
                              .over_s = stolen,
                              .fixed_s = plan_fixed_seconds(q, &q->caches[0], w->streamed),
                              .max_bytes = w->streamed ? INFINITY : (double)room,
                              .max_loss = q->max_loss - w->lost,
                              .max_time = q->speed > 0 ? 1 / q->speed : INFINITY,
                              .max_node = MAX_NODE};
    memset(r, 0, sizeof *r);
    /* streaming needs its ring, even when nothing is kept */
    if (w->streamed && q->cap[NIB_TIER_RAM] < plan_ram_beside(q, &q->caches[0], true, w->packed, 0))
        return NIB_OK;
    NIB_TRY(choose(&p, m->picked, r, err));
    if (!r->found)
        return NIB_OK;
    d->streamed = w->streamed;
    d->packed = w->packed;
    d->cache = &q->caches[0];
    read_back(m, d);
    if (w->streamed)
        spread(m, d, room);
    return NIB_OK;
}

/* ---- all cases ---- */

static bool better(const plan_question *q, const plan_outcome *a, const plan_outcome *b) {
    if (!b->found)
        return true;
    if (q->speed > 0 && fabs(a->predicted.quality - b->predicted.quality) > 1e-12)
        return a->predicted.quality < b->predicted.quality;
    return a->predicted.tok_s > b->predicted.tok_s;
}

/* `trial`: memory for a decision that is not yet the best. */
static void copy_decision(plan_decision *to, const plan_decision *from, int n) {
    memcpy(to->choice, from->choice, (size_t)n * sizeof *to->choice);
    memcpy(to->activation, from->activation, (size_t)n * sizeof *to->activation);
    memcpy(to->kept, from->kept, (size_t)n * sizeof *to->kept);
    to->streamed = from->streamed;
    to->packed = from->packed;
    to->cache = from->cache;
}

static nib_status try_case(maker *m, which w, plan_decision *trial, plan_decision *best, plan_outcome *out,
                           nib_error *err) {
    choose_result r;
    plan_outcome now = {.found = true};
    NIB_TRY(solve(m, &w, trial, &r, err));
    if (r.found)
        plan_predict(m->q, trial, &now.predicted, &now.binds);
    /* the packed file is too large for its tier, or its checksums leave no room for the ring */
    if (w.packed && (!r.found || now.predicted.disk_peak > m->q->cap[NIB_TIER_DISK])) {
        w.packed = false;
        return try_case(m, w, trial, best, out, err);
    }
    if (!r.found)
        return NIB_OK;
    if (!better(m->q, &now, out))
        return NIB_OK;
    now.proved = r.proved;
    now.bound = m->q->speed > 0 || r.bound <= 0 ? now.predicted.tok_s : 1 / r.bound;
    now.min_ram = out->min_ram;
    now.whole_ram = out->whole_ram;
    now.min_loss = out->min_loss;
    *out = now;
    copy_decision(best, trial, m->q->n_block);
    return NIB_OK;
}

static nib_status try_both(maker *m, double lost, plan_decision *trial, plan_decision *best,
                           plan_outcome *out, nib_error *err) {
    NIB_TRY(try_case(m, (which){false, m->q->packed, lost}, trial, best, out, err));
    if (m->q->stream && m->q->cap[NIB_TIER_RAM] != NIB_AUTO)
        NIB_TRY(try_case(m, (which){true, m->q->packed, lost}, trial, best, out, err));
    return NIB_OK;
}

uint64_t plan_kept_bytes(const plan_question *q, bool *all) {
    uint64_t sum = 0;
    *all = true;
    for (int b = 0; q->kept && b < q->n_block; b++) {
        const uint64_t own = q->blocks[b].choices[0].bytes + q->blocks[b].choices[0].table_bytes;
        *all = *all && q->kept[b] >= own;
        sum += NUM_MIN(q->kept[b], own);
    }
    return sum;
}

/* Caps that would do, whatever the caps are. */
void plan_needs(const plan_question *q, plan_outcome *out) {
    bool all;
    const uint64_t kept = plan_kept_bytes(q, &all);
    uint64_t whole = 0, small = 0;
    for (int b = 0; b < q->n_block; b++) {
        uint64_t min = UINT64_MAX;
        for (int c = 0; c < q->blocks[b].n_choice; c++) {
            const plan_choice *x = &q->blocks[b].choices[c];
            if (c == 0 || (q->may_round && x->kl >= 0))
                min = NUM_MIN(min, x->bytes + x->table_bytes);
        }
        whole += q->blocks[b].choices[0].bytes + q->blocks[b].choices[0].table_bytes;
        small += min;
    }
    out->whole_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], false, false, whole));
    out->min_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], false, false, small));
    out->streamed_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], true, false, 0) + kept);
    if (q->kept)
        out->min_ram = all ? out->whole_ram : out->streamed_ram;
    else if (q->stream)
        out->min_ram = NUM_MIN(out->min_ram, out->streamed_ram);
}

/* One layer more each time, the least important first, while the loss allows it. */
static nib_status leave_out(maker *m, plan_decision *trial, plan_decision *best, plan_outcome *out,
                            nib_error *err) {
    double lost = 0;
    for (int i = 0; i < m->n_layer; i++) {
        const plan_block_facts *f = &m->q->blocks[m->order[i]];
        if (f->kl_left_out < 0)
            break;
        lost += f->kl_left_out;
        if (i == 0)
            out->min_loss = lost;
        if (lost > m->q->max_loss)
            break;
        m->left_out[m->order[i]] = true;
        NIB_TRY(try_both(m, lost, trial, best, out, err));
    }
    return NIB_OK;
}

nib_status plan_decide(const plan_question *q, plan_decision *d, plan_outcome *out, nib_error *err) {
    const size_t n = (size_t)q->n_block;
    maker m;
    memset(out, 0, sizeof *out);
    out->min_loss = -1;
    plan_needs(q, out);
    if (q->cap[NIB_TIER_RAM] < q->opening)
        return NIB_OK;
    NIB_TRY(maker_open(&m, q, err));
    plan_decision trial = {.choice = mem_array(n, sizeof *trial.choice),
                           .activation = mem_array(n, sizeof *trial.activation),
                           .kept = mem_array(n, sizeof *trial.kept)};
    nib_status status = NIB_OK;
    if (!trial.choice || !trial.activation || !trial.kept)
        status = nib_fail_nomem(err, n * sizeof *trial.kept, "planning");
    else if (q->mode == 'a')
        status = try_both(&m, 0, &trial, d, out, err);
    else
        status = leave_out(&m, &trial, d, out, err);
    mem_free(trial.choice);
    mem_free(trial.activation);
    mem_free(trial.kept);
    maker_close(&m);
    return status;
}
