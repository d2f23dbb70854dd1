/* What a probe sees is what a direct computation gives; several prompts in one pass give the bits of one by
 * one; a profile does not depend on threads, budget or instruction set; costs agree with what they are made
 * of.
 */
#include "base/mem.h"
#include "profile/divergence.h"
#include "run/measure.h"
#include "run/measure_rows.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_LAYER = 3, D = 32, FF = 48, HEADS = 4, KV_HEADS = 2, D_HEAD = 8 };

static const tiny_shape floats = {TYPE_F32, N_LAYER, D, FF, HEADS, KV_HEADS, N_VOCAB, 128, false};
static const tiny_shape packed = {TYPE_Q8_0, 4, 128, 256, 4, 2, 512, 128, true};

static const tiny_shape few = {TYPE_Q8_0, 2, 64, 64, 2, 2, N_VOCAB, 128, true};

static nib_engine *open_engine(const char *path, int n_thread, int64_t n_row) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    if (engine_open(path, &o, &(engine_want){.n_row = n_row}, &e, &err))
        fail_msg("%s: %s", path, err.message);
    return e;
}

/* Prompts of 5, 70, 1 and 40 arbitrary ids: more and fewer than the rows of a cell. */
static calibration four_prompts(int64_t n_vocab) {
    static const int64_t begin[] = {0, 5, 75, 76, 116};
    calibration c = {.n_prompt = 4};
    c.tokens = mem_alloc(116 * sizeof *c.tokens);
    c.begin = mem_alloc(sizeof begin);
    assert_true(c.tokens && c.begin);
    memcpy(c.begin, begin, sizeof begin);
    logits_tokens(c.tokens, 116, n_vocab, 1);
    strcpy(c.content, "aa");
    strcpy(c.hash, "bb");
    return c;
}

/* ---- several prompts in one pass ---- */

typedef struct collected {
    float *logits; /* [all rows, n_vocab] */
    const segment *segments;
    int64_t n_vocab;
} collected;

static nib_status collect(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                          nib_error *err) {
    const collected *c = user;
    (void)err;
    memcpy(c->logits + (c->segments[segment_index].row + row) * c->n_vocab, logits,
           (size_t)(n_row * c->n_vocab) * sizeof *logits);
    return NIB_OK;
}

static void ignore(void *user, const probe_seen *seen) {
    (void)seen;
    ++*(int *)user;
}

/* All prompts in one pass; looks: NULL, or how often a probe was told. Caller frees. */
static float *together(const char *path, const calibration *c, int n_thread, int *looks) {
    nib_engine *e = open_engine(path, n_thread, c->begin[c->n_prompt]);
    measure_rows rows;
    nib_error err = {0};
    const probe see = {.look = ignore, .user = looks};
    if (measure_rows_open(&rows, e, c, 0, 1000, &err))
        fail_msg("%s", err.message);
    collected got = {.segments = rows.segments, .n_vocab = nib_engine_info(e)->n_vocab};
    got.logits = calloc((size_t)(rows.n_row * got.n_vocab), sizeof *got.logits);
    assert_non_null(got.logits);
    const pass p = {.segments = rows.segments,
                    .n_segment = rows.n_segment,
                    .n_head = e->ws.n_head,
                    .rows = collect,
                    .user = &got,
                    .probe = looks ? &see : NULL};
    if (step_pass(e, &p, &err))
        fail_msg("%s: %s", path, err.message);
    measure_rows_close(&rows);
    nib_engine_close(e);
    return got.logits;
}

