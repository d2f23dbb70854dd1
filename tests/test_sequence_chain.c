/* Every sampler against the values that llama.cpp publishes for its own (tests/test-sampling.cpp there), and
 * the whole chain, mirostat and DRY against slow and obvious computations. */
#include "base/mem.h"
#include "base/num.h"
#include "sequence/dry.h"
#include "sequence/sampler.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_VOCAB = 60, MAX_PAST = 8 };

static nib_sampling plain(void) {
    nib_sampling how;
    nib_sampling_init(&how);
    how.temperature = 1;
    how.top_k = 0;
    how.top_p = 1;
    how.min_p = 0;
    return how;
}

/* The probabilities of the last draw. */
static void chances(const sampler *s, double *p) {
    double total = 0;
    memset(p, 0, (size_t)s->n_vocab * sizeof *p);
    for (int64_t i = s->n - s->to; i < s->n - s->from; i++)
        total += (double)s->weight[i];
    for (int64_t i = s->n - s->to; i < s->n - s->from; i++)
        p[s->list[i].id] = (double)s->weight[i] / total;
}

/* ---- published values ---- */

typedef struct published {
    float p[5], right[5]; /* before and after; fewer tokens: zeros at the end */
    int n, n_past;
    int32_t past[MAX_PAST];
    nib_sampling how;
    int breaker; /* a token that ends repetitions; 0: none */
} published;

static void check_published(published c) {
    float logits[5];
    double p[5];
    sampler s;
    dry d;
    nib_error err;
    for (int i = 0; i < c.n; i++)
        logits[i] = logf(c.p[i]);
    c.how.top_p = c.how.top_p > 0 ? c.how.top_p : 1;
    c.how.repeat_penalty = c.how.repeat_penalty > 0 ? c.how.repeat_penalty : 1;
    assert_int_equal(sampler_open(&s, &c.how, c.n, &err), NIB_OK);
    assert_int_equal(dry_open(&d, &c.how, NULL, c.n, MAX_PAST, &err), NIB_OK);
    if (c.breaker)
        d.breaks[c.breaker] = 1;
    s.lower = d.lower;
    dry_apply(&d, c.past, c.n_past);
    const int32_t id = sampler_draw(&s, logits, c.past, c.n_past);
    dry_undo(&d, c.past, c.n_past);
    if (c.how.temperature > 0)
        chances(&s, p);
    for (int i = 0; i < c.n; i++)
        if (fabs((c.how.temperature > 0 ? p[i] : i == id) - (double)c.right[i]) > 1e-5)
            fail_msg("token %d: %g, expected %g", i, c.how.temperature > 0 ? p[i] : i == id,
                     (double)c.right[i]);
    dry_close(&d);
    sampler_close(&s);
}

static void check_all(const published *all, size_t n) {
    for (size_t i = 0; i < n; i++) {
        print_message("case %zu\n", i);
        check_published(all[i]);
    }
}

#define FOUR                                                                                                 \
    { 0.1f, 0.2f, 0.3f, 0.4f }
#define DOWN                                                                                                 \
    { 0.4f, 0.3f, 0.2f, 0.1f }
#define FIFTHS                                                                                               \
    { 0.2f, 0.2f, 0.2f, 0.2f, 0.2f }
#define SAMPLING(...)                                                                                        \
    { .temperature = 1, .penalty_window = -1, __VA_ARGS__ }
#define DYNAMIC(t, range, exponent)                                                                          \
    { .temperature = t, .dynatemp_range = range, .dynatemp_exponent = exponent, .penalty_window = -1 }
#define DRY(multiplier, allowed, window)                                                                     \
    SAMPLING(.dry_multiplier = multiplier, .dry_base = 1.1f, .dry_allowed_length = allowed,                  \
             .dry_window = window)

