/* importance.c - computes a profile from sums over tokens; see importance.h. */
#include "profile/importance.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HALVES = 100 }; /* number of random halves of the prompts (12 prompts have 462) */
#define FLAT 1e-9

const char *importance_signal_name(importance_signal s) {
    static const char *const names[IMPORTANCE_N] = {"mcap", "attn", "ffn", "input", "cosine", "fisher"};
    return s >= 0 && s < IMPORTANCE_N ? names[s] : "?";
}

void importance_clear(importance *p) {
    for (int s = 0; s < IMPORTANCE_N; s++) {
        mem_free(p->by_prompt[s]);
        mem_free(p->raw[s]);
        mem_free(p->spread[s]);
    }
    mem_free(p->score);
    memset(p, 0, sizeof *p);
}

nib_status importance_begin(importance *p, int n_layer, int n_prompt, nib_error *err) {
    memset(p, 0, sizeof *p);
    if (n_layer < 1 || n_prompt < 1)
        return nib_fail(err, NIB_E_USAGE, "expected at least one layer and one prompt, found %d and %d",
                        n_layer, n_prompt);
    p->n_layer = n_layer;
    p->n_prompt = n_prompt;
    bool ok = (p->score = mem_calloc((size_t)n_layer, sizeof(double))) != NULL;
    for (int s = 0; s < IMPORTANCE_N && ok; s++) {
        p->by_prompt[s] = mem_calloc((size_t)n_layer * (size_t)n_prompt, sizeof(double));
        p->raw[s] = mem_calloc((size_t)n_layer, sizeof(double));
        p->spread[s] = mem_calloc((size_t)n_layer, sizeof(double));
        ok = p->by_prompt[s] && p->raw[s] && p->spread[s];
    }
    if (ok)
        return NIB_OK;
    importance_clear(p);
    return nib_fail_nomem(err, (size_t)n_layer * (size_t)n_prompt * sizeof(double), "the layers' importance");
}

void importance_add(importance *p, int prompt, int layer, const double signals[IMPORTANCE_N]) {
    for (int s = 0; s < IMPORTANCE_N; s++)
        p->by_prompt[s][(size_t)prompt * (size_t)p->n_layer + (size_t)layer] += signals[s];
}

void importance_normalise(const double *raw, int n, double *score) {
    double low = raw[0], high = raw[0];
    for (int i = 1; i < n; i++) {
        low = fmin(low, raw[i]);
        high = fmax(high, raw[i]);
    }
    const bool flat = high - low <= FLAT * fabs(high);
    for (int i = 0; i < n; i++)
        score[i] = flat ? 0 : (raw[i] - low) / (high - low);
}