/* Each prompt in a session of its own with the same type of cache. */
static float *one_by_one(const char *path, const calibration *c) {
    nib_engine *e = open_engine(path, 2, 0);
    const int64_t n_vocab = nib_engine_info(e)->n_vocab;
    float *all = calloc((size_t)(c->begin[c->n_prompt] * n_vocab), sizeof *all);
    nib_error err = {0};
    assert_non_null(all);
    for (int i = 0; i < c->n_prompt; i++) {
        nib_session *s = NULL;
        logits_rows r = {all + c->begin[i] * n_vocab, n_vocab, 0};
        const nib_session_options o = {.n_ctx = 128, .kv_type = NIB_KV_F32};
        if (nib_session_open(e, &o, &s, &err) ||
            nib_session_forward(s, c->tokens + c->begin[i], (size_t)(c->begin[i + 1] - c->begin[i]), 0,
                                logits_keep, &r, &err))
            fail_msg("%s: %s", path, err.message);
        nib_session_close(s);
    }
    nib_engine_close(e);
    return all;
}

static void prompts_together_are_one_by_one(void **state) {
    (void)state;
    const int64_t n_vocab[] = {N_VOCAB, 512, 300, 300, 300};
    for (int i = 0; i < 5; i++) {
        const char *path = i == 0   ? tiny_model("floats.gguf", &floats)
                           : i == 1 ? tiny_model("packed.gguf", &packed)
                           : i == 2 ? tiny_folder_gpt2()
                           : i == 3 ? tiny_folder_mistral(20)
                                    : tiny_folder_gemma3(16);
        char *own = mem_strdup(path); /* temp_path's buffers come again */
        calibration c = four_prompts(n_vocab[i]);
        const size_t bytes = (size_t)(116 * n_vocab[i]) * sizeof(float);
        int looks = 0;
        float *want = one_by_one(own, &c);
        float *plain = together(own, &c, 1, NULL), *probed = together(own, &c, 2, &looks);
        assert_memory_equal(plain, want, bytes);
        assert_memory_equal(probed, want, bytes);
        assert_true(looks > 0);
        free(want);
        free(plain);
        free(probed);
        mem_free(own);
        calibration_clear(&c);
    }
}

/* ---- the probe against a computation of its own ---- */

typedef struct direct {
    const view *views;
    const block *blk;
} direct;

static const view *weight_of(const direct *d, const char *name) {
    for (int i = 0; i < d->blk->n_weight; i++)
        if (!strcmp(d->blk->weights[i].name, name))
            return &d->views[i];
    fail_msg("no weight %s", name);
    return NULL;
}

static void product(const direct *d, const char *name, const double *x, double *out) {
    const view *w = weight_of(d, name);
    float row[FF > D ? FF : D];
    for (int64_t r = 0; r < w->n; r++) {
        pack_read_row(w, r, row);
        out[r] = 0;
        for (int64_t i = 0; i < w->k; i++)
            out[r] += (double)row[i] * x[i];
    }
}

static void rms_norm(const direct *d, const char *name, const double *x, double *out) {
    const float *w = weight_of(d, name)->data;
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < D; i++)
        out[i] = x[i] / sqrt(sum / D + 1e-5) * (double)w[i];
}

static void rotate(double *x, int n_head, int position) {
    for (int h = 0; h < n_head; h++)
        for (int i = 0; i < D_HEAD; i += 2) { /* llama in GGUF: neighbours */
            const double angle = position * pow(10000, -(double)i / D_HEAD);
            double *p = x + h * D_HEAD + i;
            const double a = p[0], b = p[1];
            p[0] = a * cos(angle) - b * sin(angle);
            p[1] = a * sin(angle) + b * cos(angle);
        }
}

enum { ROWS = 9 };
typedef struct layer_values {
    double in[ROWS][D], q[ROWS][D], v[ROWS][KV_HEADS * D_HEAD], hidden[ROWS][FF], ffn[ROWS][D], out[ROWS][D];
} layer_values;

static void attend(const layer_values *l, double (*q)[D], double (*k)[KV_HEADS * D_HEAD], int row,
                   double *out) {
    for (int h = 0; h < HEADS; h++) {
        const int at = h / (HEADS / KV_HEADS) * D_HEAD;
        double p[ROWS], sum = 0;
        for (int j = 0; j <= row; j++) {
            double dot = 0;
            for (int i = 0; i < D_HEAD; i++)
                dot += q[row][h * D_HEAD + i] * k[j][at + i];
            sum += p[j] = exp(dot / sqrt(D_HEAD));
        }
        for (int i = 0; i < D_HEAD; i++) {
            out[h * D_HEAD + i] = 0;
            for (int j = 0; j <= row; j++)
                out[h * D_HEAD + i] += p[j] / sum * l->v[j][at + i];
        }
    }
}

