/* bench_recall.c - how many of a row's largest channels the approximate choice of QDEC's residuals finds
 * (kernels/salient.h), on the rows that a model's products read. The calibration prompts, or the lines of a
 * text, pass the layers in 16-bit activations, and both rules choose from every row.
 *
 *   bench_recall MODEL [TEXT]
 *
 * For each kind of product (once for products of one input) and each k_chunk: the recall, the share of the
 * exact choice's channels that the approximate one has, and the share of its energy (sum of squares). */
#include "base/num.h"
#include "kernels/kernels.h"
#include "measure/measure.h"
#include "measure/product_inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KIND = 32, MAX_K = 1 << 20 };
static const int64_t chunks[] = {1, 4, 8, 16, 32, 64, 128, 256};
enum { N_CHUNK = 8 };

typedef struct counts {
    double hits, all, energy, exact_energy; /* channels: of both rules, of the exact one; squares of the
                                       approximate choice and of the exact one */
    double worst;                           /* the smallest recall of a row */
} counts;

typedef struct recall {
    const layout *lay;
    int n_kind;
    struct {
        const char *name;
        int64_t k, n_row;
        counts of[N_CHUNK];
    } kinds[MAX_KIND];
    int block; /* of the last product, and its input */
    const float *x;
    int64_t row;
    int32_t *approx, *exact; /* [MAX_K] */
    probe probe;
} recall;

static void compare_row(recall *r, counts *c, const float *x, int64_t k, int64_t k_chunk) {
    const kernel_table *t = kernels_table();
    const int64_t n = salient_pick(t, SALIENT_APPROX, x, k, k_chunk, r->approx);
    salient_pick(t, SALIENT_EXACT, x, k, k_chunk, r->exact);
    int64_t hits = 0;
    for (int64_t i = 0, j = 0; i < n; i++) {
        while (j < n && r->exact[j] < r->approx[i])
            j++;
        hits += j < n && r->exact[j] == r->approx[i];
    }
    for (int64_t i = 0; i < n; i++) {
        c->energy += (double)x[r->approx[i]] * (double)x[r->approx[i]];
        c->exact_energy += (double)x[r->exact[i]] * (double)x[r->exact[i]];
    }
    c->hits += (double)hits;
    c->all += (double)n;
    c->worst = NUM_MIN(c->worst, (double)hits / (double)n);
}

/* The rows that a product is about to read. Of products with one input only the first one counts. */
static void see(void *user, const probe_input *in) {
    recall *r = user;
    const block *b = layout_block(r->lay, in->block);
    const bool again = in->block == r->block && in->x == r->x && in->n_row == r->row;
    r->block = in->block;
    r->x = in->x;
    r->row = in->n_row;
    if (b->layer < 0 || again || in->k > MAX_K)
        return;
    int kind = 0;
    while (kind < r->n_kind && strcmp(r->kinds[kind].name, b->weights[in->w].name) != 0)
        kind++;
    if (kind == MAX_KIND)
        return;
    if (kind == r->n_kind) {
        r->n_kind++;
        r->kinds[kind].name = b->weights[in->w].name;
        for (int c = 0; c < N_CHUNK; c++)
            r->kinds[kind].of[c].worst = 1;
    }
    r->kinds[kind].k = in->k;
    r->kinds[kind].n_row += in->n_row;
    for (int64_t i = 0; i < in->n_row; i++)
        for (int c = 0; c < N_CHUNK; c++)
            compare_row(r, &r->kinds[kind].of[c], in->x + i * in->k, in->k, chunks[c]);
}

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    recall *r = user;
    (void)err;
    r->lay = e->layout;
    return NIB_OK;
}

static void print(const recall *r) {
    counts all[N_CHUNK] = {{0}};
    printf("| first product of an input | channels | rows |");
    for (int c = 0; c < N_CHUNK; c++)
        printf(" %d |", (int)chunks[c]);
    printf("\n|---|---|---|");
    for (int c = 0; c < N_CHUNK; c++)
        printf("---|");
    for (int kind = 0; kind <= r->n_kind; kind++) {
        const bool is_sum = kind == r->n_kind;
        if (is_sum)
            printf("\n| all | | |");
        else
            printf("\n| %s | %d | %d |", r->kinds[kind].name, (int)r->kinds[kind].k,
                   (int)r->kinds[kind].n_row);
        for (int c = 0; c < N_CHUNK; c++) {
            const counts *of = is_sum ? &all[c] : &r->kinds[kind].of[c];
            printf(" %.3f; %.4f |", of->hits / of->all, of->energy / of->exact_energy);
            if (is_sum)
                continue;
            all[c].hits += of->hits;
            all[c].all += of->all;
            all[c].energy += of->energy / of->exact_energy * (double)r->kinds[kind].n_row;
            all[c].exact_energy += (double)r->kinds[kind].n_row;
        }
    }
    printf("\nrecall; share of the energy, by k_chunk. The smallest recall of a row:");
    for (int c = 0; c < N_CHUNK; c++) {
        double worst = 1;
        for (int kind = 0; kind < r->n_kind; kind++)
            worst = NUM_MIN(worst, r->kinds[kind].of[c].worst);
        printf(" %.2f", worst);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    static recall r;
    nib_engine_options options;
    nib_error err;
    calibration c;
    if (argc < 2) {
        printf("usage: bench_recall MODEL [TEXT]\n");
        return 2;
    }
    nib_engine_options_init(&options);
    r.block = -1;
    r.approx = malloc(MAX_K * sizeof *r.approx);
    r.exact = malloc(MAX_K * sizeof *r.exact);
    r.probe = (probe){.input = see, .user = &r};
    const product_watch watch = {.begin = begin, .probe = &r.probe, .what = "rows", .user = &r};
    nib_status status = r.approx && r.exact
                            ? measure_prompts(argv[1], &options, argc > 2 ? argv[2] : NULL, false, &c, &err)
                            : nib_fail_nomem(&err, MAX_K, "channels");
    if (status == NIB_OK) {
        printf("%s: %s\n", argv[1], c.what);
        status = measure_product_inputs(argv[1], &options, &c, &watch, &err);
        calibration_clear(&c);
    }
    if (status == NIB_OK)
        print(&r);
    else
        printf("%s\n", err.message);
    free(r.approx);
    free(r.exact);
    return status ? 1 : 0;
}
