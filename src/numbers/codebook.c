/* codebook.c - see codebook.h. */
#include "numbers/codebook.h"

#include "base/num.h"
#include "numbers/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 16, BINS = 256, ROUNDS = 12, TOP = 127, MAX_HALF = 0x7bff };
enum {
    MAX_COLUMN = 65536 /* columns that a u16 can address */,
    TURNS = 3 /* rounds of codebook and outliers */
};

/* Sums over values: of the weights, of weight * value, of weight * value^2. */
typedef struct moments {
    double w, wx, wxx;
} moments;

/* The input of the fit of one row's codebook. */
typedef struct fit {
    const float *x, *weight; /* [n] */
    int64_t n;
    float floor;          /* smallest weight, so that every value counts */
    const uint8_t *apart; /* bit set of values that are excluded as outliers; NULL: none */
    bool by_size;         /* the error of a large value counts more, as in pack_scale.c */
    double rms;           /* of all values */
    int n_entry;
    int n_bin;
    moments upto[BINS + 1]; /* moments of the first i bins that have values */
} fit;

static float value_at(const fit *f, int64_t i) {
    return isfinite(f->x[i]) ? f->x[i] : 0;
}

static bool is_apart(const fit *f, int64_t i) {
    return f->apart && f->apart[i / 8] >> i % 8 & 1;
}

static double rms_of(const fit *f) {
    double squares = 0;
    for (int64_t i = 0; i < f->n; i++)
        squares += (double)value_at(f, i) * (double)value_at(f, i);
    return sqrt(squares / (double)f->n);
}

static double weight_at(const fit *f, int64_t i) {
    if (is_apart(f, i))
        return 0;
    const double column = (double)(f->weight ? fmaxf(f->weight[i], f->floor) : 1);
    return f->by_size ? column * (f->rms + fabs((double)value_at(f, i))) : column;
}

static void add(moments *m, double w, double x) {
    m->w += w;
    m->wx += w * x;
    m->wxx += w * x * x;
}

/* ---- bins ---- */

/* The bin of x. Bins have equal widths in the square root of the magnitude, so they are narrower near zero,
 * where most values are. */
static int bin_of(float x, float peak) {
    const float half = (float)BINS / 2;
    const int i = NUM_MIN((int)(sqrtf(fabsf(x) / peak) * half), BINS / 2 - 1);
    return x < 0 ? BINS / 2 - 1 - i : BINS / 2 + i;
}

static float peak_of(const fit *f) {
    float peak = 0;
    for (int64_t i = 0; i < f->n; i++)
        if (!is_apart(f, i))
            peak = fmaxf(peak, fabsf(value_at(f, i)));
    return peak;
}

static void fill_bins(fit *f, float peak) {
    moments bins[BINS] = {{0}};
    for (int64_t i = 0; i < f->n; i++)
        if (!is_apart(f, i))
            add(&bins[bin_of(value_at(f, i), peak)], weight_at(f, i), (double)value_at(f, i));
    f->n_bin = 0;
    f->upto[0] = (moments){0};
    for (int i = 0; i < BINS; i++) {
        if (!(bins[i].w > 0))
            continue;
        const moments *before = &f->upto[f->n_bin++];
        f->upto[f->n_bin] =
            (moments){before->w + bins[i].w, before->wx + bins[i].wx, before->wxx + bins[i].wxx};
    }
}

/* ---- the best intervals ---- */

/* The squared error when one entry serves bins [begin, end). */
static double cost_of(const fit *f, int begin, int end) {
    const moments *a = &f->upto[begin], *b = &f->upto[end];
    const double w = b->w - a->w, wx = b->wx - a->wx, wxx = b->wxx - a->wxx;
    return w > 0 ? fmax(wxx - wx * wx / w, 0) : 0;
}

typedef struct table {
    double before[BINS + 1],
        now[BINS + 1]; /* least errors of the first i bins: with one entry fewer, with the current number */
    uint16_t cut[MAX_ENTRIES][BINS + 1]; /* first bin of the last entry */
} table;

/* Fills now[low...high], whose cuts are in from...to. Cuts never decrease as bins are added, so each half of
 * the range has its own part of the cuts (divide and conquer). */
static void fill(const fit *f, table *t, int entry, int low, int high, int from, int to) {
    if (low > high)
        return;
    const int middle = (low + high) / 2;
    double min_error = INFINITY;
    int best = from;
    for (int cut = from; cut <= NUM_MIN(to, middle); cut++) {
        const double e = t->before[cut] + cost_of(f, cut, middle);
        if (e < min_error) {
            min_error = e;
            best = cut;
        }
    }
    t->now[middle] = min_error;
    t->cut[entry][middle] = (uint16_t)best;
    fill(f, t, entry, low, middle - 1, from, best);
    fill(f, t, entry, middle + 1, high, best, to);
}