static void feed(const direct *d, const double *x, double *u, double *out) {
    double h[D], g[FF];
    rms_norm(d, "ffn_norm", x, h);
    product(d, "gate", h, g);
    product(d, "up", h, u);
    for (int i = 0; i < FF; i++)
        u[i] *= g[i] / (1 + exp(-g[i]));
    product(d, "down", u, out);
}

/* A llama layer from l->in to l->out. */
static void compute_layer(const direct *d, layer_values *l) {
    static double q[ROWS][D], k[ROWS][KV_HEADS * D_HEAD];
    for (int r = 0; r < ROWS; r++) {
        double h[D];
        rms_norm(d, "attn_norm", l->in[r], h);
        product(d, "q", h, l->q[r]);
        product(d, "k", h, k[r]);
        product(d, "v", h, l->v[r]);
        memcpy(q[r], l->q[r], sizeof q[r]);
        rotate(q[r], HEADS, r);
        rotate(k[r], KV_HEADS, r);
    }
    for (int r = 0; r < ROWS; r++) {
        double a[D], o[D];
        attend(l, q, k, r, a);
        product(d, "o", a, o);
        for (int i = 0; i < D; i++)
            o[i] += l->in[r][i];
        feed(d, o, l->hidden[r], l->ffn[r]);
        for (int i = 0; i < D; i++)
            l->out[r][i] = o[i] + l->ffn[r][i];
    }
}

typedef struct checking {
    layer_values *layers; /* [N_LAYER] */
    int seen[PROBE_N];
} checking;

static void check(void *user, const probe_seen *s) {
    checking *c = user;
    const layer_values *l = &c->layers[s->block - 1];
    const double *want[] = {
        [PROBE_INPUT] = l->in[0],      [PROBE_Q] = l->q[0],     [PROBE_V] = l->v[0],
        [PROBE_HIDDEN] = l->hidden[0], [PROBE_FFN] = l->ffn[0], [PROBE_OUTPUT] = l->out[0]};
    const int64_t width = s->point == PROBE_V ? KV_HEADS * D_HEAD : s->point == PROBE_HIDDEN ? FF : D;
    if (s->width != width)
        fail_msg("layer %d, point %d: %d wide", s->block - 1, (int)s->point, (int)s->width);
    for (int64_t i = 0; i < s->n_row * width; i++) {
        const double is = (double)s->x[i] * (double)s->scale, should = want[s->point][s->row * width + i];
        if (!(fabs(is - should) <= 2e-4 * (1 + fabs(should))))
            fail_msg("layer %d, point %d, row %d: expected %g, found %g", s->block - 1, (int)s->point,
                     (int)(s->row + i / width), should, is);
    }
    c->seen[s->point] += (int)s->n_row;
}

static void the_probe_sees_what_is_computed(void **state) {
    (void)state;
    const char *path = tiny_model("floats.gguf", &floats);
    nib_engine *e = open_engine(path, 2, ROWS);
    const int64_t begin[] = {0, ROWS};
    calibration c = {
        .begin = (int64_t *)begin, .n_prompt = 1, .tokens = (int32_t[]){3, 1, 4, 1, 5, 9, 2, 6, 250}};
    checking ch = {.layers = calloc(N_LAYER, sizeof *ch.layers)};
    const view *views;
    measure_rows rows;
    nib_error err = {0};
    assert_non_null(ch.layers);
    pager_pin(e->pager, 0, &views);
    for (int r = 0; r < ROWS; r++) {
        float row[D];
        pack_read_row(&views[0], c.tokens[r], row);
        for (int i = 0; i < D; i++)
            ch.layers[0].in[r][i] = (double)row[i];
    }
    pager_unpin(e->pager, 0);
    for (int l = 0; l < N_LAYER; l++) {
        pager_pin(e->pager, l + 1, &views);
        if (l > 0)
            memcpy(ch.layers[l].in, ch.layers[l - 1].out, sizeof ch.layers[l].in);
        compute_layer(&(direct){views, model_block(e->m, l + 1)}, &ch.layers[l]);
        pager_unpin(e->pager, l + 1);
    }
    assert_int_equal(measure_rows_open(&rows, e, &c, 0, 0, &err), NIB_OK);
    const probe see = {.look = check, .user = &ch};
    const pass p = {.segments = rows.segments, .n_segment = 1, .n_head = 1, .probe = &see};
    assert_int_equal(step_pass(e, &p, &err), NIB_OK);
    for (int i = 0; i < PROBE_N; i++)
        assert_int_equal(ch.seen[i], N_LAYER * ROWS);
    measure_rows_close(&rows);
    free(ch.layers);
    nib_engine_close(e);
}