void importance_rank(const double *scores, int n, int *order) {
    for (int i = 0; i < n; i++) { /* insertion sort: about a hundred layers at most */
        int at = i;
        for (; at > 0 && scores[order[at - 1]] < scores[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

double importance_overlap(const double *a, const double *b, int n, int k, int *scratch) {
    int *first = scratch, *second = scratch + n, same = 0;
    if (k < 1)
        return 1;
    importance_rank(a, n, first);
    importance_rank(b, n, second);
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++)
            same += first[i] == second[j];
    return (double)same / k;
}

double importance_failure_bound(int n_layer, int k, int n_prompt, double gap, double sigma) {
    const double pairs = 2.0 * k * (n_layer - k);
    if (pairs <= 0 || sigma <= 0)
        return pairs > 0 && gap <= 0 ? pairs : 0;
    return pairs * exp(-n_prompt * gap * gap / (8 * sigma * sigma));
}

/* xorshift64*; the halves are the same in every run. */
static uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Means over a random half of the prompts, and over the others. order: [n_prompt], shuffled in place. */
static void deal(const importance *p, int *order, uint64_t *state, double *a, double *b) {
    const double *mean = p->by_prompt[IMPORTANCE_MCAP];
    const int n = p->n_prompt, half = n / 2;
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)(next_random(state) % (uint64_t)(i + 1)), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
    for (int l = 0; l < p->n_layer; l++) {
        a[l] = b[l] = 0;
        for (int i = 0; i < n; i++)
            *(i < half ? &a[l] : &b[l]) += mean[(size_t)order[i] * (size_t)p->n_layer + (size_t)l];
        a[l] /= half;
        b[l] /= n - half;
    }
}

static nib_status compare_halves(importance *p, nib_error *err) {
    const int n = p->n_layer, k = (n + 3) / 4;
    p->half_overlap = p->half_overlap_min = -1;
    if (p->n_prompt < 2)
        return NIB_OK;
    double *means = mem_array(2 * (size_t)n, sizeof *means);
    int *places = mem_array(2 * (size_t)n + (size_t)p->n_prompt, sizeof *places);
    uint64_t state = 1;
    if (means && places) {
        int *order = places + 2 * n;
        double sum = 0, min = 1;
        for (int i = 0; i < p->n_prompt; i++)
            order[i] = i;
        for (int i = 0; i < HALVES; i++) {
            deal(p, order, &state, means, means + n);
            const double same = importance_overlap(means, means + n, n, k, places);
            sum += same;
            min = fmin(min, same);
        }
        p->half_overlap = sum / HALVES;
        p->half_overlap_min = min;
    }
    const bool ok = means && places;
    mem_free(means);
    mem_free(places);
    return ok ? NIB_OK : nib_fail_nomem(err, (size_t)n * 2 * sizeof *means, "halves of the prompts");
}

static nib_status average(importance *p, importance_signal s, nib_error *err) {
    const double *of = p->by_prompt[s];
    for (int l = 0; l < p->n_layer; l++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < p->n_prompt; i++)
            sum += of[(size_t)i * (size_t)p->n_layer + (size_t)l];
        const double mean = sum / p->n_prompt;
        for (int i = 0; i < p->n_prompt; i++) {
            const double d = of[(size_t)i * (size_t)p->n_layer + (size_t)l] - mean;
            squares += d * d;
        }
        p->raw[s][l] = mean;
        p->spread[s][l] = p->n_prompt > 1 ? sqrt(squares / (p->n_prompt - 1)) : 0;
        if (!isfinite(mean) || !isfinite(p->spread[s][l]))
            return nib_fail(err, NIB_E_MODEL,
                            "layer %d: expected finite activations, found %s of %s: the weights are damaged",
                            l, importance_signal_name(s), num_text(mean, 6));
    }
    return NIB_OK;
}

nib_status importance_finish(importance *p, const int64_t *n_token, nib_error *err) {
    p->n_token = 0;
    for (int i = 0; i < p->n_prompt; i++) {
        if (n_token[i] < 1)
            return nib_fail(err, NIB_E_USAGE, "prompt %d: expected at least one token", i);
        p->n_token += n_token[i];
        for (int s = 0; s < IMPORTANCE_N; s++)
            for (int l = 0; l < p->n_layer; l++)
                p->by_prompt[s][(size_t)i * (size_t)p->n_layer + (size_t)l] /= (double)n_token[i];
    }
    for (int s = 0; s < IMPORTANCE_N; s++)
        NIB_TRY(average(p, (importance_signal)s, err));
    const double *raw = p->raw[IMPORTANCE_MCAP];
    importance_normalise(raw, p->n_layer, p->score);
    double first = raw[0], second = -INFINITY;
    for (int l = 1; l < p->n_layer; l++) {
        second = fmax(second, fmin(raw[l], first));
        first = fmax(first, raw[l]);
    }
    p->gap = p->n_layer > 1 ? first - second : 0;
    for (int l = 0; l < p->n_layer; l++)
        p->sigma = fmax(p->sigma, p->spread[IMPORTANCE_MCAP][l]);
    /* with one prompt the spread is unknown */
    p->bound = p->n_prompt > 1 ? importance_failure_bound(p->n_layer, 1, p->n_prompt, p->gap, p->sigma)
                               : importance_failure_bound(p->n_layer, 1, 1, 0, 0);
    return compare_halves(p, err);
}