static void published_values(void **state) {
    (void)state;
    static const published all[] = {
        {FOUR, FOUR, 4, .how = SAMPLING(.seed = 1)},
        {FOUR, {0, 0, 0, 1}, 4, .how = {.temperature = 0}},
        {FOUR, {0, 0, 0, 1}, 4, .how = SAMPLING(.top_k = 1)},
        {FOUR, {0, 0.22222f, 0.33333f, 0.44444f}, 4, .how = SAMPLING(.top_k = 3)},
        {FOUR, FOUR, 4, .how = SAMPLING(.top_k = 4)},
        {FOUR, {0, 0, 0, 1}, 4, .how = SAMPLING(.top_p = FLT_MIN)},
        {FOUR, {0, 0, 0.428571f, 0.571429f}, 4, .how = SAMPLING(.top_p = 0.69f)},
        {FOUR, {0, 0.22222f, 0.33333f, 0.44444f}, 4, .how = SAMPLING(.top_p = 0.8f)},
        {FOUR, FOUR, 4, .how = SAMPLING(.min_p = 0.24f)},
        {FOUR, {0, 0.22222f, 0.33333f, 0.44444f}, 4, .how = SAMPLING(.min_p = 0.26f)},
        {FOUR, {0, 0.22222f, 0.33333f, 0.44444f}, 4, .how = SAMPLING(.min_p = 0.49f)},
        {FOUR, {0, 0, 0.428571f, 0.571429f}, 4, .how = SAMPLING(.min_p = 0.51f)},
        {FOUR, {0, 0, 0.428571f, 0.571429f}, 4, .how = SAMPLING(.min_p = 0.74f)},
        {FOUR, {0, 0, 0, 1}, 4, .how = SAMPLING(.min_p = 0.76f)},
        {FOUR, {0, 0, 0, 1}, 4, .how = SAMPLING(.min_p = 1)},
        {DOWN, {0, 0, 0, 1}, 4, .how = SAMPLING(.xtc_probability = 1, .xtc_threshold = 0.09f)},
        {DOWN, {0, 0, 0.66667f, 0.33333f}, 4, .how = SAMPLING(.xtc_probability = 1, .xtc_threshold = 0.19f)},
        {DOWN,
         {0, 0.5f, 0.33333f, 0.16667f},
         4,
         .how = SAMPLING(.xtc_probability = 1, .xtc_threshold = 0.29f)},
        {DOWN, DOWN, 4, .how = SAMPLING(.xtc_probability = 1, .xtc_threshold = 0.39f)},
        {DOWN, DOWN, 4, .how = SAMPLING(.xtc_probability = 1, .xtc_threshold = 0.51f)},
        {{0.97f, 0.01f, 0.01f, 0.01f}, {1, 0, 0, 0}, 4, .how = SAMPLING(.typical_p = 0.5f)},
        {{0.4f, 0.2f, 0.2f, 0.2f}, {0, 0.33333f, 0.33333f, 0.33333f}, 4, .how = SAMPLING(.typical_p = 0.5f)},
        {FOUR, {0, 0, 0.428571f, 0.571429f}, 4, .how = SAMPLING(.top_n_sigma = 1)},
        {FOUR, FOUR, 4, .how = SAMPLING(.top_n_sigma = 0)},
        {FOUR, FOUR, 4, .how = SAMPLING(.top_n_sigma = 3)},
        {FIFTHS, {0, 0.25f, 0.25f, 0.25f, 0.25f}, 5, 1, {0}, .how = SAMPLING(.repeat_penalty = 50)},
        {FIFTHS, {0, 0, 0, 0.5f, 0.5f}, 5, 3, {0, 1, 2}, .how = SAMPLING(.repeat_penalty = 50)},
        {FIFTHS, {0, 0, 0, 0.5f, 0.5f}, 5, 5, {0, 1, 2, 0, 0}, .how = SAMPLING(.repeat_penalty = 50)},
        {FIFTHS,
         {0.000011f, 0.249997f, 0.249997f, 0.249997f, 0.249997f},
         5,
         1,
         {0},
         .how = SAMPLING(.frequency_penalty = 5, .presence_penalty = 5)},
        {FIFTHS,
         {0.000023f, 0.000023f, 0.000023f, 0.499966f, 0.499966f},
         5,
         3,
         {0, 1, 2},
         .how = SAMPLING(.frequency_penalty = 5, .presence_penalty = 5)},
        {FIFTHS,
         {0, 0.000023f, 0.000023f, 0.499977f, 0.499977f},
         5,
         5,
         {0, 1, 2, 0, 0},
         .how = SAMPLING(.frequency_penalty = 5, .presence_penalty = 5)},
        {{0.25f, 0.25f, 0.25f, 0.25f}, {0.25f, 0.25f, 0.25f, 0.25f}, 4, 2, {0, 1}, .how = DRY(1, 2, 4)},
        {{0.25f, 0.25f, 0.25f, 0.25f},
         {0.296923f, 0.296923f, 0.109232f, 0.296923f},
         4,
         5,
         {0, 1, 2, 0, 1},
         .how = DRY(1, 2, 5)},
        {FIFTHS, FIFTHS, 5, 6, {0, 1, 3, 4, 0, 1}, .how = DRY(1, 2, 6), .breaker = 3},
        {FIFTHS,
         {0.241818f, 0.241818f, 0.032727f, 0.241818f, 0.241818f},
         5,
         5,
         {0, 1, 2, 0, 1},
         .how = DRY(2, 2, 5)},
        {FIFTHS, FIFTHS, 5, 7, {0, 1, 2, 3, 4, 0, 1}, .how = DRY(1, 4, 7)},
    };
    check_all(all, NUM_COUNT(all));
}

