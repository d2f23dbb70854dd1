/* sampler.c - see sampler.h. With top-k, only the k best logits are kept: most blocks of logits need only one
 * comparison of their largest with the smallest kept one. Without top-k, candidates are in a heap, and only
 * as many are sorted as the cuts need. */
#include "sequence/sampler.h"

#include "base/mem.h"
#include "base/num.h"

#include <float.h>
#include <math.h>
#include <string.h>

void nib_sampling_init(nib_sampling *s) {
    *s = (nib_sampling){.temperature = 0.8f,
                        .top_k = 40,
                        .top_p = 0.95f,
                        .min_p = 0.05f,
                        .repeat_penalty = 1,
                        .penalty_window = 64};
}

nib_status sampler_check(const nib_sampling *s, nib_error *err) {
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return nib_fail(err, NIB_E_USAGE, "temperature: expected 0 or more, found %s",
                        num_text(s->temperature, 6));
    if (s->top_k < 0)
        return nib_fail(err, NIB_E_USAGE, "top-k: expected 0 or more, found %ld", (long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return nib_fail(err, NIB_E_USAGE, "top-p: expected more than 0 and at most 1, found %s",
                        num_text(s->top_p, 6));
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return nib_fail(err, NIB_E_USAGE, "min-p: expected 0 to 1, found %s", num_text(s->min_p, 6));
    if (!(s->repeat_penalty > 0) || isinf(s->repeat_penalty))
        return nib_fail(err, NIB_E_USAGE, "repeat penalty: expected more than 0, found %s",
                        num_text(s->repeat_penalty, 6));
    if (!isfinite(s->frequency_penalty) || !isfinite(s->presence_penalty))
        return nib_fail(err, NIB_E_USAGE, "frequency and presence penalty: expected finite numbers");
    if (s->penalty_window < -1)
        return nib_fail(err, NIB_E_USAGE, "penalty window: expected -1 or more, found %ld",
                        (long)s->penalty_window);
    return NIB_OK;
}

static bool penalises(const nib_sampling *s) {
    return s->penalty_window != 0 &&
           (s->repeat_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0);
}

/* Penalties lower at most as many logits as the window has tokens, so that many more of the largest are
 * needed. */
int32_t nib_sampling_n_best(const nib_sampling *s) {
    const int64_t k = s->temperature > 0 ? s->top_k : 1;
    if (k == 0 || !penalises(s))
        return (int32_t)k;
    const bool gives = s->repeat_penalty < 1 || s->frequency_penalty < 0 || s->presence_penalty < 0;
    if (gives || s->penalty_window < 0 || k + s->penalty_window > INT32_MAX)
        return 0;
    return (int32_t)(k + s->penalty_window);
}

static bool needs_list(const nib_sampling *s) {
    return s->temperature > 0;
}

/* Number of candidates that are considered one by one. */
static int64_t list_length(const nib_sampling *how, int64_t n_vocab) {
    if (!needs_list(how))
        return 0;
    return how->top_k > 0 ? NUM_MIN(how->top_k, n_vocab) : n_vocab;
}

uint64_t sampler_bytes(const nib_sampling *how, int64_t n_vocab) {
    return (uint64_t)list_length(how, n_vocab) * (sizeof(candidate) + sizeof(float)) +
           (uint64_t)n_vocab * (penalises(how) ? sizeof(int32_t) : 0);
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
static double draw_unit(uint64_t s[4]) {
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
    s->how = *how;
    s->n_vocab = n_vocab;
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
    s->n_list = list_length(how, n_vocab);
    if (s->n_list) {
        s->weight = (float *)(s->list + s->n_list);
        at = (uint8_t *)(s->weight + s->n_list);
    }
    if (penalises(how))
        s->count = (int32_t *)at;
    return NIB_OK;
}

void sampler_close(sampler *s) {
    mem_free(s->list);
    memset(s, 0, sizeof *s);
}

/* Applies the penalties to one logit. */
static float penalised(const sampler *s, const float *logits, int32_t id) {
    return logit_penalised(logits[id], s->count ? s->count[id] : 0, s->how.repeat_penalty,
                           s->how.frequency_penalty, s->how.presence_penalty);
}

static bool better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
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
    if (!s->count)
        return first_largest(logits, s->n_vocab);
    candidate best = {penalised(s, logits, 0), 0};
    for (int32_t i = 1; i < s->n_vocab; i++) {
        candidate c = {penalised(s, logits, i), i};
        if (better(c, best))
            best = c;
    }
    return best.id;
}

/* A heap with the best on top. */
static void sift_down(candidate *heap, int64_t n, int64_t i) {
    candidate moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(heap[child + 1], heap[child]))
            child++;
        if (!better(heap[child], moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Removes the best of the first n from the heap and puts it at list[n - 1], so that sorted candidates grow
 * downwards from the end of the list. */
static candidate pop(candidate *heap, int64_t n) {
    candidate best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
    return best;
}

/* exp(logit - best), the weight before temperature; 0 for minus infinity. */
static double mass(float logit, float best) {
    return logit == -INFINITY ? 0 : exp((double)logit - (double)best);
}

/* ---- top-k: the k best, kept in a heap with the worst of them on top ---- */

static void sift_worst(candidate *heap, int64_t n, int64_t i) {
    candidate moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(heap[child], heap[child + 1]))
            child++;
        if (!better(moved, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

static void offer(const sampler *s, const float *logits, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++) {
        candidate c = {penalised(s, logits, (int32_t)id), (int32_t)id};
        if (!better(c, s->list[0]))
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
    for (int64_t i = k / 2; i-- > 0;)
        sift_down(s->list, k, i);
    for (int64_t n = k; n > 1; n--)
        pop(s->list, n);
}

/* ---- the cuts ---- */

/* Number of the best candidates that form the nucleus (top-p) among the best `max`, which are sorted at the
 * end of the list. Probabilities are relative to these `max`. */
static int64_t cut_nucleus(const sampler *s, int64_t max, float best) {
    const int64_t n = s->n_list;
    double total = 0, sum = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < max; i++)
        total += mass(s->list[n - 1 - i].logit, best);
    while (kept < max && (kept == 0 || sum < (double)s->how.top_p * total))
        sum += mass(s->list[n - 1 - kept++].logit, best);
    return kept;
}

/* min-p: keeps candidates with at least this share of the best one's probability. The best always stays. */
static int64_t cut_unlikely(const sampler *s, int64_t kept, float best) {
    while (kept > 1 && mass(s->list[s->n_list - kept].logit, best) < (double)s->how.min_p)
        kept--;
    return kept;
}

/* Without top-k: pops candidates from the heap, best first, until both cuts are satisfied. */
static int64_t cut_heap(sampler *s, double total, float best) {
    const nib_sampling *how = &s->how;
    const int64_t n = s->n_list;
    int64_t kept = 0;
    double sum = 0;
    while (kept < n && (kept == 0 || how->top_p >= 1 || sum < (double)how->top_p * total)) {
        double m = mass(pop(s->list, n - kept).logit, best);
        kept++;
        sum += m;
        if (m < (double)how->min_p)
            break;
    }
    return cut_unlikely(s, kept, best);
}

/* Draws one of the last `kept` candidates of the list. */
static int32_t draw(sampler *s, int64_t kept) {
    int64_t n = s->n_list;
    float best = -INFINITY;
    for (int64_t i = n - kept; i < n; i++)
        best = NUM_MAX(best, s->list[i].logit);
    double total = 0, temperature = (double)s->how.temperature;
    for (int64_t i = n - kept; i < n; i++) {
        double x = ((double)s->list[i].logit - (double)best) / temperature;
        s->weight[i] = best == -INFINITY ? 1 : (float)exp(x);
        total += (double)s->weight[i];
    }
    double at = draw_unit(s->state) * total;
    int64_t last = n - 1;
    for (int64_t i = n - 1; i >= n - kept; i--) {
        at -= (double)s->weight[i];
        if (at < 0)
            return s->list[i].id;
        if (s->weight[i] > 0)
            last = i;
    }
    return s->list[last].id; /* rounding left a remainder: take the last candidate with a weight */
}

/* Draws from the n_list best, which are sorted, the best last. */
static int32_t draw_from_list(sampler *s) {
    int64_t kept = s->n_list;
    float best = s->list[kept - 1].logit;
    if (best == -INFINITY)
        return 0;
    if (s->how.top_p < 1)
        kept = cut_nucleus(s, kept, best);
    return draw(s, cut_unlikely(s, kept, best));
}

static int32_t draw_from_best(sampler *s, const float *logits) {
    select_best(s, logits);
    return draw_from_list(s);
}

static int32_t draw_from_all(sampler *s, const float *logits) {
    int64_t n = s->n_vocab;
    double total = 0;
    float best = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        s->list[i] = (candidate){penalised(s, logits, (int32_t)i), (int32_t)i};
        best = NUM_MAX(best, s->list[i].logit);
    }
    if (s->how.top_p >= 1 && s->how.min_p <= 0)
        return draw(s, n);
    if (best == -INFINITY)
        return s->list[0].id;
    if (s->how.top_p < 1)
        for (int64_t i = 0; i < n; i++)
            total += mass(s->list[i].logit, best);
    for (int64_t i = n / 2; i-- > 0;)
        sift_down(s->list, n, i);
    return draw(s, cut_heap(s, total, best));
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
    int32_t id = s->how.temperature <= 0  ? greedy(s, logits)
                 : s->n_list < s->n_vocab ? draw_from_best(s, logits)
                                          : draw_from_all(s, logits);
    if (s->count)
        count_past(s, past, n_past, -1);
    return id;
}

int32_t sampler_n_best(const sampler *s, int32_t max) {
    const int64_t n = s->how.temperature <= 0 ? 1 : s->n_list;
    return n > max || n >= s->n_vocab ? 0 : (int32_t)n;
}

int64_t sampler_max_changes(const sampler *s, int64_t n_past) {
    return s->count ? NUM_MIN(window_of(s, n_past), s->n_vocab) : 0;
}

int64_t sampler_changes(sampler *s, const int32_t *past, int64_t n_past, const nib_logit_bias *bias,
                        int64_t n_bias, logit_change *out) {
    const int64_t window = s->count ? window_of(s, n_past) : 0;
    int64_t n = 0;
    if (s->count)
        count_past(s, past, n_past, 1);
    for (int64_t i = 0; i < n_bias; i++) {
        const int32_t id = bias[i].token;
        out[n++] = (logit_change){id, s->count ? s->count[id] : 0, bias[i].bias};
        if (s->count)
            s->count[id] = 0;
    }
    for (int64_t i = n_past - window; i < n_past; i++) {
        const int32_t id = past[i];
        if (id < 0 || id >= s->n_vocab || s->count[id] == 0)
            continue;
        out[n++] = (logit_change){id, s->count[id], 0};
        s->count[id] = 0; /* counts each token once, and leaves all counts zero */
    }
    return n;
}

int32_t sampler_draw_best(sampler *s, const int32_t *ids, const float *logits) {
    if (s->how.temperature <= 0)
        return logits[0] > -INFINITY ? ids[0] : 0; /* a NaN is never drawn */
    for (int64_t i = 0; i < s->n_list; i++) {
        const float x = isnan(logits[i]) ? -INFINITY : fminf(logits[i], FLT_MAX);
        s->list[s->n_list - 1 - i] = (candidate){x, ids[i]};
    }
    return draw_from_list(s);
}
