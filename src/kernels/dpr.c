/* dpr.c - see dpr.h. */
#include "kernels/dpr.h"

#include "base/num.h"
#include "kernels/registry.h"

#include <string.h>
#include <time.h>

/* Bits of the whole code. */
static int bits_of(const dpr_partition *p) {
    int sum = 0;
    for (int i = 0; i < p->n; i++)
        sum += p->width[i];
    return sum;
}

/* ---- schemes ---- */

/* Partition number `cuts` of b bits: bit i of cuts ends a slice after i + 1 bits. */
static dpr_partition partition_of(int b, unsigned cuts) {
    dpr_partition p = {0};
    for (int i = 0, width = 0; i < b; i++) {
        width++;
        if (i == b - 1 || cuts >> i & 1) {
            p.width[p.n++] = (uint8_t)width;
            width = 0;
        }
    }
    return p;
}

static int widest(const dpr_partition *p) {
    int max = 0;
    for (int i = 0; i < p->n; i++)
        max = NUM_MAX(max, p->width[i]);
    return max;
}

/* The narrowest unit that holds the slices: the promotion of equation (5), for both operands. */
static const dpr_unit *promote(const dpr_partition *w, const dpr_partition *a, const dpr_unit *units, int n) {
    const dpr_unit *best = NULL;
    for (int i = 0; i < n; i++)
        if (units[i].w_bits >= widest(w) && units[i].a_bits >= widest(a) &&
            (!best || units[i].w_bits * units[i].a_bits < best->w_bits * best->a_bits ||
             (units[i].w_bits * units[i].a_bits == best->w_bits * best->a_bits &&
              units[i].rate > best->rate)))
            best = &units[i];
    return best;
}

/* Whether a partition has as few slices as `max` bits each allow, as even as possible, the wider ones
 * lowest. */
static bool is_lean(const dpr_partition *p, int max) {
    const int bits = bits_of(p), n = (bits + max - 1) / max;
    for (int i = 0; i < p->n; i++)
        if (p->width[i] != bits / n + (i < bits % n))
            return false;
    return p->n == n;
}

int dpr_schemes(int w, int a, const dpr_unit *units, int n_unit, dpr_scheme *out, int max) {
    int n = 0;
    if (w < 1 || a < 1 || w > DPR_MAX_BITS || a > DPR_MAX_BITS)
        return 0;
    for (unsigned i = 0; i < 1u << (w - 1); i++) {
        const dpr_partition pw = partition_of(w, i);
        bool evenest = pw.width[0] - pw.width[pw.n - 1] <= 1; /* skips the inner loop for most partitions */
        for (unsigned k = 0; evenest && k < 1u << (a - 1); k++) {
            const dpr_partition pa = partition_of(a, k);
            const dpr_unit *unit = promote(&pw, &pa, units, n_unit);
            if (!unit || !is_lean(&pw, unit->w_bits) || !is_lean(&pa, unit->a_bits))
                continue;
            if (n < max)
                out[n] = (dpr_scheme){pw, pa, unit};
            n++;
        }
    }
    return n;
}

const char *dpr_family(const dpr_scheme *s) {
    if (widest(&s->w) == 1 && widest(&s->a) == 1)
        return "bitwise";
    return s->w.n == 1 && s->a.n == 1 ? "padding" : "split";
}

/* ---- the units of this machine ---- */

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Doubles the rounds until they take 2 ms, then takes the best of three. */
static double rate_of(const dpr_probe *p) {
    double best = 0;
    int32_t sink = 0;
    for (int64_t rounds = 1 << 10, good = 0; good < 3;) {
        const double start = cpu_now();
        const int64_t n = p->run(rounds, &sink);
        const double s = cpu_now() - start;
        if (s < 2e-3 && rounds < INT64_C(1) << 40) {
            rounds *= 2;
            continue;
        }
        best = NUM_MAX(best, (double)n / NUM_MAX(s, 1e-9));
        good++;
    }
    return best + (sink == 1 ? 1e-9 : 0); /* uses the result, so that the compiler keeps the work */
}

int dpr_measure(dpr_unit *out, int max) {
    int n = 0;
    const kernel_isa *isa;
    for (int i = 0; (isa = kernels_folder_at(i)) != NULL; i++)
        for (const dpr_probe *p = isa->probes; p && p->run; p++) {
            if (n < max)
                out[n] = (dpr_unit){p->w_bits, p->a_bits, isa->name, p->name, rate_of(p)};
            n += n < max;
        }
    return n;
}

double dpr_floor(const dpr_unit *units, int n_unit, const char *isa, const char *family, int w, int a) {
    dpr_unit own[DPR_MAX_UNIT];
    dpr_scheme schemes[DPR_MAX_UNIT];
    int n = 0;
    double min_seconds = 0;
    for (int i = 0; i < n_unit && n < DPR_MAX_UNIT; i++)
        if (!strcmp(units[i].isa, isa) && units[i].rate > 0)
            own[n++] = units[i];
    const int n_scheme = NUM_MIN(dpr_schemes(w, a, own, n, schemes, DPR_MAX_UNIT), DPR_MAX_UNIT);
    for (int i = 0; i < n_scheme; i++) {
        const double seconds = schemes[i].w.n * schemes[i].a.n / schemes[i].unit->rate;
        if (!strcmp(dpr_family(&schemes[i]), family) && (min_seconds <= 0 || seconds < min_seconds))
            min_seconds = seconds;
    }
    return min_seconds;
}