/* Computed by calling the library of llama.cpp (0.3.36 of its Python package). */
static void library_values(void **state) {
    (void)state;
    static const published all[] = {
        {FOUR, {0.134408f, 0.218745f, 0.290847f, 0.356001f}, 4, .how = DYNAMIC(1, 0.5f, 1)},
        {FOUR, {0.107489f, 0.204645f, 0.298249f, 0.389617f}, 4, .how = DYNAMIC(0.8f, 0.3f, 0.5f)},
        {FOUR, {0.193052f, 0.239241f, 0.271226f, 0.296481f}, 4, .how = DYNAMIC(1.5f, 2, 1)},
        {FOUR, {0, 0, 0, 1}, 4, .how = SAMPLING(.mirostat = 2, .mirostat_eta = 0.1f, .mirostat_tau = 0.5f)},
        {FOUR,
         {0, 0, 0.428571f, 0.571429f},
         4,
         .how = SAMPLING(.mirostat = 2, .mirostat_eta = 0.1f, .mirostat_tau = 1)},
        {FOUR,
         {0, 0.22222f, 0.33333f, 0.44444f},
         4,
         .how = SAMPLING(.mirostat = 2, .mirostat_eta = 0.1f, .mirostat_tau = 1.5f)},
        {FOUR, FOUR, 4, .how = SAMPLING(.mirostat = 2, .mirostat_eta = 0.1f, .mirostat_tau = 2)},
    };
    check_all(all, NUM_COUNT(all));
}

/* ---- the whole chain against sorting and dividing ---- */

typedef struct entry {
    double logit, p, far;
    int id;
} entry;

static int by_logit(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id - y->id;
}

static int by_distance(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return fabs(x->far - y->far) > 1e-9 ? (x->far < y->far ? -1 : 1) : by_logit(a, b);
}

/* Sets p by the logits divided by t, and returns the entropy. */
static double softmax(entry *e, int n, double t) {
    double best = -INFINITY, total = 0, entropy = 0;
    for (int i = 0; i < n; i++)
        best = fmax(best, e[i].logit);
    for (int i = 0; i < n; i++)
        total += e[i].p = exp((e[i].logit - best) / t);
    for (int i = 0; i < n; i++) {
        e[i].p /= total;
        entropy -= e[i].p > 0 ? e[i].p * log(e[i].p) : 0;
    }
    return entropy;
}

static int keep_sigma(const nib_sampling *how, entry *e, int n) {
    double mean = 0, variance = 0;
    int some = n;
    while (e[some - 1].logit == -INFINITY)
        some--;
    for (int i = 0; i < some; i++)
        mean += e[i].logit / some;
    for (int i = 0; i < some; i++)
        variance += (e[i].logit - mean) * (e[i].logit - mean) / some;
    for (int i = 0; i < n && how->top_n_sigma > 0; i++)
        if (e[i].logit < e[0].logit - (double)how->top_n_sigma * sqrt(variance))
            e[i].logit = -INFINITY;
    return n;
}

