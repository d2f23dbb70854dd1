/* awq.c - see awq.h. */
#include "quantize/awq.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/encode.h"
#include "quantize/rows.h"

#include <math.h>
#include <string.h>

enum {
    N_POWER = 20,
    SAMPLE_ROWS = 48,           /* rows that are sampled of each matrix that reads the input */
    MAX_ROWS = 8 * SAMPLE_ROWS, /* maximum sampled rows of all of them */
};

uint64_t awq_bytes(int64_t k, int n_thread) {
    const int64_t search = MAX_ROWS + 4 * n_thread + 4, factors = 2 * GRAM_SITES;
    return (uint64_t)(k * (search + factors)) * sizeof(float) + MAX_ROWS * sizeof(type_id);
}

/* ---- the power ---- */

typedef struct searching {
    const awq_site *site;
    const float *rows;      /* [n_row, k]: sampled rows of the matrices that read the input */
    const type_id *type;    /* [n_row] */
    const float *magnitude; /* [n_made] */
    const float *mean;      /* [k]: mean squares */
    int64_t n_row, k;
    double loss[N_POWER];
    float *scratch; /* [n_thread, 4 k] */
} searching;

static void fill_factors(const awq_site *s, const float *magnitude, double power, float *made) {
    float low = INFINITY, high = 0;
    for (int64_t i = 0; i < s->n_made; i++) {
        made[i] = powf(fmaxf(magnitude[i], 1e-8f), (float)power);
        low = fminf(low, made[i]);
        high = fmaxf(high, made[i]);
    }
    const float middle = sqrtf(low * high);
    for (int64_t i = 0; i < s->n_made; i++)
        made[i] = power == 0 || !(middle > 0) ? 1 : fminf(fmaxf(made[i] / middle, 1e-3f), 1e3f);
}

static double loss_of_row(const searching *s, int64_t r, const float *made, float *x, float *matters,
                          uint8_t *blocks) {
    const site_source *source = &s->site->source;
    const float *row = s->rows + r * s->k;
    double loss = 0;
    for (int64_t c = 0; c < s->k; c++) {
        const float f = made[site_maker(source, c)];
        x[c] = row[c] * f;
        matters[c] = s->mean[c] / (f * f);
    }
    encode_row(s->type[r], x, matters, s->k, blocks);
    type_get(s->type[r])->dequantize(blocks, x, s->k);
    for (int64_t c = 0; c < s->k; c++) {
        const double d = (double)row[c] - (double)(x[c] / made[site_maker(source, c)]);
        loss += (double)s->mean[c] * d * d;
    }
    return loss;
}

static void try_powers(void *arg, int thread, int n_thread) {
    searching *s = arg;
    float *scratch = s->scratch + thread * 4 * s->k;
    for (int i = thread; i < N_POWER; i += n_thread) {
        fill_factors(s->site, s->magnitude, (double)i / N_POWER, scratch);
        s->loss[i] = 0;
        for (int64_t r = 0; r < s->n_row; r++)
            s->loss[i] += loss_of_row(s, r, scratch, scratch + s->k, scratch + 2 * s->k,
                                      (uint8_t *)(scratch + 3 * s->k));
    }
}

/* ---- one input ---- */

/* The format to which the piece's rows are rounded. */
static type_id format_of(const awq *a, const weight_piece *piece) {
    for (size_t i = 0; i < a->tensors->n; i++) {
        const gguf_tensor *t = &a->tensors->all[i];
        for (int p = 0; p < t->n_piece; p++)
            if (t->pieces[p].tensor == piece->tensor && piece->first_row >= t->pieces[p].first_row &&
                piece->first_row < t->pieces[p].first_row + t->pieces[p].n_row)
                return a->types[i];
    }
    return piece->tensor->type; /* not part of an output tensor: unchanged */
}

/* Samples evenly spaced rows of the matrices that read the input. */
static nib_status sample(const awq *a, const gram_site *in, float *rows, type_id *type, int64_t *n_row,
                         int64_t max, void *raw, nib_error *err) {
    const container *c = model_container(a->m);
    const block *b = model_block(a->m, a->block);
    *n_row = 0;
    for (int w = 0; w < b->n_weight; w++) {
        const weight *of = &b->weights[w];
        if (of->vector || of->shared_block >= 0 || gram_of(a->inputs, w) != in)
            continue;
        for (int p = 0; p < of->n_piece; p++) {
            const weight_piece *piece = &of->pieces[p];
            const type_id to = format_of(a, piece);
            const int64_t step = NUM_MAX(piece->n_row * of->n_piece / SAMPLE_ROWS, (int64_t)1);
            for (int64_t r = 0; r < piece->n_row && *n_row < max; r += step) {
                NIB_TRY(tensor_read(c, piece->tensor, piece->first_row + r, raw, rows + *n_row * in->k, err));
                type[(*n_row)++] = to;
            }
        }
    }
    return NIB_OK;
}