static void best_centres(const fit *f, float *centre) {
    table t;
    for (int i = 0; i <= f->n_bin; i++) {
        t.before[i] = cost_of(f, 0, i);
        t.cut[0][i] = 0;
    }
    for (int entry = 1; entry < f->n_entry; entry++) {
        fill(f, &t, entry, 0, f->n_bin, 0, f->n_bin);
        memcpy(t.before, t.now, sizeof t.before);
    }
    for (int entry = f->n_entry - 1, end = f->n_bin; entry >= 0; end = t.cut[entry--][end]) {
        const moments *a = &f->upto[t.cut[entry][end]], *b = &f->upto[end];
        const double w = b->w - a->w;
        centre[entry] = w > 0 ? (float)((b->wx - a->wx) / w) : entry + 1 < f->n_entry ? centre[entry + 1] : 0;
    }
}

/* ---- values ---- */

/* Sets the boundaries half way between ascending entries; a value on a boundary belongs to the lower entry.
 */
static void set_borders(const float *centre, int n, float *border) {
    for (int i = 0; i + 1 < MAX_ENTRIES; i++)
        border[i] = i + 1 < n ? 0.5f * (centre[i] + centre[i + 1]) : INFINITY;
}

static int nearest(const float *border, float x) {
    int at = 0;
    for (int i = 0; i + 1 < MAX_ENTRIES; i++)
        at += x > border[i];
    return at;
}

static double sort_values(const fit *f, const float *centre, moments *of) {
    float border[MAX_ENTRIES];
    double error = 0;
    set_borders(centre, f->n_entry, border);
    memset(of, 0, MAX_ENTRIES * sizeof *of);
    for (int64_t i = 0; i < f->n; i++) {
        const float x = value_at(f, i);
        const int at = nearest(border, x);
        const double w = weight_at(f, i), d = (double)x - (double)centre[at];
        add(&of[at], w, (double)x);
        error += w * d * d;
    }
    return error;
}

static void improve(const fit *f, float *centre) {
    moments of[MAX_ENTRIES];
    double before = INFINITY;
    for (int r = 0; r < ROUNDS; r++) {
        const double error = sort_values(f, centre, of);
        if (!(error < before * (1 - 1e-4)))
            break;
        before = error;
        for (int i = 0; i < f->n_entry; i++)
            if (of[i].w > 0)
                centre[i] = (float)(of[i].wx / of[i].w);
    }
}

/* ---- entries ---- */

typedef struct book {
    uint16_t scale;
    int8_t entry[MAX_ENTRIES]; /* ascending */
    float value[MAX_ENTRIES];
} book;

static void put_entries(book *b, const float *centre, int n) {
    const float scale = half_to_float(b->scale), inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < n; i++) {
        const float v = fminf(fmaxf(centre[i] * inverse, -TOP), TOP);
        b->entry[i] = (int8_t)lrintf(v);
        b->value[i] = scale * (float)b->entry[i];
    }
}

/* Rounds the centres to the grid of bytes, then alternates: values to the nearest entry, entries to the
 * centre of their values, while the error falls. */
static book make_book(const fit *f, float *centre) {
    float top = 0;
    book best = {0};
    for (int i = 0; i < f->n_entry; i++)
        top = fmaxf(top, fabsf(centre[i]));
    const uint16_t h = half_from_float(top / TOP);
    best.scale = NUM_MIN(h, MAX_HALF);
    put_entries(&best, centre, f->n_entry);
    moments of[MAX_ENTRIES];
    double min_error = sort_values(f, best.value, of);
    for (int r = 0; r < ROUNDS; r++) {
        book next = best;
        for (int i = 0; i < f->n_entry; i++)
            if (of[i].w > 0)
                centre[i] = (float)(of[i].wx / of[i].w);
        put_entries(&next, centre, f->n_entry);
        const double error = sort_values(f, next.value, of);
        if (!(error < min_error))
            break;
        min_error = error;
        best = next;
    }
    return best;
}

/* ---- bytes ---- */

static void put_c3(const uint8_t *codes, int64_t n, block_c3 *b) {
    for (int64_t i = 0; i < n; i += 64, b++, codes += 64) {
        memset(b, 0, sizeof *b);
        for (int j = 0; j < 64; j++) {
            b->qs[j % 16] |= (uint8_t)((codes[j] & 3) << j / 16 * 2);
            b->qh[j / 8] |= (uint8_t)((codes[j] >> 2) << j % 8);
        }
    }
}

static void put_c4(const uint8_t *codes, int64_t n, block_c4 *b) {
    for (int64_t i = 0; i < n; i += 32, b++, codes += 32)
        for (int j = 0; j < 16; j++)
            b->qs[j] = (uint8_t)(codes[j] | codes[j + 16] << 4);
}

static book best_book(fit *f) {
    float centre[MAX_ENTRIES] = {0};
    const float peak = peak_of(f);
    if (peak > 0) {
        fill_bins(f, peak);
        best_centres(f, centre);
        improve(f, centre);
    }
    return make_book(f, centre);
}

/* ---- outliers ---- */

/* The outliers found so far with their gains: a heap with the smallest gain first; at the end sorted by
 * column. */
typedef struct outliers {
    int64_t n, max;
    double gain[MAX_COLUMN / 100 + 1];
    uint16_t column[MAX_COLUMN / 100 + 1];
    uint8_t apart[MAX_COLUMN / 8];
} outliers;

