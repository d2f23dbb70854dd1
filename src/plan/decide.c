/* decide.c - decides formats, activations, left-out layers and residency for one question. Two cases are
 * solved and the better one is taken: everything is resident, or a part is streamed through the ring. In each
 * case choose.h finds an option for each block; then whole pages get their tiers. Cases are compared by the
 * time of the whole workload, the prompt and all generated tokens. Layers are left out one by one, in the
 * order in which leaving them out together was measured. */
#include "plan/planner.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/choose.h"
#include "plan/homes.h"

#include <math.h>
#include <string.h>

enum { MAX_NODE = 60000 };

/* The paper's threshold (MCAP, section 3.2): layers with at least this score get 16-bit activations. */
#define TAU       0.7
#define SAME_TIME 1e-3 /* times that differ by less than this share count as equal */

/* The choice and the activation that an option stands for. */
typedef struct meaning {
    int choice, activation;
} meaning;

typedef struct maker {
    const plan_question *q;
    choose_option *options;
    meaning *means;
    int *first; /* [n_block + 1] */
    int *picked;
    bool *left_out;
    int *order; /* [n_layer]: layers, the least important first */
    int n_layer;
    uint8_t *home_of; /* [n_page] */
    uint64_t *bytes;  /* [n_block] */
    double *seconds;  /* [n_block] */
    double *prompt; /* [n_block][PLAN_MAX_CHOICE][2]: seconds of the prompt, with 8- and 16-bit activations */
} maker;

static void maker_close(maker *m) {
    mem_free(m->options);
    mem_free(m->means);
    mem_free(m->first);
    mem_free(m->picked);
    mem_free(m->left_out);
    mem_free(m->order);
    mem_free(m->home_of);
    mem_free(m->bytes);
    mem_free(m->seconds);
    mem_free(m->prompt);
}

static nib_status maker_open(maker *m, const plan_question *q, nib_error *err) {
    const size_t n = (size_t)q->n_block, max = n * PLAN_MAX_CHOICE * 2;
    *m = (maker){.q = q};
    m->options = mem_array(max, sizeof *m->options);
    m->means = mem_array(max, sizeof *m->means);
    m->first = mem_array(n + 1, sizeof *m->first);
    m->picked = mem_array(n, sizeof *m->picked);
    m->left_out = mem_calloc(n, sizeof *m->left_out);
    m->order = mem_array(n, sizeof *m->order);
    m->home_of = mem_array((size_t)q->n_page + 1, sizeof *m->home_of);
    m->bytes = mem_array(n, sizeof *m->bytes);
    m->seconds = mem_array(n, sizeof *m->seconds);
    m->prompt = mem_calloc(max, sizeof *m->prompt);
    if (!m->options || !m->means || !m->first || !m->picked || !m->left_out || !m->order || !m->home_of ||
        !m->bytes || !m->seconds || !m->prompt) {
        maker_close(m);
        return nib_fail_nomem(err, max * sizeof *m->options, "planning");
    }
    m->n_layer = plan_layer_order(q, m->order);
    return NIB_OK;
}

/* ---- the options of a block ---- */

static double *prompt_of(const maker *m, int b, int choice, int activation) {
    return &m->prompt[(b * PLAN_MAX_CHOICE + choice) * 2 + (activation == 16)];
}

/* Fills m->prompt. Returns how often the prompt reads a streamed page. Overwrites `any`. */
static double time_prompt(maker *m, plan_decision *any) {
    const plan_question *q = m->q;
    double reads = 0;
    for (int i = 0; i < 2 * PLAN_MAX_CHOICE; i++) {
        const int c = i / 2, activation = i % 2 ? 16 : 8;
        bool all_have = false;
        for (int b = 0; b < q->n_block; b++) {
            const int n = q->blocks[b].n_choice;
            any->choice[b] = m->left_out[b] || q->blocks[b].gone ? -1 : NUM_MIN(c, n - 1);
            any->activation[b] = activation;
            any->kept[b] = 0;
            all_have = all_have || c < n;
        }
        if (!all_have)
            break;
        const double n_read = plan_prompt_seconds(q, any, m->seconds);
        reads = i ? reads : n_read;
        for (int b = 0; b < q->n_block; b++)
            *prompt_of(m, b, c, activation) = m->seconds[b];
    }
    return reads;
}