static void fill_means(const awq_site *s, const gram_site *in, float *mean, float *magnitude) {
    for (int64_t i = 0; i < s->n_made; i++)
        magnitude[i] = 0;
    for (int64_t c = 0; c < s->k; c++) {
        mean[c] = gram_mean_square(in, c);
        magnitude[site_maker(&s->source, c)] += mean[c] / (float)s->source.n_share;
    }
    for (int64_t i = 0; i < s->n_made; i++)
        magnitude[i] = sqrtf(magnitude[i]);
}

static nib_status search(awq *a, awq_site *s, const gram_site *in, pool *threads, nib_error *err) {
    const int64_t k = in->k, max = MAX_ROWS;
    const size_t n_scratch = (size_t)(4 * k * pool_size(threads)), n_rows = (size_t)(max * k);
    float *memory = mem_array(n_scratch + n_rows + 2 * (size_t)k + 2 * (size_t)k, sizeof *memory);
    type_id *type = mem_array((size_t)max, sizeof *type);
    s->factor = mem_array((size_t)k, sizeof *s->factor);
    s->made = mem_array((size_t)s->n_made, sizeof *s->made);
    nib_status status = NIB_OK;
    if (!memory || !type || !s->factor || !s->made) {
        status = nib_fail_nomem(err, (n_scratch + n_rows) * sizeof *memory, "a search of factors");
    } else {
        float *rows = memory + n_scratch, *mean = rows + n_rows, *magnitude = mean + k;
        searching now = {.site = s,
                         .rows = rows,
                         .type = type,
                         .magnitude = magnitude,
                         .mean = mean,
                         .k = k,
                         .scratch = memory};
        status = sample(a, in, rows, type, &now.n_row, max, memory, err);
        fill_means(s, in, mean, magnitude);
        if (status == NIB_OK)
            pool_run(threads, try_powers, &now);
        int best = 0;
        for (int i = 1; i < N_POWER && status == NIB_OK; i++)
            best = now.loss[i] < now.loss[best] ? i : best;
        s->power = (double)best / N_POWER;
        fill_factors(s, magnitude, s->power, s->made);
        for (int64_t c = 0; c < k; c++)
            s->factor[c] = s->made[site_maker(&s->source, c)];
    }
    mem_free(type);
    mem_free(memory);
    return status;
}

/* ---- a block ---- */

/* Finds the source of input i. False: another input has the same source, which cannot have two sets of
 * factors. */
static bool has_source_alone(const block *b, const gram *inputs, int i, site_source *out) {
    site_source other;
    if (!site_find_source(b, inputs->of[i].w, out))
        return false;
    for (int j = 0; j < inputs->n; j++)
        if (j != i && site_find_source(b, inputs->of[j].w, &other) && other.w == out->w)
            return false;
    return true;
}

nib_status awq_open(awq *a, const model *m, const gram *inputs, const gguf_tensors *tensors,
                    const type_id *types, pool *threads, nib_error *err) {
    *a = (awq){.m = m, .inputs = inputs, .tensors = tensors, .types = types, .block = inputs->block};
    if (a->block < 0 || model_block(m, a->block)->layer <
                            0) /* outside layers: a head's matrix may be tied to the embedding */
        return NIB_OK;
    for (int i = 0; i < inputs->n; i++) {
        const gram_site *in = &inputs->of[i];
        awq_site *s = &a->of[a->n];
        site_source source;
        if (model_block(m, a->block)
                ->weights[in->w]
                .transposed || /* rows of transposed matrices are not read */
            !has_source_alone(model_block(m, a->block), inputs, i, &source))
            continue;
        *s = (awq_site){.site = in->site, .source = source, .k = in->k, .n_made = in->k / source.n_share};
        a->n++;
        NIB_TRY(search(a, s, in, threads, err));
    }
    return NIB_OK;
}

void awq_close(awq *a) {
    for (int i = 0; i < a->n; i++) {
        mem_free(a->of[i].factor);
        mem_free(a->of[i].made);
    }
    memset(a, 0, sizeof *a);
}

const float *awq_times(const awq *a, int w) {
    const gram_site *in = a->n ? gram_of(a->inputs, w) : NULL;
    for (int i = 0; in && i < a->n; i++)
        if (a->of[i].site == in->site && a->of[i].power > 0)
            return a->of[i].factor;
    return NULL;
}

const float *awq_over(const awq *a, int w) {
    for (int i = 0; i < a->n; i++)
        if ((a->of[i].source.w == w || a->of[i].source.b == w) && a->of[i].power > 0)
            return a->of[i].made;
    return NULL;
}