static int keep_typical(const nib_sampling *how, entry *e, int n) {
    const double entropy = softmax(e, n, 1);
    double sum = 0;
    int kept = 0;
    for (int i = 0; i < n; i++)
        e[i].far = fabs(-log(e[i].p) - entropy);
    qsort(e, (size_t)n, sizeof *e, by_distance);
    while (kept < n && sum <= (double)how->typical_p)
        sum += e[kept++].p;
    qsort(e, (size_t)kept, sizeof *e, by_logit);
    return kept;
}

static int keep_likely(const nib_sampling *how, entry *e, int n) {
    double sum = 0;
    int kept = 0;
    softmax(e, n, 1);
    while (kept < n && (kept == 0 || how->top_p >= 1 || sum < (double)how->top_p))
        sum += e[kept++].p;
    while (kept > 1 && e[kept - 1].p < (double)how->min_p * e[0].p)
        kept--;
    return kept;
}

static double temperature_of(const nib_sampling *how, entry *e, int n) {
    const double t = (double)how->temperature, range = (double)how->dynatemp_range, low = fmax(0, t - range);
    if (range <= 0 || n < 2)
        return t;
    return low + (t + range - low) * pow(softmax(e, n, 1) / log(n), (double)how->dynatemp_exponent);
}

static void expected(const nib_sampling *how, const float *logits, int n_vocab, double *p) {
    entry all[MAX_VOCAB], *e = all;
    for (int i = 0; i < n_vocab; i++)
        e[i] = (entry){(double)logits[i], 0, 0, i};
    qsort(e, (size_t)n_vocab, sizeof *e, by_logit);
    int n = keep_sigma(how, e, n_vocab);
    if (how->top_k > 0 && how->top_k < n)
        n = how->top_k;
    if (how->typical_p < 1)
        n = keep_typical(how, e, n);
    n = keep_likely(how, e, n);
    softmax(e, n, 1);
    int over = 0;
    while (over < n && e[over].p >= (double)how->xtc_threshold)
        over++;
    if (how->xtc_probability >= 1 && over > 1)
        e += over - 1, n -= over - 1;
    softmax(e, n, fmax(temperature_of(how, e, n), 1e-9)); /* 0: certain */
    memset(p, 0, (size_t)n_vocab * sizeof *p);
    for (int i = 0; i < n; i++)
        p[e[i].id] = e[i].p;
}

static uint64_t random_state;

static double unit(void) { /* Marsaglia's xorshift64 */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) * 0x1p-53;
}

static float one_of(const float *values, int n) {
    return values[(int)(unit() * n)];
}

static void whole_chain(void **state) {
    (void)state;
    float logits[MAX_VOCAB];
    double p[MAX_VOCAB], q[MAX_VOCAB];
    random_state = 5;
    for (int round = 0; round < 3000; round++) {
        const int n = 2 + (int)(unit() * (MAX_VOCAB - 2));
        const double width = 1 + 4 * unit();
        nib_sampling how = plain();
        for (int i = 0; i < n; i++)
            logits[i] = (float)(unit() * width);
        how.temperature = one_of((float[]){0.5f, 1, 1.7f}, 3);
        how.top_k = (int32_t)one_of((float[]){0, 0, 5, 20}, 4);
        how.top_p = one_of((float[]){1, 0.9f, 0.5f}, 3);
        how.min_p = one_of((float[]){0, 0.05f, 0.3f}, 3);
        how.typical_p = one_of((float[]){1, 0.95f, 0.4f}, 3);
        how.top_n_sigma = one_of((float[]){0, 1, 2.5f}, 3);
        how.xtc_probability = one_of((float[]){0, 1}, 2);
        how.xtc_threshold = one_of((float[]){0.02f, 0.1f}, 2);
        how.dynatemp_range = one_of((float[]){0, 0.3f, 0.8f}, 3);
        how.dynatemp_exponent = one_of((float[]){1, 0.5f}, 2);
        how.seed = (uint64_t)round;
        sampler s;
        assert_int_equal(sampler_open(&s, &how, n, NULL), NIB_OK);
        const int32_t id = sampler_draw(&s, logits, NULL, 0);
        chances(&s, p);
        expected(&how, logits, n, q);
        assert_true(q[id] > 0);
        for (int i = 0; i < n && q[id] < 1; i++)
            if (fabs(p[i] - q[i]) > 1e-5)
                fail_msg("round %d, token %d: %g, expected %g", round, i, p[i], q[i]);
        sampler_close(&s);
    }
}