/* Every layer of every family has all points, and nothing else has any. */
static void every_family_has_the_points(void **state) {
    (void)state;
    static const char *const folders[] = {"tests/data/arch", "tests/data/arch-extra", "tests/data/arch-gguf"};
    const logger silent = {0};
    int n = 0;
    for (int f = 0; f < 3; f++) {
        DIR *dir = opendir(folders[f]);
        assert_non_null(dir);
        for (struct dirent *d; (d = readdir(dir));) {
            char path[512];
            model *m = NULL;
            snprintf(path, sizeof path, "%s/%s", folders[f], d->d_name);
            if (d->d_name[0] == '.' || model_open(path, &silent, &m, NULL) != NIB_OK)
                continue;
            for (int b = 0; b < model_n_block(m); b++) {
                probe_places at;
                probe_find(&model_block(m, b)->program, &at);
                for (int i = 0; i < PROBE_N; i++)
                    if ((at.at[i] == PROBE_NOWHERE) != (model_block(m, b)->layer < 0))
                        fail_msg("%s, %s: point %d", path, model_block(m, b)->name, i);
                n += model_block(m, b)->layer >= 0;
            }
            model_close(m);
        }
        closedir(dir);
    }
    assert_true(n > 60);
}

/* ---- measurements ---- */

static char *profile_of(const char *path, const calibration *c, int n_thread, double *bound) {
    nib_engine_options o;
    importance p;
    nib_error err = {0};
    char *text = NULL;
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    if (measure_importance(path, &o, c, &p, &err) || importance_print(&p, &text, &err))
        fail_msg("%s: %s", path, err.message);
    *bound = p.raw[IMPORTANCE_MCAP][0];
    assert_true(p.seconds > 0 && p.rss_peak > 0);
    importance_clear(&p);
    return text;
}

static void profiles_are_the_same_everywhere(void **state) {
    (void)state;
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = four_prompts(512);
    double first, other;
    char *want = profile_of(path, &c, 1, &first);
    assert_true(first > 0);
    for (int n_thread = 2; n_thread <= 3; n_thread++) {
        char *got = profile_of(path, &c, n_thread, &other);
        assert_string_equal(got, want);
        mem_free(got);
    }
    mem_free(want);
    calibration_clear(&c);
}