static void swap(outliers *o, int64_t a, int64_t b) {
    const double gain = o->gain[a];
    const uint16_t column = o->column[a];
    o->gain[a] = o->gain[b];
    o->column[a] = o->column[b];
    o->gain[b] = gain;
    o->column[b] = column;
}

static void offer(outliers *o, double gain, int64_t column) {
    int64_t at = 0;
    if (o->n < o->max) {
        at = o->n++;
        o->gain[at] = gain;
        o->column[at] = (uint16_t)column;
        for (; at > 0 && o->gain[at] < o->gain[(at - 1) / 2]; at = (at - 1) / 2)
            swap(o, at, (at - 1) / 2);
        return;
    }
    if (!(gain > o->gain[0]))
        return;
    o->gain[0] = gain;
    o->column[0] = (uint16_t)column;
    for (int64_t smallest = at;; at = smallest) {
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < o->n; child++)
            smallest = o->gain[child] < o->gain[smallest] ? child : smallest;
        if (smallest == at)
            return;
        swap(o, at, smallest);
    }
}

static int by_column(const void *a, const void *b) {
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* Picks the values with the largest weighted error under a codebook (NULL: with the largest weighted
 * magnitude). */
static void pick(fit *f, const book *b, outliers *o) {
    float border[MAX_ENTRIES];
    if (b)
        set_borders(b->value, f->n_entry, border);
    f->apart = NULL;
    o->n = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const float x = value_at(f, i), d = b ? x - b->value[nearest(border, x)] : x;
        offer(o, weight_at(f, i) * (double)d * (double)d, i);
    }
    memset(o->apart, 0, sizeof o->apart);
    for (int64_t i = 0; i < o->n; i++)
        o->apart[o->column[i] / 8] |= (uint8_t)(1 << o->column[i] % 8);
    f->apart = o->apart;
}

static double error_apart(const fit *f, const book *b) {
    moments of[MAX_ENTRIES];
    return sort_values(f, b->value, of);
}

/* Alternates between outliers and the codebook of the other values, beginning with the largest values as
 * outliers. */
static book best_with_outliers(fit *f, outliers *o) {
    pick(f, NULL, o);
    book best = best_book(f);
    double min_error = error_apart(f, &best);
    for (int turn = 1; turn < TURNS; turn++) {
        pick(f, &best, o);
        const book next = best_book(f);
        const double error = error_apart(f, &next);
        if (!(error < min_error))
            break;
        min_error = error;
        best = next;
    }
    pick(f, &best, o); /* the outliers of the best codebook */
    qsort(o->column, (size_t)o->n, sizeof *o->column, by_column);
    return best;
}

static void put_outliers(const fit *f, const book *b, const outliers *o, block_outlier *out) {
    float border[MAX_ENTRIES];
    set_borders(b->value, f->n_entry, border);
    for (int64_t i = 0; i < o->max; i++, out++) {
        const int64_t at = i < o->n ? o->column[i] : 0;
        const float x = value_at(f, at);
        const float max_bf16 = 0x1.fcp127f, d = x - b->value[nearest(border, x)];
        const uint16_t h = i < o->n ? bf16_from_float(fminf(fmaxf(d, -max_bf16), max_bf16)) : 0;
        *out = (block_outlier){{(uint8_t)at, (uint8_t)(at >> 8)}, {(uint8_t)h, (uint8_t)(h >> 8)}};
    }
}

void codebook_encode(type_id type, const float *x, const float *weight, int64_t n, void *row) {
    enum { SOME = 64 };
    const type_info *info = type_get(type);
    fit f = {.x = x, .weight = weight, .n = n, .n_entry = info->row_bytes - 2};
    outliers o;
    float border[MAX_ENTRIES];
    double sum = 0;
    for (int64_t i = 0; weight && i < n; i++)
        sum += (double)weight[i];
    f.by_size = f.n_entry == 8;
    f.rms = rms_of(&f);
    f.floor = sum > 0 ? (float)(sum / (double)n * 1e-6) : 1;
    o.n = 0;
    o.max = type_outliers(type, n);
    const book b = o.max > 0 && n <= MAX_COLUMN ? best_with_outliers(&f, &o) : best_book(&f);
    uint8_t *out = row, codes[SOME] = {0};
    out[0] = (uint8_t)b.scale;
    out[1] = (uint8_t)(b.scale >> 8);
    memcpy(out + 2, b.entry, (size_t)f.n_entry);
    out += info->row_bytes;
    set_borders(b.value, f.n_entry, border);
    for (int64_t at = 0; at < n; at += SOME) {
        const int64_t some = NUM_MIN(n - at, (int64_t)SOME);
        for (int64_t i = 0; i < some; i++)
            codes[i] = (uint8_t)nearest(border, value_at(&f, at + i));
        if (f.n_entry == 8)
            put_c3(codes, some, (void *)out);
        else
            put_c4(codes, some, (void *)out);
        out += some / info->block_elems * info->block_bytes;
    }
    put_outliers(&f, &b, &o, (void *)out);
}