/* What one sampler leaves of the n best of a list, in order. */
static int keep_by(char letter, const nib_sampling *how, const int *count, const float *lower, entry **at,
                   int n) {
    nib_sampling one = *how;
    entry *e = *at;
    double t;
    int over = 0;
    switch (letter) {
    case 'e':
        for (int i = 0; i < n; i++)
            if (count[e[i].id]) {
                e[i].logit *= e[i].logit > 0 ? 1 / (double)how->repeat_penalty : (double)how->repeat_penalty;
                e[i].logit -= count[e[i].id] * (double)how->frequency_penalty + (double)how->presence_penalty;
            }
        break;
    case 'd':
        for (int i = 0; i < n; i++)
            e[i].logit -= (double)lower[e[i].id];
        break;
    case 's': return keep_sigma(how, e, n);
    case 'k': return how->top_k > 0 && how->top_k < n ? how->top_k : n;
    case 'y': return how->typical_p < 1 ? keep_typical(how, e, n) : n;
    case 'p': one.min_p = 0; return keep_likely(&one, e, n);
    case 'm': one.top_p = 1; return keep_likely(&one, e, n);
    case 'x':
        softmax(e, n, 1);
        while (over < n && e[over].p >= (double)how->xtc_threshold)
            over++;
        if (how->xtc_probability >= 1 && over > 1)
            *at += over - 1, n -= over - 1;
        return n;
    case 't':
        t = temperature_of(how, e, n);
        for (int i = 0; i < n && t > 0; i++)
            e[i].logit /= t;
        return t > 0 ? n : 1;
    }
    qsort(e, (size_t)n, sizeof *e, by_logit);
    return n;
}

/* Any samplers in any order, some twice, against one after the other. */
static void any_order(void **state) {
    (void)state;
    static const int32_t past[MAX_PAST] = {1, 0, 1, 3, 0, 1, 4, 1};
    float logits[MAX_VOCAB], lower[MAX_VOCAB];
    double p[MAX_VOCAB];
    random_state = 8;
    for (int round = 0; round < 4000; round++) {
        const int n = 5 + (int)(unit() * (MAX_VOCAB - 5));
        nib_sampling how = plain();
        entry all[MAX_VOCAB], *e = all;
        int count[MAX_VOCAB] = {0}, left = n;
        for (int i = 0; i < n; i++) {
            logits[i] = (float)(unit() * 6 - 2);
            lower[i] = one_of((float[]){0, 0, 1.5f}, 3);
            e[i] = (entry){(double)logits[i], 0, 0, i};
        }
        for (int i = 0; i < MAX_PAST; i++)
            count[past[i]]++;
        how.temperature = one_of((float[]){0, 0.5f, 1, 1.7f}, 4);
        how.top_k = (int32_t)one_of((float[]){0, 5, 20}, 3);
        how.top_p = one_of((float[]){1, 0.9f, 0.5f}, 3);
        how.min_p = one_of((float[]){0, 0.05f, 0.3f}, 3);
        how.typical_p = one_of((float[]){1, 0.95f, 0.4f}, 3);
        how.top_n_sigma = one_of((float[]){0, 1, 2.5f}, 3);
        how.xtc_probability = one_of((float[]){0, 1}, 2);
        how.dynatemp_range = one_of((float[]){0, 0.3f}, 2);
        how.repeat_penalty = one_of((float[]){1, 1.3f}, 2);
        how.frequency_penalty = one_of((float[]){0, 0.2f}, 2);
        how.dry_multiplier = one_of((float[]){0, 1}, 2);
        how.seed = (uint64_t)round;
        const int n_letter = 1 + (int)(unit() * 9);
        for (int i = 0; i < n_letter; i++)
            how.samplers[i] = ORDER_DEFAULT[(int)(unit() * 9)];
        qsort(e, (size_t)n, sizeof *e, by_logit);
        for (const char *letter = how.samplers; *letter; letter++)
            if (*letter != 'd' || how.dry_multiplier > 0)
                left = keep_by(*letter, &how, count, lower, &e, left);
        softmax(e, left, 1);
        sampler s;
        assert_int_equal(sampler_open(&s, &how, n, NULL), NIB_OK);
        s.lower = sampling_has_dry(&how) ? lower : NULL;
        const int32_t id = sampler_draw(&s, logits, past, MAX_PAST);
        if (s.n_list && s.t > 0)
            chances(&s, p);
        else
            assert_int_equal(id, e[0].id);
        for (int i = 0; i < left && s.n_list && s.t > 0; i++)
            if (fabs(p[e[i].id] - e[i].p) > 1e-5)
                fail_msg("round %d, %s, token %d: %g, expected %g", round, how.samplers, e[i].id, p[e[i].id],
                         e[i].p);
        sampler_close(&s);
    }
}