static void add_option(maker *m, int b, int choice, int activation, bool streamed, double loss) {
    const plan_question *q = m->q;
    const int i = m->first[b + 1]++;
    const plan_choice *c = &q->blocks[b].choices[choice];
    const bool apart = streamed && plan_is_resident_on_gpu(q, b);
    const double prompt = q->speed > 0 ? 0 : *prompt_of(m, b, choice, activation);
    m->means[i] = (meaning){choice, activation};
    m->options[i] =
        (choose_option){.time = plan_block_seconds(q, b, choice, activation),
                        .bytes = apart ? 0 : (double)c->bytes + (streamed ? 0 : (double)c->table_bytes),
                        .loss = loss,
                        .before = prompt / (double)NUM_MAX(q->n_gen, 1)};
}

static void add_activations(maker *m, int b, int choice, bool streamed) {
    const plan_block_facts *f = &m->q->blocks[b];
    const double kl = f->choices[choice].kl;
    const int asked = f->activation ? f->activation : m->q->activation;
    if (asked) {
        add_option(m, b, choice, asked, streamed, kl + plan_activation_loss(f, asked));
    } else if (f->kl_a8 >= 0) {
        add_option(m, b, choice, 8, streamed, kl + f->kl_a8);
        add_option(m, b, choice, 16, streamed, kl);
    } else {
        add_option(m, b, choice, f->importance >= TAU ? 16 : 8, streamed, kl);
    }
}

/* Lists the options of all blocks. Rounding takes far longer than reading, so streamed pages are rounded only
 * when a packed file stores the result. */
static void list_ways(maker *m, bool streamed, bool packed) {
    const plan_question *q = m->q;
    const bool round = q->may_round && q->mode != 'b' && (packed || !streamed);
    m->first[0] = 0;
    for (int b = 0; b < q->n_block; b++) {
        m->first[b + 1] = m->first[b];
        if (m->left_out[b] || q->blocks[b].gone) {
            m->means[m->first[b + 1]] = (meaning){-1, 8};
            m->options[m->first[b + 1]++] = (choose_option){0};
            continue;
        }
        const int only = round && q->only_fewest ? q->blocks[b].only : -1;
        for (int c = 0; c < q->blocks[b].n_choice; c++)
            if ((c == 0 || (round && q->blocks[b].choices[c].kl >= 0)) && (only < 0 || c == only))
                add_activations(m, b, c, streamed);
    }
}

/* ---- residency ---- */

/* Whether the question's pages apply to this decision: they are those of every block's first choice. */
static bool knows_pages(const plan_question *q, const plan_decision *d) {
    bool known = q->pages != NULL;
    for (int b = 0; b < q->n_block && known; b++)
        known = d->choice[b] <= 0;
    return known;
}

static uint64_t bytes_of(const plan_question *q, const plan_decision *d, int b) {
    return d->choice[b] < 0 ? 0 : q->blocks[b].choices[d->choice[b]].bytes;
}

static uint64_t bytes_on_gpu(const plan_question *q, const plan_decision *d, int b) {
    return plan_bytes_on_gpu(q, b, bytes_of(q, d, b));
}

/* What is resident on the GPU is read from disk only once. */
static void keep_on_gpu(const plan_question *q, plan_decision *d) {
    for (int b = 0; b < q->n_block; b++) {
        const uint64_t on_gpu = bytes_on_gpu(q, d, b);
        if (on_gpu > 0)
            d->kept[b] = NUM_MIN(d->kept[b] + on_gpu, bytes_of(q, d, b));
    }
}

