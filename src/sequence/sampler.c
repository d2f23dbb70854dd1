/* sampler.c - see sampler.h. With top-k, only the k best logits are kept: most blocks of logits need only one
 * comparison of their largest with the smallest kept one. The cuts are in cuts.c. */
#include "sequence/sampler.h"

#include "base/mem.h"
#include "base/num.h"
#include "sequence/cuts.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void nib_sampling_init(nib_sampling *s) {
    *s = (nib_sampling){.temperature = 0.8f,
                        .top_k = 40,
                        .top_p = 0.95f,
                        .min_p = 0.05f,
                        .repeat_penalty = 1,
                        .penalty_window = 64,
                        .typical_p = 1,
                        .xtc_threshold = 0.1f,
                        .dynatemp_exponent = 1,
                        .mirostat_tau = 5,
                        .mirostat_eta = 0.1f,
                        .dry_base = 1.75f,
                        .dry_allowed_length = 2,
                        .dry_window = 64};
}

nib_status sampler_check(const nib_sampling *s, nib_error *err) {
    const struct {
        const char *name;
        float value, min, max;
        bool above; /* the minimum itself is not allowed */
    } rows[] = {
        {"temperature", s->temperature, 0, FLT_MAX, false},
        {"top-p", s->top_p, 0, 1, true},
        {"min-p", s->min_p, 0, 1, false},
        {"repeat penalty", s->repeat_penalty, 0, FLT_MAX, true},
        {"frequency penalty", s->frequency_penalty, -FLT_MAX, FLT_MAX, false},
        {"presence penalty", s->presence_penalty, -FLT_MAX, FLT_MAX, false},
        {"typical-p", s->typical_p, 0, 1, false},
        {"top-n-sigma", s->top_n_sigma, -FLT_MAX, FLT_MAX, false},
        {"XTC's probability", s->xtc_probability, 0, 1, false},
        {"XTC's threshold", s->xtc_threshold, 0, 1, false},
        {"range of the temperature", s->dynatemp_range, 0, FLT_MAX, false},
        {"exponent of the temperature", s->dynatemp_exponent, 0, FLT_MAX, false},
        {"mirostat's tau", s->mirostat_tau, 0, FLT_MAX, false},
        {"mirostat's eta", s->mirostat_eta, 0, FLT_MAX, false},
        {"DRY's multiplier", s->dry_multiplier, 0, FLT_MAX, false},
        {"DRY's base", s->dry_base, 0, FLT_MAX, false},
        {"top-k", (float)s->top_k, 0, FLT_MAX, false},
        {"penalty window", (float)s->penalty_window, -1, FLT_MAX, false},
        {"mirostat", (float)s->mirostat, 0, 2, false},
        {"DRY's allowed length", (float)s->dry_allowed_length, 0, FLT_MAX, false},
        {"DRY's window", (float)s->dry_window, -1, FLT_MAX, false},
    };
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        const float x = rows[i].value, min = rows[i].min, max = rows[i].max;
        if (x >= min && x <= max && !(rows[i].above && x == min))
            continue;
        char low[32] = "a finite number", high[32] = "";
        if (min > -FLT_MAX)
            snprintf(low, sizeof low, rows[i].above ? "more than %s" : "%s or more",
                     num_text((double)min, 6));
        if (max < FLT_MAX)
            snprintf(high, sizeof high, " and at most %s", num_text((double)max, 6));
        return nib_fail(err, NIB_E_USAGE, "%s: expected %s%s, found %s", rows[i].name, low, high,
                        num_text((double)x, 6));
    }
    return order_check(s->samplers, err);
}

/* The best token is certain to be drawn: no cut before the temperature can remove it. */
static bool is_greedy(const nib_sampling *s) {
    const bool typical = s->typical_p > 0 && s->typical_p < 1;
    return !*s->samplers && s->temperature <= 0 && s->dynatemp_range <= 0 && !typical && !sampling_has_xtc(s);
}