static void orders_by_name(void **state) {
    (void)state;
    nib_sampling how = plain();
    nib_error err;
    assert_int_equal(
        nib_sampling_order(&how, "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", &err),
        NIB_OK);
    assert_string_equal(how.samplers, ORDER_DEFAULT);
    assert_int_equal(nib_sampling_order(&how, "temp;top-k;nucleus;typical-p;min-p;", &err), NIB_OK);
    assert_string_equal(how.samplers, "tkpym");
    static const char *const wrong[] = {"",
                                        ";",
                                        "top_k;;temp",
                                        "infill",
                                        "adaptive_p",
                                        "top",
                                        "top_kk",
                                        "xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc;xtc"};
    for (size_t i = 0; i < NUM_COUNT(wrong); i++)
        assert_int_equal(nib_sampling_order(&how, wrong[i], &err), NIB_E_USAGE);
    assert_string_equal(how.samplers, "tkpym");
    strcpy(how.samplers, "ki");
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "'i'"));
    /* what is in the usual order needs no more than the k best */
    how.top_k = 7;
    how.temperature = 0.5f;
    strcpy(how.samplers, "ekpmt");
    assert_int_equal(nib_sampling_n_best(&how), 7);
    strcpy(how.samplers, "tk");
    assert_int_equal(nib_sampling_n_best(&how), 0);
    strcpy(how.samplers, "t");
    assert_int_equal(nib_sampling_n_best(&how), 0);
}

/* Greedy with cuts that may remove the best token takes the best of the others. */
static void greedy_after_cuts(void **state) {
    (void)state;
    const float logits[] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)};
    nib_sampling how = plain();
    sampler s;
    how.temperature = 0;
    how.xtc_probability = 1;
    how.xtc_threshold = 0.25f;
    assert_int_equal(sampler_open(&s, &how, 4, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, NULL, 0), 1);
    assert_int_equal(nib_sampling_n_best(&how), 0);
    sampler_close(&s);
    how.top_k = 3;
    assert_int_equal(nib_sampling_n_best(&how), 3);
    how.xtc_threshold = 0.6f;
    assert_int_equal(nib_sampling_n_best(&how), 1);
    how.top_n_sigma = 1;
    assert_int_equal(nib_sampling_n_best(&how), 1);
    how.dry_multiplier = 1;
    assert_int_equal(nib_sampling_n_best(&how), 0);
}

/* XTC acts with its probability. */
static void xtc_by_chance(void **state) {
    (void)state;
    const float logits[] = {0, 0, -2};
    nib_sampling how = plain();
    sampler s;
    int n_cut = 0;
    how.xtc_probability = 0.3f;
    assert_int_equal(sampler_open(&s, &how, 3, NULL), NIB_OK);
    for (int i = 0; i < 10000; i++) {
        sampler_draw(&s, logits, NULL, 0);
        n_cut += s.from > 0;
    }
    sampler_close(&s);
    assert_in_range(n_cut, 2800, 3200);
}

/* ---- mirostat ---- */