/* Whether RAM need not hold the page: its layer is left out, or the GPU has it. Of a layer of which a part is
 * on the GPU these are the first pages; `left`: their bytes. */
static bool is_elsewhere(const plan_question *q, const plan_decision *d, const pager_page *page,
                         uint64_t *left) {
    if (d->choice[page->block] < 0)
        return true;
    if (page->table || !plan_is_on_gpu(q, page->block))
        return false;
    if (plan_is_resident_on_gpu(q, page->block))
        return true;
    if (page->bytes > *left)
        return false;
    *left -= page->bytes;
    return true;
}

/* Makes as many of the pages that products read resident as fit. */
static void spread(const maker *m, plan_decision *d, uint64_t capacity) {
    const plan_question *q = m->q;
    const uint64_t left[PLACES] = {[PLACE_RAM] = capacity};
    if (!knows_pages(q, d)) {
        for (int b = 0; b < q->n_block; b++)
            m->bytes[b] = bytes_of(q, d, b) - bytes_on_gpu(q, d, b);
        homes_share(m->bytes, q->n_block, capacity, d->kept);
        keep_on_gpu(q, d);
        return;
    }
    for (int b = 0; b < q->n_block; b++)
        m->bytes[b] = bytes_on_gpu(q, d, b);
    for (int i = 0; i < q->n_page; i++)
        m->home_of[i] =
            is_elsewhere(q, d, &q->pages[i], &m->bytes[q->pages[i].block]) ? PLACE_DISK : HOME_OPEN;
    homes_spread(q->pages, q->n_page, left, m->home_of);
    memset(d->kept, 0, (size_t)q->n_block * sizeof *d->kept);
    for (int i = 0; i < q->n_page; i++)
        if (m->home_of[i] == PLACE_RAM && !q->pages[i].table)
            d->kept[q->pages[i].block] += q->pages[i].bytes;
    keep_on_gpu(q, d);
}

/* ---- one case ---- */

typedef struct which {
    bool streamed, packed;
    double lost; /* loss of the left-out layers, in nats */
} which;

static void read_back(const maker *m, plan_decision *d) {
    for (int b = 0; b < m->q->n_block; b++) {
        const meaning *x = &m->means[m->first[b] + m->picked[b]];
        d->choice[b] = x->choice;
        d->activation[b] = x->activation;
        d->kept[b] = bytes_of(m->q, d, b);
    }
}

static uint64_t capacity_of(const plan_question *q, const which *w) {
    const uint64_t others = plan_ram_beside(q, &q->caches[0], w->streamed, w->packed, 0);
    if (q->cap[NIB_TIER_RAM] == NIB_AUTO)
        return UINT64_MAX / 4;
    return q->cap[NIB_TIER_RAM] > others ? q->cap[NIB_TIER_RAM] - others : 0;
}

static choose_problem problem_of(maker *m, const which *w, double before_reads, uint64_t capacity) {
    const plan_question *q = m->q;
    const double halves = q->split ? 1 : PLAN_BY_HALVES; /* of tokens alone */
    choose_problem p = {.options = m->options,
                        .first = m->first,
                        .n_block = q->n_block,
                        .fixed_s = plan_fixed_seconds(q, &q->caches[0], w->streamed),
                        .apart = q->split ? 0 : PLAN_APART,
                        .before_reads = before_reads / halves / (double)NUM_MAX(q->n_gen, 1),
                        .max_bytes = w->streamed ? INFINITY : (double)capacity,
                        .max_loss = q->max_loss - w->lost,
                        .max_time = q->speed > 0 ? 1 / q->speed : INFINITY,
                        .max_node = MAX_NODE};
    if (w->streamed)
        p.tiers[p.n_tier++] = (choose_tier){(double)capacity, halves * plan_disk_seconds(q, w->packed),
                                            plan_stolen_seconds(&q->rates, w->packed)};
    return p;
}