/* MCAP's score of the first layer from the probe's rows is what the direct computation's norms give. */
static void scores_are_means_of_norms(void **state) {
    (void)state;
    const char *path = tiny_model("floats.gguf", &floats);
    const int64_t begin[] = {0, 1};
    calibration c = {.begin = (int64_t *)begin, .n_prompt = 1, .tokens = (int32_t[]){7}};
    nib_engine *e = open_engine(path, 1, 1);
    const view *views;
    nib_engine_options o;
    importance p;
    nib_error err = {0};
    double hidden[FF], x[D], h[D], q[D], k[KV_HEADS * D_HEAD], v[D], a[D], ffn[D], attn2 = 0, ffn2 = 0;
    float row[D];
    pager_pin(e->pager, 0, &views);
    pack_read_row(&views[0], 7, row);
    for (int i = 0; i < D; i++)
        x[i] = (double)row[i];
    pager_unpin(e->pager, 0);
    pager_pin(e->pager, 1, &views);
    const direct d = {views, model_block(e->m, 1)};
    rms_norm(&d, "attn_norm", x, h);
    product(&d, "q", h, q);
    product(&d, "k", h, k);
    product(&d, "v", h, v);
    for (int i = 0; i < D; i++) /* the first token attends to itself */
        a[i] = v[i / (HEADS / KV_HEADS * D_HEAD) * D_HEAD + i % D_HEAD];
    product(&d, "o", a, h);
    for (int i = 0; i < D; i++)
        h[i] += x[i];
    feed(&d, h, hidden, ffn);
    for (int i = 0; i < D; i++) {
        attn2 += q[i] * q[i] + (i < KV_HEADS * D_HEAD ? v[i] * v[i] : 0);
        ffn2 += ffn[i] * ffn[i];
    }
    pager_unpin(e->pager, 1);
    nib_engine_close(e);
    nib_engine_options_init(&o);
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_OK);
    assert_true(fabs(p.raw[IMPORTANCE_ATTN][0] - sqrt(attn2)) < 1e-4 * sqrt(attn2));
    assert_true(fabs(p.raw[IMPORTANCE_FFN][0] - sqrt(ffn2)) < 1e-4 * sqrt(ffn2));
    assert_true(fabs(p.raw[IMPORTANCE_MCAP][0] - sqrt(attn2) - sqrt(ffn2)) <
                1e-4 * (sqrt(attn2) + sqrt(ffn2)));
    importance_clear(&p);
}

/* Costs of a small model: nothing of its own costs nothing, fewer bits cost more, and the same for any number
 * of threads. */
static void costs_are_costs(void **state) {
    (void)state;
    static const char *const formats[] = {"u8g128", "u6g64",  "u4g64",      "u3g64",
                                          "u8g16",  "u4g64w", "u4g64+u2g64"};
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = four_prompts(512);
    const double score[] = {1, 0, 0.5, 0.25};
    const quality_options q = {formats, 7, score, 40, 8};
    columns first = {0};
    nib_engine_options o;
    char *text[2];
    nib_error err = {0};
    for (int i = 0; i < 2; i++) {
        quality got;
        columns seen;
        nib_engine_options_init(&o);
        o.n_thread = 1 + i;
        if (measure_quality(path, &o, &c, &q, &got, &seen, &err))
            fail_msg("%s", err.message);
        assert_int_equal(got.n_block, 6);
        assert_int_equal(got.n_token, 5 + 8 + 1 + 8);
        for (int b = 0; b < 5; b++) {
            const double *kl = got.kl + 7 * b, *off = got.error + 7 * b;
            assert_true(kl[4] < 0 && off[4] < 0); /* larger than Q8_0 */
            assert_true(off[0] > 0 && off[0] < off[1] && off[1] < off[2] && off[2] < off[3]);
            assert_true(kl[0] > 0 && kl[0] < kl[2] && kl[2] < kl[3]);
            assert_true(kl[5] > 0 && kl[5] != kl[2]);        /* rounded by what the products read */
            assert_true(off[1] < off[6] && off[6] < off[2]); /* a stack of 6.5 bits is as 6 or so */
            if (b > 0)
                assert_true(got.kl_left_out[b] > 0 &&
                            got.kl_activation[2 * b] < got.kl_activation[2 * b + 1]);
        }
        assert_true(got.kl[5 * 7] == 0 && got.kl_left_out[5] < 0 && got.kl_left_out[0] < 0);
        assert_true(got.kl_fewer[0] == 0 && got.kl_fewer[1] == got.kl_left_out[2] && got.kl_fewer[4] < 0);
        assert_int_equal(quality_print(&got, &text[i], &err), NIB_OK);
        assert_int_equal(seen.n_site, 4 * 4 + 1); /* q k v, o, gate up, down of each layer, head */
        for (uint64_t j = 0; j < seen.first[seen.n_site]; j++)
            assert_true(seen.mean[j] > 0 && (!i || seen.mean[j] == first.mean[j]));
        quality_clear(&got);
        if (i)
            columns_clear(&seen);
        else
            first = seen;
    }
    assert_string_equal(text[0], text[1]);
    mem_free(text[0]);
    mem_free(text[1]);
    columns_clear(&first);
    calibration_clear(&c);
}

