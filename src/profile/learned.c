/* learned.c - see learned.h. */
#include "profile/learned.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

/* Contributions to the distance of two runs, fitted to a sweep (docs/budget.md): runs with other threads or
 * another model have little in common. */
#define OF_CONTENT 0.9
#define OF_THREADS 0.6
#define OF_DISK    0.7 /* another disk, or a packed file in one run and the model's own file in the other */
#define OF_CACHE   0.1
#define OF_SHARE   0.5  /* factor of the difference of the logarithms of the shares that are read from disk */
#define MIN        0.03 /* added to a share: smaller shares count as nearly nothing */
#define OF_FORMATS 0.5
#define OF_LENGTH  0.05
#define SAME       0.05 /* up to this distance runs are of one kind */

void learned_clear(learned *l) {
    mem_free(l->runs);
    memset(l, 0, sizeof *l);
}

double learned_seconds(const learned_run *r) {
    double sorted[LEARNED_SECONDS];
    int n = 0;
    for (int i = 0; i < r->n_seconds; i++) {
        int at = n++;
        for (; at > 0 && sorted[at - 1] > r->seconds[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = r->seconds[i];
    }
    return n ? (sorted[n / 2] + sorted[(n - 1) / 2]) / 2 : 0;
}

static double weights_of(const learned_work *w) {
    double sum = 0;
    for (int a = 0; a < 2; a++)
        for (int bits = 0; bits < LEARNED_BITS; bits++)
            sum += w->bytes[a][bits];
    return NUM_MAX(sum, 1);
}

/* Distance of the formats: 0 for the same widths and activations in the same shares, 2 for nothing in common.
 */
static double formats_apart(const learned_work *a, const learned_work *b) {
    const double of_a = weights_of(a), of_b = weights_of(b);
    double sum = 0;
    for (int i = 0; i < 2; i++)
        for (int bits = 0; bits < LEARNED_BITS; bits++)
            sum += fabs(a->bytes[i][bits] / of_a - b->bytes[i][bits] / of_b);
    return sum;
}

double learned_distance(const learned_run *a, const learned_run *b) {
    const double on_disk_a = a->work.disk_bytes / weights_of(&a->work),
                 on_disk_b = b->work.disk_bytes / weights_of(&b->work);
    double d = OF_SHARE * fabs(log((on_disk_a + MIN) / (on_disk_b + MIN)));
    d += OF_FORMATS * formats_apart(&a->work, &b->work);
    d += OF_LENGTH * fabs(log((a->work.cache_macs + 1) / (b->work.cache_macs + 1)));
    d += strcmp(a->content, b->content) ? OF_CONTENT : 0;
    d += a->n_thread != b->n_thread ? OF_THREADS : 0;
    d += strcmp(a->kv, b->kv) ? OF_CACHE : 0;
    if (a->work.disk_bytes > 0 && b->work.disk_bytes > 0)
        d += (a->device != b->device ? OF_DISK : 0) + (a->packed != b->packed ? OF_DISK : 0);
    return d;
}

static learned_run *oldest(learned *l) {
    learned_run *found = l->runs;
    for (int i = 1; i < l->n; i++)
        found = l->runs[i].at < found->at ? &l->runs[i] : found;
    return found;
}

static void join(learned_run *to, const learned_run *now) {
    learned_run joined = *now;
    const int kept = NUM_MIN(to->n_seconds, LEARNED_SECONDS - 1);
    memcpy(joined.seconds, to->seconds + to->n_seconds - kept, (size_t)kept * sizeof *joined.seconds);
    joined.seconds[kept] = now->seconds[0];
    joined.n_seconds = kept + 1;
    *to = joined;
}

nib_status learned_add(learned *l, const learned_run *now, nib_error *err) {
    learned_run *nearest = NULL, one = *now;
    int64_t latest = 0;
    for (int i = 0; i < l->n; i++) {
        const double d = learned_distance(&l->runs[i], now);
        latest = NUM_MAX(latest, l->runs[i].at);
        if (d <= SAME && (!nearest || d < learned_distance(nearest, now)))
            nearest = &l->runs[i];
    }
    one.at = latest + 1;
    if (nearest) {
        join(nearest, &one);
        return NIB_OK;
    }
    if (!l->runs) {
        l->runs = mem_array(MAX_LEARNED, sizeof *l->runs);
        if (!l->runs)
            return nib_fail_nomem(err, MAX_LEARNED * sizeof *l->runs, "what runs took");
    }
    *(l->n < MAX_LEARNED ? &l->runs[l->n++] : oldest(l)) = one;
    return NIB_OK;
}