static void make_decision(maker *m, const which *w, uint64_t capacity, plan_decision *d) {
    read_back(m, d);
    if (w->streamed)
        spread(m, d, capacity);
}

/* ---- all cases ---- */

/* Whether a is better than b. If a speed is requested: less loss. Otherwise less time, and with equal times
 * less loss. */
static bool better(const plan_question *q, const plan_outcome *a, const plan_outcome *b) {
    if (!b->found)
        return true;
    const double less = b->predicted.quality - a->predicted.quality;
    if (q->speed > 0)
        return fabs(less) > 1e-12 ? less > 0 : a->predicted.tok_s > b->predicted.tok_s;
    const double now = plan_run_seconds(q, &a->predicted), before = plan_run_seconds(q, &b->predicted);
    if (fabs(now - before) <= SAME_TIME * before && fabs(less) > 1e-12)
        return less > 0;
    return now < before;
}

/* Copies a decision; `to` has arrays of its own. */
static void copy_decision(plan_decision *to, const plan_decision *from, int n) {
    memcpy(to->choice, from->choice, (size_t)n * sizeof *to->choice);
    memcpy(to->activation, from->activation, (size_t)n * sizeof *to->activation);
    memcpy(to->kept, from->kept, (size_t)n * sizeof *to->kept);
    to->streamed = from->streamed;
    to->packed = from->packed;
    to->cache = from->cache;
}

/* Keeps the choice that choose() found if it is the best so far. */
static bool offer(maker *m, const plan_decision *trial, const choose_result *r, plan_decision *best,
                  plan_outcome *out) {
    plan_outcome now = {.found = true};
    plan_predict(m->q, trial, &now.predicted, &now.binds);
    if (trial->packed && now.predicted.disk_peak > m->q->cap[NIB_TIER_DISK])
        return false; /* the packed file is too large for its tier */
    if (!better(m->q, &now, out))
        return true;
    now.proved = r->proved;
    now.bound = now.predicted.tok_s * (m->q->speed > 0 || r->bound <= 0 ? 1 : r->time / r->bound);
    now.min_ram = out->min_ram;
    now.whole_ram = out->whole_ram;
    now.min_loss = out->min_loss;
    *out = now;
    copy_decision(best, trial, m->q->n_block);
    return true;
}

/* Finds the fastest decision, then the one with the least loss among those that take as long. *fits: there is
 * one. */
static nib_status solve(maker *m, const which *w, plan_decision *trial, plan_decision *best,
                        plan_outcome *out, bool *fits, nib_error *err) {
    const plan_question *q = m->q;
    const uint64_t capacity = capacity_of(q, w);
    *fits = false;
    /* streaming needs its ring, even when nothing is kept */
    if (w->streamed && q->cap[NIB_TIER_RAM] < plan_ram_beside(q, &q->caches[0], true, w->packed, 0))
        return NIB_OK;
    trial->streamed = w->streamed;
    trial->packed = w->packed;
    trial->cache = &q->caches[0];
    const double reads = q->speed > 0 ? 0 : time_prompt(m, trial);
    list_ways(m, w->streamed, w->packed);
    choose_problem p = problem_of(m, w, reads, capacity);
    choose_result r, less;
    NIB_TRY(choose(&p, m->picked, &r, err));
    if (!r.found)
        return NIB_OK;
    make_decision(m, w, capacity, trial);
    *fits = offer(m, trial, &r, best, out);
    p.max_time = r.time * (1 + SAME_TIME / 2);
    if (q->speed > 0 || r.loss <= 0)
        return NIB_OK;
    NIB_TRY(choose(&p, m->picked, &less, err));
    if (!less.found || !(less.loss < r.loss))
        return NIB_OK;
    make_decision(m, w, capacity, trial);
    *fits = offer(m, trial, &r, best, out) || *fits;
    return NIB_OK;
}