/* Version 2: what may be drawn, and how mu follows. */
static void mirostat_2(void **state) {
    (void)state;
    float logits[MAX_VOCAB];
    double p[MAX_VOCAB];
    nib_sampling how = plain();
    sampler s;
    how.mirostat = 2;
    how.mirostat_tau = 2;
    how.mirostat_eta = 0.3f;
    how.temperature = 0.9f;
    how.top_k = 1; /* ignored, as the penalties are */
    how.repeat_penalty = 10;
    how.seed = 3;
    random_state = 6;
    double mu = 4, surprise = 0;
    assert_int_equal(nib_sampling_n_best(&how), 0);
    assert_int_equal(sampler_open(&s, &how, MAX_VOCAB, NULL), NIB_OK);
    for (int round = 0; round < 2000; round++) {
        entry e[MAX_VOCAB];
        for (int i = 0; i < MAX_VOCAB; i++)
            e[i] = (entry){.logit = (double)(logits[i] = (float)(unit() * 6)), .id = i};
        const int32_t id = sampler_draw(&s, logits, &e->id, 1);
        chances(&s, p);
        softmax(e, MAX_VOCAB, (double)how.temperature);
        qsort(e, MAX_VOCAB, sizeof *e, by_logit);
        double total = 0;
        for (int i = 0; i < MAX_VOCAB; i++)
            total += i == 0 || -log2(e[i].p) <= mu ? e[i].p : 0;
        for (int i = 0; i < MAX_VOCAB; i++)
            assert_true(fabs(p[e[i].id] - (i == 0 || -log2(e[i].p) <= mu ? e[i].p / total : 0)) < 1e-6);
        mu -= (double)how.mirostat_eta * (-log2(p[id]) - (double)how.mirostat_tau);
        surprise += -log2(p[id]) / 2000;
    }
    sampler_close(&s);
    assert_true(fabs(surprise - (double)how.mirostat_tau) < 0.05);
}

/* Version 1: of Zipf distributions, the lengths of llama.cpp, which are those of the paper's formula; in the
 * first one the mean surprise approaches tau. */
static void mirostat_1(void **state) {
    (void)state;
    enum { N = 2000 };
    static const struct {
        float tau, exponent;
        int64_t n;
    } all[] = {{3, 1.3f, 10}, {2, 1.6f, 4}, {5, 1.1f, 119}, {1, 2, 2}, {4, 0.7f, 22}};
    static float logits[N];
    for (size_t i = 0; i < NUM_COUNT(all); i++) {
        nib_sampling how = plain();
        sampler s;
        how.mirostat = 1;
        how.mirostat_tau = all[i].tau;
        for (int k = 0; k < N; k++)
            logits[k] = -all[i].exponent * logf((float)(k + 1));
        assert_int_equal(sampler_open(&s, &how, N, NULL), NIB_OK);
        sampler_draw(&s, logits, NULL, 0);
        assert_int_equal(s.to, all[i].n);
        assert_true(i > 0 || s.surprise != 2 * (double)all[i].tau);
        double surprise = 0;
        for (int k = 0; k < 3000 && i == 0; k++) {
            const double before = s.surprise;
            sampler_draw(&s, logits, NULL, 0);
            surprise += ((before - s.surprise) / (double)how.mirostat_eta + 3) / 3000;
        }
        assert_true(i > 0 || fabs(surprise - 3) < 0.1);
        sampler_close(&s);
    }
}

/* ---- DRY ---- */

/* By the definition, for one token: the longest repetition that it would continue. */
static float lowered(const dry *d, const int32_t *past, int n, int32_t token) {
    const int window = (int)NUM_MIN(d->n_window, (int64_t)n), allowed = d->how.dry_allowed_length;
    int limit = window, longest = -1;
    for (int i = window; i-- > 0;)
        if (d->breaks[past[n - 1 - i]])
            limit = i;
    for (int at = n - window + 1; at < n; at++) {
        int same = 0;
        while (at - 1 - same >= n - window && past[at - 1 - same] == past[n - 1 - same] && same < limit)
            same++;
        if (past[at] == token)
            longest = NUM_MAX(longest, same);
    }
    return window <= allowed || longest < allowed || d->breaks[token]
               ? 0
               : d->how.dry_multiplier * powf(d->how.dry_base, (float)(longest - allowed));
}