static bool stop_at_once(void *user, const char *what, uint64_t done, uint64_t all) {
    (void)user;
    (void)all;
    return strncmp(what, "measuring", 9) != 0 || done < 2;
}

static void measuring_can_be_cancelled(void **state) {
    (void)state;
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = four_prompts(512);
    nib_engine_options o;
    importance p;
    quality q;
    columns seen;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.progress = stop_at_once;
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_E_CANCELLED);
    importance_clear(&p);
    assert_int_equal(
        measure_quality(path, &o, &c, &(quality_options){measure_formats, 2, NULL, 0, 0}, &q, &seen, &err),
        NIB_E_CANCELLED);
    quality_clear(&q);
    columns_clear(&seen);
    c.tokens[3] = 512;
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_E_USAGE); /* no such id */
    importance_clear(&p);
    calibration_clear(&c);
}

typedef struct measured {
    const char *path;
    const calibration *c;
} measured;

static nib_status measure_both(void *user, nib_error *err) {
    static const char *const formats[] = {"u4g64w"};
    const measured *m = user;
    nib_engine_options o;
    importance p;
    quality q;
    columns seen;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.packed = NIB_PACKED_OFF;
    nib_status status = measure_importance(m->path, &o, m->c, &p, err);
    if (status == NIB_OK) {
        const quality_options how = {formats, 1, p.score, 8, 1};
        status = measure_quality(m->path, &o, m->c, &how, &q, &seen, err);
        quality_clear(&q);
        columns_clear(&seen);
    }
    importance_clear(&p);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    calibration c = four_prompts(N_VOCAB);
    c.n_prompt = 1;
    measured m = {tiny_model("few.gguf", &few), &c};
    assert_true(fault_sweep(FAULT_ALLOC, 11, measure_both, &m) > 50);
    calibration_clear(&c);
}

static double exact_divergence(const float *a, const float *b, int64_t n) {
    long double za = 0, zb = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        za += expl((long double)a[i]);
        zb += expl((long double)b[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += expl((long double)a[i]) / za * ((long double)a[i] - logl(za) - (long double)b[i] + logl(zb));
    return (double)sum;
}

static void divergence_is_exact(void **state) {
    (void)state;
    enum { N = 1003 };
    float a[N], b[N];
    uint64_t x = 1;
    for (double size = 1e-3; size < 100; size *= 10) {
        for (int i = 0; i < N; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            a[i] = (float)(x >> 40) / 1e6f;
            b[i] = a[i] + (float)(size * ((double)(x >> 20 & 1023) / 512 - 1));
        }
        const double want = exact_divergence(a, b, N), got = divergence(a, b, N);
        if (fabs(got - want) > 2e-8 + 1e-6 * want)
            fail_msg("expected %.10g, found %.10g", want, got);
    }
    assert_true(divergence(a, a, N) == 0);
    for (int i = 0; i < N; i++)
        b[i] = a[i] + 500; /* the same distribution */
    assert_true(divergence(a, b, N) < 1e-7);
    b[N - 1] = NAN;
    assert_true(isnan(divergence(a, b, N)));
    b[N - 1] = INFINITY;
    assert_true(isnan(divergence(a, b, N)) && isnan(divergence(b, a, N)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_together_are_one_by_one),
        cmocka_unit_test(the_probe_sees_what_is_computed),
        cmocka_unit_test(every_family_has_the_points),
        cmocka_unit_test(profiles_are_the_same_everywhere),
        cmocka_unit_test(scores_are_means_of_norms),
        cmocka_unit_test(costs_are_costs),
        cmocka_unit_test(measuring_can_be_cancelled),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(divergence_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
