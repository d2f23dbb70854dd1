/* cuts.c - see cuts.h. Rank r of the candidates is list[n - 1 - r]: sorted candidates grow downwards from
 * the end of the list, and the others are a heap before them.
 *
 * Sources: top-p (Holtzman et al. 2020), typical (Meister et al. 2023), min-p (Nguyen et al. 2024),
 * top-n-sigma (Tang et al. 2024), mirostat (Basu et al. 2021), XTC and dynamic temperature as in llama.cpp.
 */
#include "sequence/cuts.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

static void sift_down(candidate *heap, int64_t n, int64_t i) {
    candidate moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && candidate_better(heap[child + 1], heap[child]))
            child++;
        if (!candidate_better(heap[child], moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

void candidates_heap(candidate *heap, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
}

void candidates_pop(candidate *heap, int64_t n) {
    candidate best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
}

/* The logit of a rank below s->to. */
static float ranked(sampler *s, int64_t rank) {
    const int64_t n = s->n;
    if (rank >= s->n_sorted && s->n_sorted == 0)
        candidates_heap(s->list, n);
    while (s->n_sorted <= rank)
        candidates_pop(s->list, n - s->n_sorted++);
    return s->list[n - 1 - rank].logit;
}

/* exp(x / t) for x = logit - best: the weight of a candidate; 0 for minus infinity. */
static double mass(float logit, float best, double t) {
    return logit == -INFINITY ? 0 : exp(((double)logit - (double)best) / t);
}

/* Of the candidates in the range. With p = mass / total, log p = x / t - log(total). */
typedef struct masses {
    float best; /* the largest logit */
    double total;
    double mean; /* of x / t, by p; the entropy is log(total) - mean */
} masses;

static masses measure(const sampler *s) {
    const int64_t first = s->n - s->to, end = s->n - s->from;
    const double t = s->t;
    masses m = {-INFINITY, 0, 0};
    for (int64_t i = first; i < end; i++)
        m.best = NUM_MAX(m.best, s->list[i].logit);
    for (int64_t i = first; i < end; i++) {
        const double one = mass(s->list[i].logit, m.best, t);
        m.total += one;
        if (one > 0)
            m.mean += one * (((double)s->list[i].logit - (double)m.best) / t);
    }
    m.mean /= m.total;
    return m;
}

/* Typical: the tokens whose surprise is nearest to the entropy, up to a probability of more than typical_p.
 * Surprise is log(total) - x and entropy log(total) - mean, so they are the nearest to the mean, which is a
 * range of ranks: it grows from there to the side that is nearer. */
static void cut_untypical(sampler *s) {
    const double p = (double)s->how.typical_p, t = s->t;
    if (!(p > 0 && p < 1))
        return;
    const masses m = measure(s);
    int64_t first = s->from, end;
    while (first < s->to && ((double)ranked(s, first) - (double)m.best) / t >= m.mean)
        first++;
    double sum = 0;
    for (end = first; sum <= p * m.total && (first > s->from || end < s->to);) {
        const double before = first > s->from ? ((double)ranked(s, first - 1) - (double)m.best) / t : 0;
        const double after = end < s->to ? ((double)ranked(s, end) - (double)m.best) / t : 0;
        const bool up = first > s->from && (end == s->to || before - m.mean <= m.mean - after);
        sum += exp(up ? before : after);
        first -= up;
        end += !up;
    }
    s->from = first;
    s->to = end;
}

/* Top-p: the fewest of the best tokens with this part of the probability. The best one always stays. */
static void cut_tail(sampler *s) {
    const double top = (double)s->how.top_p;
    if (top >= 1)
        return;
    const double total = measure(s).total;
    const float best = ranked(s, s->from);
    double sum = 0;
    int64_t end = s->from;
    for (; end < s->to && (end == s->from || sum < top * total); end++)
        sum += mass(ranked(s, end), best, s->t);
    s->to = end;
}

/* Min-p: the tokens with at least this share of the best one's probability. */
static void cut_unlikely(sampler *s) {
    const float best = ranked(s, s->from);
    int64_t end = s->from + 1;
    if (s->how.min_p <= 0)
        return;
    while (end < s->to && mass(ranked(s, end), best, s->t) >= (double)s->how.min_p)
        end++;
    s->to = end;
}

static void cut_top_k(sampler *s) {
    if (s->how.top_k <= 0)
        return;
    s->to = NUM_MIN(s->to, s->from + s->how.top_k);
    ranked(s, s->to - 1);
}

/* Top-n-sigma: the tokens whose logits are within n standard deviations of the largest. The others stay in
 * the range without any probability, and count for a range of temperatures, as in llama.cpp. */
static void cut_sigma(sampler *s) {
    candidate *const list = s->list + (s->n - s->to);
    double sum = 0, squares = 0, n = 0;
    if (s->how.top_n_sigma <= 0)
        return;
    for (int64_t i = 0; i < s->to - s->from; i++) {
        n += list[i].logit > -INFINITY;
        sum += list[i].logit > -INFINITY ? (double)list[i].logit : 0;
    }
    for (int64_t i = 0; i < s->to - s->from; i++) {
        const double x = (double)list[i].logit - sum / n;
        squares += x > -INFINITY ? x * x : 0;
    }
    const double limit = (double)ranked(s, s->from) - (double)s->how.top_n_sigma * sqrt(squares / n);
    for (int64_t i = 0; i < s->to - s->from; i++)
        if ((double)list[i].logit < limit)
            list[i].logit = -INFINITY;
}

/* XTC: with a probability, of the tokens that are at least as likely as a threshold only the least likely one
 * stays. */
static void cut_best(sampler *s) {
    if (!sampling_has_xtc(&s->how) || sampler_unit(s) > (double)s->how.xtc_probability)
        return;
    const masses m = measure(s);
    int64_t n = 0;
    while (s->from + n < s->to &&
           mass(ranked(s, s->from + n), m.best, s->t) >= (double)s->how.xtc_threshold * m.total)
        n++;
    s->from += NUM_MAX(n - 1, 0);
}

/* ---- samplers that change logits ---- */

/* The temperature, which a range makes depend on the entropy: lowest where one token is certain. */
static double temperature_of(const sampler *s) {
    const double t = (double)s->how.temperature, range = (double)s->how.dynatemp_range;
    const int64_t n = s->to - s->from;
    if (range <= 0 || n < 2)
        return t;
    const masses m = measure(s);
    const double share = NUM_MAX(log(m.total) - m.mean, 0) / log((double)n), low = NUM_MAX(t - range, 0);
    return low + (t + range - low) * pow(share, (double)s->how.dynatemp_exponent);
}

static void heat(sampler *s) {
    s->t *= temperature_of(s);
    if (s->t > 0)
        return;
    s->t = 0;
    ranked(s, s->from);
    s->to = s->from + 1;
}

/* The candidates of the range, divided by the temperature and lowered, become the list. */
static void lower(sampler *s, float (*lowered)(const sampler *s, float logit, int32_t id)) {
    const int64_t n = s->to - s->from;
    memmove(s->list, s->list + (s->n - s->to), (size_t)n * sizeof *s->list);
    for (int64_t i = 0; i < n; i++) {
        candidate *c = &s->list[i];
        c->logit = lowered(s, (float)((double)c->logit / s->t), c->id);
    }
    s->n = s->to = n;
    s->from = s->n_sorted = 0;
    s->t = 1;
}

static void run(sampler *s, char letter) {
    if (letter == SAMPLER_TEMPERATURE) {
        heat(s);
        return;
    }
    if (s->to - s->from < 2)
        return;
    switch ((sampler_letter)letter) {
    case SAMPLER_PENALTIES: lower(s, sampler_penalised); break;
    case SAMPLER_DRY: lower(s, sampler_lowered); break;
    case SAMPLER_TOP_N_SIGMA: cut_sigma(s); break;
    case SAMPLER_TOP_K: cut_top_k(s); break;
    case SAMPLER_TYPICAL: cut_untypical(s); break;
    case SAMPLER_TOP_P: cut_tail(s); break;
    case SAMPLER_MIN_P: cut_unlikely(s); break;
    case SAMPLER_XTC: cut_best(s); break;
    case SAMPLER_TEMPERATURE: break;
    }
}

/* Draws one of the range. *p: its probability. */
static int32_t draw(sampler *s, double *p) {
    const int64_t first = s->n - s->to, end = s->n - s->from;
    double total = 0;
    float best = -INFINITY;
    *p = 1;
    if (s->t <= 0)
        return s->list[end - 1].id;
    for (int64_t i = first; i < end; i++)
        best = NUM_MAX(best, s->list[i].logit);
    for (int64_t i = first; i < end; i++) {
        s->weight[i] = best == -INFINITY ? 1 : (float)mass(s->list[i].logit, best, s->t);
        total += (double)s->weight[i];
    }
    double at = sampler_unit(s) * total;
    int64_t drawn = end - 1; /* if rounding leaves a remainder: the last candidate with a weight */
    for (int64_t i = end - 1; i >= first; i--) {
        if (s->weight[i] > 0)
            drawn = i;
        at -= (double)s->weight[i];
        if (at < 0)
            break;
    }
    *p = (double)s->weight[drawn] / total;
    return s->list[drawn].id;
}

/* ---- mirostat: the cut follows the surprise of the drawn tokens ---- */

/* The number of tokens whose Zipf distribution has the wanted surprise. Its exponent is estimated from the
 * best 100 tokens. */
static double zipf_length(sampler *s, double t) {
    enum { N_ESTIMATE = 100 };
    double up = 0, down = 0;
    for (int64_t i = 0; i < N_ESTIMATE - 1 && i + 1 < s->to; i++) {
        const double a = log((double)(i + 2) / (double)(i + 1)), x = (double)ranked(s, i),
                     y = (double)ranked(s, i + 1);
        if (y == -INFINITY)
            break;
        up += a * ((x - y) / t);
        down += a * a;
    }
    const double exponent = down > 0 ? up / down : 1, e = exponent - 1;
    const double k =
        pow(e * exp2(s->surprise) / (1 - pow((double)s->n_vocab, -e)), exponent > 0 ? 1 / exponent : 1);
    return isfinite(k) ? k : (double)s->to;
}

static int32_t draw_surprising(sampler *s) {
    int64_t n = 1;
    s->t = (double)s->how.temperature;
    if (s->how.mirostat == 1) {
        n = (int64_t)NUM_MIN(zipf_length(s, s->t), (double)s->to);
    } else {
        const masses m = measure(s);
        while (n < s->to && -log2(mass(ranked(s, n), m.best, s->t) / m.total) <= s->surprise)
            n++;
    }
    s->to = NUM_MAX(n, 1);
    ranked(s, s->to - 1);
    double p;
    const int32_t id = draw(s, &p);
    s->surprise -= (double)s->how.mirostat_eta * (-log2(p) - (double)s->how.mirostat_tau);
    return id;
}

int32_t cuts_draw(sampler *s, int64_t n_sorted, const char *order) {
    double p;
    s->n = s->to = s->n_list;
    s->n_sorted = n_sorted;
    s->from = 0;
    s->t = 1;
    bool any = false;
    for (int64_t i = 0; i < s->n_list && !any; i++)
        any = s->list[i].logit > -INFINITY;
    if (!any)
        return s->n_list < s->n_vocab ? 0 : draw(s, &p);
    if (s->how.mirostat)
        return draw_surprising(s);
    for (; *order; order++)
        run(s, *order);
    return draw(s, &p);
}