static void dry_by_definition(void **state) {
    (void)state;
    enum { N = 40, N_VOCAB = 4 };
    random_state = 7;
    for (int round = 0; round < 2000; round++) {
        int32_t past[N];
        dry d;
        nib_sampling how = plain();
        how.dry_multiplier = 0.8f;
        how.dry_base = 1.05f;
        how.dry_allowed_length = 1 + round % 4;
        how.dry_window = round % 3 ? -1 : 1 + (int)(unit() * N);
        for (int i = 0; i < N; i++)
            past[i] = (int32_t)(unit() * (round % 2 ? 2 : N_VOCAB));
        assert_int_equal(dry_open(&d, &how, NULL, N_VOCAB, N, NULL), NIB_OK);
        d.breaks[3] = round % 5 == 0;
        for (int n = 1; n <= N; n++) {
            dry_apply(&d, past, n);
            for (int32_t t = 0; t < N_VOCAB; t++)
                if (fabsf(d.lower[t] - lowered(&d, past, n, t)) > 1e-4f)
                    fail_msg("round %d, %d tokens, token %d: %g, expected %g", round, n, t,
                             (double)d.lower[t], (double)lowered(&d, past, n, t));
            dry_undo(&d, past, n);
            for (int32_t t = 0; t < N_VOCAB; t++)
                assert_true(d.lower[t] == 0);
        }
        dry_close(&d);
    }
}

static void wrong_values(void **state) {
    (void)state;
    static const nib_sampling wrong[] = {
        SAMPLING(.typical_p = 1.5f),        SAMPLING(.xtc_probability = 2), SAMPLING(.xtc_threshold = NAN),
        SAMPLING(.dynatemp_range = -1),     SAMPLING(.mirostat = 3),        SAMPLING(.dry_multiplier = -1),
        SAMPLING(.dry_base = INFINITY),     SAMPLING(.dry_window = -2),     SAMPLING(.top_n_sigma = NAN),
        SAMPLING(.dry_allowed_length = -1), SAMPLING(.mirostat_eta = -1),   SAMPLING(.mirostat_tau = NAN)};
    for (size_t i = 0; i < NUM_COUNT(wrong); i++) {
        nib_sampling one = wrong[i];
        one.top_p = one.repeat_penalty = 1;
        assert_int_equal(sampler_check(&one, NULL), NIB_E_USAGE);
    }
    const char *const longest[] = {"12345678901234567890123456789012345678901"}, *const empty[] = {""};
    nib_sampling how = plain();
    how.dry_breakers = longest;
    how.n_dry_breaker = 1;
    assert_int_equal(dry_check(&how, NULL), NIB_E_USAGE);
    how.dry_breakers = empty;
    assert_int_equal(dry_check(&how, NULL), NIB_E_USAGE);
    how.n_dry_breaker = 0;
    assert_int_equal(dry_check(&how, NULL), NIB_OK);
}

static void drawing_allocates_nothing(void **state) {
    (void)state;
    float logits[MAX_VOCAB];
    int32_t past[MAX_PAST] = {1, 2, 3, 1, 2, 3, 1, 2};
    nib_sampling how = plain();
    sampler s;
    dry d;
    how.typical_p = 0.9f;
    how.top_n_sigma = 2;
    how.xtc_probability = 0.5f;
    how.dynatemp_range = 0.5f;
    how.dry_multiplier = 1;
    for (int mirostat = 0; mirostat < 3; mirostat++) {
        how.mirostat = mirostat;
        for (int i = 0; i < MAX_VOCAB; i++)
            logits[i] = (float)(i * 37 % MAX_VOCAB) * 0.15f;
        assert_int_equal(sampler_open(&s, &how, MAX_VOCAB, NULL), NIB_OK);
        assert_int_equal(dry_open(&d, &how, NULL, MAX_VOCAB, MAX_PAST, NULL), NIB_OK);
        s.lower = d.lower;
        fault_arm(FAULT_ALLOC, INT64_MAX);
        for (int i = 0; i < 100; i++) {
            dry_apply(&d, past, MAX_PAST);
            sampler_draw(&s, logits, past, MAX_PAST);
            dry_undo(&d, past, MAX_PAST);
        }
        assert_int_equal(fault_count(FAULT_ALLOC), 0);
        fault_arm(FAULT_ALLOC, 0);
        dry_close(&d);
        sampler_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values), cmocka_unit_test(library_values),
        cmocka_unit_test(whole_chain),      cmocka_unit_test(any_order),
        cmocka_unit_test(orders_by_name),   cmocka_unit_test(greedy_after_cuts),
        cmocka_unit_test(xtc_by_chance),    cmocka_unit_test(mirostat_2),
        cmocka_unit_test(mirostat_1),       cmocka_unit_test(dry_by_definition),
        cmocka_unit_test(wrong_values),     cmocka_unit_test(drawing_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
