/* shortlist.c - see shortlist.h: the choice of a head's sketch. */
#include "exec/shortlist.h"

enum {
    MIN_HEAD = 1 << 20,    /* bytes; reading a smaller head takes no longer than starting a second step */
    COARSE_FROM = 64 << 20 /* weights; from here on, one bit less of each weight saves more time than the
                              longer lists take */
};
#define WORTH 0.7 /* a sketch must be smaller than this share of the matrix */

/* A format of sketches, and the number of small reads that a token waits for if the matrix is on disk: for
 * few and for more of the best logits. Measured: docs/shortlist.md. */
typedef struct grade {
    const char *format;
    double waits;
} grade;
static const grade fine[] = {{"u5g64", 4}, {"u5g64", 48}}, coarse[] = {{"u4g64", 12}, {"u4g32", 92}};

static grade grade_of(const weight *head, int n_best) {
    const grade *of = head->n >= COARSE_FROM / head->k ? coarse : fine;
    return of[n_best > SHORTLIST_FEW];
}

bool shortlist_sketch(const layout *lay, int n_best, const weight **of, view *sketch, uint64_t *bytes) {
    const weight *head;
    if (n_best < 1 || n_best > MAX_SHORTLIST || !layout_head(lay, &head) || head->bytes < MIN_HEAD)
        return false;
    *of = head;
    *sketch = (view){.n = head->n, .k = head->k};
    return pack_from_name(grade_of(head, n_best).format, head->k, &sketch->format) &&
           pack_bytes(&sketch->format, head->n, head->k, bytes) &&
           (double)*bytes <= WORTH * (double)head->bytes;
}

bool shortlist_device_sketch(const layout *lay, int n_best, bool asked, const weight **of, view *sketch,
                             uint64_t *bytes) {
    const weight *head;
    if (!layout_head(lay, &head) || (!asked && (n_best < 1 || n_best > SHORTLIST_FEW)))
        return false;
    *of = head;
    *sketch = (view){.n = head->n, .k = head->k};
    return pack_from_name("u4g32", head->k, &sketch->format) &&
           pack_bytes(&sketch->format, head->n, head->k, bytes) &&
           (double)*bytes <= WORTH * (double)head->bytes &&
           (asked || head->bytes - *bytes >= SHORTLIST_WORTH);
}

double shortlist_of(const layout *lay, int n_best, uint64_t *bytes, int *bits) {
    const weight *head;
    view sketch;
    if (!shortlist_sketch(lay, n_best, &head, &sketch, bytes)) {
        *bytes = 0;
        *bits = 0;
        return 0;
    }
    *bits = sketch.format.bits;
    return grade_of(head, n_best).waits;
}
