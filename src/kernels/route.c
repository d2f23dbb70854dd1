/* route.c - see route.h. */
#include "kernels/route.h"

#include "base/num.h"

#include <math.h>
#include <stddef.h>
#include <stdbool.h>

static void softmax(const float *x, int64_t n, float *out) {
    float max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += out[i] = expf(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        out[i] /= sum;
}

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

float add_gate(const float *gate) {
    return gate ? sigmoid(*gate) : 1;
}

static float sqrt_softplus(float x) {
    return sqrtf(x > 20 ? x : log1pf(expf(x)));
}

static void score(score_kind kind, const float *x, int64_t n, float *out) {
    if (kind == SCORE_SOFTMAX) {
        softmax(x, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = kind == SCORE_SIGMOID         ? sigmoid(x[i])
                 : kind == SCORE_SQRT_SOFTPLUS ? sqrt_softplus(x[i])
                                               : x[i];
}

/* Marks the `want` largest of n values that are not excluded. */
static void mark_largest(const float *x, int64_t n, int64_t want, const bool *excluded, bool *marked) {
    for (int64_t i = 0; i < n; i++)
        marked[i] = false;
    for (int64_t i = 0; i < want; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++)
            if (!marked[j] && !(excluded && excluded[j]) && (best < 0 || x[j] > x[best] || isnan(x[best])))
                best = j;
        if (best >= 0)
            marked[best] = true;
    }
}

/* The sum of the `want` largest of n values. */
static float sum_of_largest(const float *x, int64_t n, int want) {
    bool marked[ROUTE_MAX_EXPERT] = {false};
    float sum = 0;
    mark_largest(x, n, want, NULL, marked);
    for (int64_t i = 0; i < n; i++)
        sum += marked[i] ? x[i] : 0;
    return sum;
}

/* Excludes the experts of all groups but the best ones. */
static void exclude_groups(const op *o, const float *choice, bool *excluded) {
    const int64_t n_group = o->u.route.n_group, each = NUM_MAX(o->k / n_group, (int64_t)1);
    float of_group[ROUTE_MAX_EXPERT] = {0};
    bool used[ROUTE_MAX_EXPERT] = {false};
    for (int64_t g = 0; g < n_group; g++)
        of_group[g] = sum_of_largest(choice + g * each, each, o->u.route.group_best);
    mark_largest(of_group, n_group, o->u.route.group_used, NULL, used);
    for (int64_t i = 0; i < o->k; i++)
        excluded[i] = !used[i / each];
}

static void weigh(const op *o, float *weights) {
    const int64_t n = o->u.route.n_used;
    float sum = 1e-20f; /* no division by zero */
    if (o->u.route.score == SCORE_SOFTMAX_LATE)
        softmax(weights, n, weights);
    for (int64_t i = 0; i < n; i++) {
        if (o->u.route.score == SCORE_SIGMOID_LATE)
            weights[i] = sigmoid(weights[i]);
        sum += weights[i];
    }
    for (int64_t i = 0; i < n; i++)
        weights[i] = (o->u.route.normalise ? weights[i] / sum : weights[i]) * o->u.route.scale;
}

/* The experts that are listed, in ascending order. */
static void take_listed(const op *o, const float *listed, float *out) {
    for (int64_t i = 0; i < o->u.route.n_used; i++) {
        const float e = listed[i] >= 0 && listed[i] < (float)o->k ? listed[i] : 0; /* as the file has it */
        int64_t at = i;
        for (; at > 0 && out[at - 1] > e; at--)
            out[at] = out[at - 1];
        out[at] = e;
    }
}

static void choose(const op *o, const float *scores, const float *bias, float *out) {
    const int64_t n = o->k, n_used = o->u.route.n_used;
    float choice[ROUTE_MAX_EXPERT] = {0};
    bool excluded[ROUTE_MAX_EXPERT] = {false}, chosen[ROUTE_MAX_EXPERT] = {false};
    for (int64_t i = 0; i < n; i++)
        choice[i] = bias ? scores[i] + bias[i] : scores[i];
    if (o->u.route.n_group > 1)
        exclude_groups(o, choice, excluded);
    mark_largest(choice, n, n_used, excluded, chosen);
    for (int64_t i = 0, at = 0; i < n; i++)
        if (chosen[i])
            out[at++] = (float)i;
}

void route_row(const op *o, const float *logits, const float *bias, const float *times, const float *listed,
               float *out) {
    const int64_t n_used = o->u.route.n_used;
    float scores[ROUTE_MAX_EXPERT] = {0};
    score(o->u.route.score, logits, o->k, scores);
    if (listed)
        take_listed(o, listed, out);
    else
        choose(o, scores, bias, out);
    for (int64_t i = 0; i < n_used; i++)
        out[n_used + i] = scores[route_expert(out, i)];
    weigh(o, out + n_used);
    for (int64_t i = 0; times && i < n_used; i++)
        out[n_used + i] *= times[route_expert(out, i)];
}