/* Turns off what has no effect: samplers outside a given order, with mirostat, all but the temperature, and
 * before greedy, all cuts. */
static nib_sampling effective(const nib_sampling *how) {
    nib_sampling s = *how;
    if (s.mirostat && s.temperature > 0)
        s = (nib_sampling){.temperature = how->temperature,
                           .top_p = 1,
                           .repeat_penalty = 1,
                           .mirostat = how->mirostat,
                           .mirostat_tau = how->mirostat_tau,
                           .mirostat_eta = how->mirostat_eta,
                           .seed = how->seed};
    else if (s.mirostat)
        s = (nib_sampling){.top_p = 1, .repeat_penalty = 1};
    else
        order_reduce(&s);
    if (is_greedy(&s))
        s.top_n_sigma = 0;
    return s;
}

/* Whether more than the largest logits decide. */
static bool needs_all(const nib_sampling *s) {
    return s->mirostat || s->top_n_sigma > 0 || sampling_has_dry(s) || *s->samplers;
}

/* Penalties lower at most as many logits as the window has tokens, so that many more of the largest are
 * needed. */
int32_t nib_sampling_n_best(const nib_sampling *how) {
    const nib_sampling s = effective(how);
    const int64_t k = needs_all(&s) ? 0 : is_greedy(&s) ? 1 : s.top_k;
    if (k == 0 || !sampling_penalises(&s))
        return (int32_t)k;
    const bool gives = s.repeat_penalty < 1 || s.frequency_penalty < 0 || s.presence_penalty < 0;
    if (gives || s.penalty_window < 0 || k + s.penalty_window > INT32_MAX)
        return 0;
    return (int32_t)(k + s.penalty_window);
}

/* Number of candidates that are considered one by one. */
static int64_t list_length(const nib_sampling *s, int64_t n_vocab) {
    if (is_greedy(s))
        return 0;
    return s->top_k > 0 && !*s->samplers ? NUM_MIN(s->top_k, n_vocab) : n_vocab;
}

uint64_t sampler_bytes(const nib_sampling *how, int64_t n_vocab) {
    const nib_sampling s = effective(how);
    return (uint64_t)list_length(&s, n_vocab) * (sizeof(candidate) + sizeof(float)) +
           (uint64_t)n_vocab * (sampling_penalises(&s) ? sizeof(int32_t) : 0);
}

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t rotate(uint64_t x, int n) {
    return (x << n) | (x >> (64 - n));
}