static nib_status try_case(maker *m, which w, plan_decision *trial, plan_decision *best, plan_outcome *out,
                           nib_error *err) {
    bool fits;
    NIB_TRY(solve(m, &w, trial, best, out, &fits, err));
    if (fits || !w.packed)
        return NIB_OK;
    w.packed = false; /* the file does not fit, or its checksums leave too little memory for the ring */
    return solve(m, &w, trial, best, out, &fits, err);
}

static nib_status try_both(maker *m, double lost, plan_decision *trial, plan_decision *best,
                           plan_outcome *out, nib_error *err) {
    NIB_TRY(try_case(m, (which){false, m->q->packed, lost}, trial, best, out, err));
    if (m->q->stream && m->q->cap[NIB_TIER_RAM] != NIB_AUTO)
        NIB_TRY(try_case(m, (which){true, m->q->packed, lost}, trial, best, out, err));
    return NIB_OK;
}

/* Tries other formats, then the file's own formats alone. The pages of the latter are known, so their time is
 * exact, and the plan must not be worse than they are. */
static nib_status try_formats(maker *m, double lost, plan_decision *trial, plan_decision *best,
                              plan_outcome *out, nib_error *err) {
    const plan_question *q = m->q;
    plan_question own = *q;
    NIB_TRY(try_both(m, lost, trial, best, out, err));
    if (!q->may_round || q->mode == 'b' || (q->only_fewest && out->found))
        return NIB_OK;
    own.may_round = false;
    m->q = &own;
    const nib_status status = try_both(m, lost, trial, best, out, err);
    m->q = q;
    return status;
}

/* Without measured costs and without a requested loss: leaves out as many layers as necessary for the others
 * to be resident (MCAP's configuration B), but at most half of them: below its hot-only viability floor of 50
 * % active layers (section 3.5, table 17) the paper's models write no sense. */
static nib_status leave_out_blindly(maker *m, plan_decision *trial, plan_decision *best, plan_outcome *out,
                                    nib_error *err) {
    for (int n = 0;; n++) {
        NIB_TRY(try_case(m, (which){false, m->q->packed, 0}, trial, best, out, err));
        if (out->found || n == m->n_layer / 2)
            return NIB_OK;
        m->left_out[m->order[n]] = true;
    }
}

/* Leaves out one layer more each time while the loss allows it. */
static nib_status leave_out(maker *m, plan_decision *trial, plan_decision *best, plan_outcome *out,
                            nib_error *err) {
    if (m->n_layer && plan_loss_without(m->q, m->order, 1) < 0 && m->q->max_loss >= PLAN_ANY_LOSS &&
        plan_has_scores(m->q))
        return leave_out_blindly(m, trial, best, out, err);
    for (int i = 0; i < m->n_layer; i++) {
        const double lost = plan_loss_without(m->q, m->order, i + 1);
        if (lost < 0)
            break;
        if (i == 0)
            out->min_loss = lost;
        if (lost > m->q->max_loss)
            break;
        m->left_out[m->order[i]] = true;
        NIB_TRY(try_formats(m, lost, trial, best, out, err));
    }
    return NIB_OK;
}

/* Tries all layers, then fewer if that is allowed and was measured. */
static nib_status try_all_layers(maker *m, plan_decision *trial, plan_decision *best, plan_outcome *out,
                                 nib_error *err) {
    NIB_TRY(try_formats(m, 0, trial, best, out, err));
    return m->q->may_leave_out && plan_has_sweep(m->q) ? leave_out(m, trial, best, out, err) : NIB_OK;
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
        status = try_all_layers(&m, &trial, d, out, err);
    else
        status = leave_out(&m, &trial, d, out, err);
    mem_free(trial.choice);
    mem_free(trial.activation);
    mem_free(trial.kept);
    maker_close(&m);
    return status;
}