/* xoshiro256** -> [0, 1) with 53 bits. */
double sampler_unit(sampler *of) {
    uint64_t *s = of->state;
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

nib_status sampler_open(sampler *s, const nib_sampling *how, int64_t n_vocab, nib_error *err) {
    memset(s, 0, sizeof *s);
    NIB_TRY(sampler_check(how, err));
    s->how = effective(how);
    s->n_vocab = n_vocab;
    s->surprise = 2 * (double)how->mirostat_tau;
    s->bytes = sampler_bytes(how, n_vocab);
    uint64_t seed = how->seed;
    for (int i = 0; i < 4; i++)
        s->state[i] = splitmix(&seed);
    if (s->bytes == 0)
        return NIB_OK;
    uint8_t *at = mem_calloc(1, s->bytes);
    if (!at)
        return nib_fail_nomem(err, s->bytes, "the sampler");
    s->list = (candidate *)at; /* the start of the allocation, which close frees */
    s->n_list = list_length(&s->how, n_vocab);
    if (s->n_list) {
        s->weight = (float *)(s->list + s->n_list);
        at = (uint8_t *)(s->weight + s->n_list);
    }
    if (sampling_penalises(&s->how))
        s->count = (int32_t *)at;
    return NIB_OK;
}

void sampler_close(sampler *s) {
    mem_free(s->list);
    memset(s, 0, sizeof *s);
}

float sampler_lowered(const sampler *s, float logit, int32_t id) {
    return s->lower ? logit - s->lower[id] : logit;
}

float sampler_penalised(const sampler *s, float logit, int32_t id) {
    return logit_penalised(logit, s->count ? s->count[id] : 0, s->how.repeat_penalty,
                           s->how.frequency_penalty, s->how.presence_penalty);
}

/* Applies penalties and DRY to one logit. */
static float penalised(const sampler *s, const float *logits, int32_t id) {
    return sampler_lowered(s, sampler_penalised(s, logits[id], id), id);
}

/* The largest of n logits, in 16 lanes. NaNs are skipped; minus infinity: all are NaN. */
static float largest(const float *x, int64_t n) {
    enum { LANES = 16 };
    float max[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        max[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            max[l] = x[i + l] > max[l] ? x[i + l] : max[l];
    for (; i < n; i++)
        max[0] = x[i] > max[0] ? x[i] : max[0];
    for (int l = 1; l < LANES; l++)
        max[0] = max[l] > max[0] ? max[l] : max[0];
    return max[0];
}

/* The greedy token without penalties: the first of the largest logits; infinity counts as FLT_MAX. */
static int32_t first_largest(const float *logits, int64_t n) {
    const float best = NUM_MIN(largest(logits, n), FLT_MAX);
    for (int64_t i = 0; i < n && best > -INFINITY; i++)
        if (logits[i] >= best)
            return (int32_t)i;
    return 0;
}

static int32_t greedy(const sampler *s, const float *logits) {
    if (!s->count && !s->lower)
        return first_largest(logits, s->n_vocab);
    candidate best = {penalised(s, logits, 0), 0};
    for (int32_t i = 1; i < s->n_vocab; i++) {
        candidate c = {penalised(s, logits, i), i};
        if (candidate_better(c, best))
            best = c;
    }
    return best.id;
}

/* ---- top-k: the k best, kept in a heap with the worst of them on top ---- */

static void sift_worst(candidate *heap, int64_t n, int64_t i) {
    candidate moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && candidate_better(heap[child], heap[child + 1]))
            child++;
        if (!candidate_better(moved, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

static void offer(const sampler *s, const float *logits, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++) {
        candidate c = {penalised(s, logits, (int32_t)id), (int32_t)id};
        if (!candidate_better(c, s->list[0]))
            continue;
        s->list[0] = c;
        sift_worst(s->list, s->n_list, 0);
    }
}

/* Fills the list with the n_list best logits, the best last. */
static void select_best(sampler *s, const float *logits) {
    enum { BLOCK = 64 };
    const int64_t k = s->n_list;
    for (int64_t i = 0; i < k; i++)
        s->list[i] = (candidate){penalised(s, logits, (int32_t)i), (int32_t)i};
    for (int64_t i = k / 2; i-- > 0;)
        sift_worst(s->list, k, i);
    for (int64_t i = k; i < s->n_vocab; i += BLOCK) {
        const int64_t end = NUM_MIN(i + BLOCK, s->n_vocab);
        /* a penalty may also raise a logit */
        if (s->count || largest(logits + i, end - i) > s->list[0].logit)
            offer(s, logits, i, end);
    }
    /* the heap has its worst on top, so popping would give the wrong order: turn it round */
    candidates_heap(s->list, k);
    for (int64_t n = k; n > 1; n--)
        candidates_pop(s->list, n);
}

/* Another order than the usual one: all samplers act on the list. */
static int32_t draw_in_order(sampler *s, const float *logits) {
    for (int64_t i = 0; i < s->n_list; i++)
        s->list[i] = (candidate){logit_penalised(logits[i], 0, 1, 0, 0), (int32_t)i};
    return cuts_draw(s, 0, s->how.samplers);
}

/* Top-n-sigma: logits below the largest by more than n standard deviations of all. */
static float sigma_limit(const sampler *s, const float *logits) {
    double sum = 0, squares = 0, n = 0, best = -INFINITY;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        const double x = (double)penalised(s, logits, i);
        best = NUM_MAX(best, x);
        n += x > -INFINITY;
        sum += x > -INFINITY ? x : 0;
    }
    for (int32_t i = 0; i < s->n_vocab; i++) {
        const double x = (double)penalised(s, logits, i) - sum / n;
        squares += x > -INFINITY ? x * x : 0;
    }
    return (float)(best - (double)s->how.top_n_sigma * sqrt(squares / n));
}

static int32_t draw_from_list(sampler *s, const float *logits) {
    const bool all = s->n_list == s->n_vocab;
    if (*s->how.samplers)
        return draw_in_order(s, logits);
    if (!all)
        select_best(s, logits);
    for (int64_t i = 0; all && i < s->n_list; i++)
        s->list[i] = (candidate){penalised(s, logits, (int32_t)i), (int32_t)i};
    if (s->how.top_n_sigma > 0) {
        const float limit = sigma_limit(s, logits);
        for (int64_t i = 0; i < s->n_list; i++)
            if (s->list[i].logit < limit)
                s->list[i].logit = -INFINITY;
    }
    return cuts_draw(s, all ? 0 : s->n_list, CUTS_USUAL);
}

/* Number of the last tokens that the penalties consider. */
static int64_t window_of(const sampler *s, int64_t n) {
    return s->how.penalty_window < 0 ? n : NUM_MIN(n, s->how.penalty_window);
}

static void count_past(sampler *s, const int32_t *past, int64_t n, int32_t by) {
    for (int64_t i = n - window_of(s, n); i < n; i++)
        if (past[i] >= 0 && past[i] < s->n_vocab)
            s->count[past[i]] += by;
}

int32_t sampler_draw(sampler *s, const float *logits, const int32_t *past, int64_t n_past) {
    if (s->count)
        count_past(s, past, n_past, 1);
    const int32_t id = s->n_list == 0 ? greedy(s, logits) : draw_from_list(s, logits);
    if (s->count)
        count_past(s, past, n_past, -1);
    return id;
}

int32_t sampler_n_best(const sampler *s, int32_t max) {
    const int64_t n = s->n_list == 0 ? 1 : s->n_list;
    return n > max || n >= s->n_vocab || needs_all(&s->how) ? 0 : (int32_t)n;
}

int64_t sampler_max_changes(const sampler *s, int64_t n_past) {
    return s->count ? NUM_MIN(window_of(s, n_past), s->n_vocab) : 0;
}

int64_t sampler_changes(sampler *s, const int32_t *past, int64_t n_past, const nib_logit_bias *bias,
                        int64_t n_bias, logit_change *out) {
    int32_t *const count = s->count;
    const int64_t window = count ? window_of(s, n_past) : 0;
    int64_t n = 0;
    if (count)
        count_past(s, past, n_past, 1);
    for (int64_t i = 0; i < n_bias; i++) {
        const int32_t id = bias[i].token;
        out[n++] = (logit_change){id, count ? count[id] : 0, bias[i].bias};
        if (count)
            count[id] = 0;
    }
    for (int64_t i = n_past - window; i < n_past; i++) {
        const int32_t id = past[i];
        if (id < 0 || id >= s->n_vocab || count[id] == 0)
            continue;
        out[n++] = (logit_change){id, count[id], 0};
        count[id] = 0; /* counts each token once, and leaves all counts zero */
    }
    return n;
}

int32_t sampler_draw_best(sampler *s, const int32_t *ids, const float *logits) {
    if (s->n_list == 0)
        return logits[0] > -INFINITY ? ids[0] : 0; /* a NaN is never drawn */
    for (int64_t i = 0; i < s->n_list; i++) {
        const float x = isnan(logits[i]) ? -INFINITY : fminf(logits[i], FLT_MAX);
        s->list[s->n_list - 1 - i] = (candidate){x, ids[i]};
    }
    return cuts_draw(s, s->n_list, CUTS_USUAL);
}
