/* A probe's data, and a score computed from it, agree with a direct computation; several prompts in one pass
 * have the bits of one prompt at a time. */
#include "base/mem.h"
#include "measure/measure.h"
#include "measure/prompt_rows.h"
#include "support/logits.h"
#include "support/prompts.h"
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

static nib_engine *open_engine(const char *path, int n_thread, int64_t n_row) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    if (engine_open(path, &o, &(engine_internal){.n_row = n_row}, &e, &err))
        fail_msg("%s: %s", path, err.message);
    return e;
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

static void ignore(void *user, const probe_data *seen) {
    (void)seen;
    ++*(int *)user;
}

/* All prompts in one pass; looks: NULL, or counts the calls of a probe. Caller frees. */
static float *together(const char *path, const calibration *c, int n_thread, int *looks) {
    nib_engine *e = open_engine(path, n_thread, c->begin[c->n_prompt]);
    prompt_rows rows;
    nib_error err = {0};
    const probe see = {.point = ignore, .user = looks};
    const engine_parts on = engine_parts_of(e);
    if (prompt_rows_open(&rows, &on, c, 0, 1000, &err))
        fail_msg("%s", err.message);
    collected got = {.segments = rows.segments, .n_vocab = nib_engine_info(e)->n_vocab};
    got.logits = calloc((size_t)(rows.n_row * got.n_vocab), sizeof *got.logits);
    assert_non_null(got.logits);
    const pass p = {.segments = rows.segments,
                    .n_segment = rows.n_segment,
                    .apart = true,
                    .n_head = engine_parts_of(e).step->backend->rows.n_head,
                    .rows = collect,
                    .user = &got,
                    .probe = looks ? &see : NULL};
    if (step_pass(engine_parts_of(e).step, &p, &err))
        fail_msg("%s: %s", path, err.message);
    prompt_rows_close(&rows);
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
        calibration c = prompts_open(n_vocab[i]);
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

static void check(void *user, const probe_data *s) {
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
    prompt_rows rows;
    nib_error err = {0};
    assert_non_null(ch.layers);
    views = pager_views(engine_parts_of(e).step->pager, 0);
    for (int r = 0; r < ROWS; r++) {
        float row[D];
        pack_read_row(&views[0], c.tokens[r], row);
        for (int i = 0; i < D; i++)
            ch.layers[0].in[r][i] = (double)row[i];
    }
    for (int l = 0; l < N_LAYER; l++) {
        views = pager_views(engine_parts_of(e).step->pager, l + 1);
        if (l > 0)
            memcpy(ch.layers[l].in, ch.layers[l - 1].out, sizeof ch.layers[l].in);
        compute_layer(&(direct){views, layout_block(engine_parts_of(e).layout, l + 1)}, &ch.layers[l]);
    }
    const engine_parts on = engine_parts_of(e);
    assert_int_equal(prompt_rows_open(&rows, &on, &c, 0, 0, &err), NIB_OK);
    const probe see = {.point = check, .user = &ch};
    const pass p = {.segments = rows.segments, .n_segment = 1, .n_head = 1, .probe = &see};
    assert_int_equal(step_pass(engine_parts_of(e).step, &p, &err), NIB_OK);
    for (int i = 0; i < PROBE_N; i++)
        assert_int_equal(ch.seen[i], i == PROBE_CHOSEN ? 0 : N_LAYER * ROWS); /* the model is dense */
    prompt_rows_close(&rows);
    free(ch.layers);
    nib_engine_close(e);
}

/* A layer without attention has no queries, one that stores no keys and values has no values, latent
 * attention has no values of heads, and only a dense feed-forward part (or a shared expert, which
 * has no sum of its own) has neurons. */
static bool has_point(const block *b, int point) {
    bool attends = false, stores = false, latent = false, feeds = false, adds = false, beside = false,
         chooses = false;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        attends = attends || o->kind == OP_ATTENTION;
        stores = stores || op_stores(o);
        latent = latent || (o->kind == OP_ATTENTION && o->u.attn.shared);
        beside = beside || o->kind == OP_EXPERTS;
        chooses = chooses || o->kind == OP_ROUTE;
        adds = adds || (o->kind == OP_ADD && o->out == REG_X);
        feeds = feeds || (o->kind == OP_LINEAR && o->in == REG_U && o->out == REG_O);
    }
    if (point == PROBE_CHOSEN)
        return chooses;
    if (!adds) /* a layer of several streams */
        return false;
    switch (point) {
    case PROBE_Q: return attends;
    case PROBE_V: return stores && !latent;
    case PROBE_HIDDEN:
    case PROBE_FFN: return feeds && !beside; /* the sum with experts has no point */
    default: return b->layer >= 0;
    }
}

/* Every layer of every family has its points, and nothing else has any. */
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
                    if ((at.at[i] == PROBE_NOWHERE) != !has_point(model_block(m, b), i))
                        fail_msg("%s, %s: point %d", path, model_block(m, b)->name, i);
                n += model_block(m, b)->layer >= 0;
            }
            model_close(m);
        }
        closedir(dir);
    }
    assert_true(n > 60);
}

/* MCAP's score of the first layer from the probe's rows agrees with the direct computation's norms. */
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
    views = pager_views(engine_parts_of(e).step->pager, 0);
    pack_read_row(&views[0], 7, row);
    for (int i = 0; i < D; i++)
        x[i] = (double)row[i];
    views = pager_views(engine_parts_of(e).step->pager, 1);
    const direct d = {views, layout_block(engine_parts_of(e).layout, 1)};
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
    nib_engine_close(e);
    nib_engine_options_init(&o);
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_OK);
    assert_true(fabs(p.raw[IMPORTANCE_ATTN][0] - sqrt(attn2)) < 1e-4 * sqrt(attn2));
    assert_true(fabs(p.raw[IMPORTANCE_FFN][0] - sqrt(ffn2)) < 1e-4 * sqrt(ffn2));
    assert_true(fabs(p.raw[IMPORTANCE_MCAP][0] - sqrt(attn2) - sqrt(ffn2)) <
                1e-4 * (sqrt(attn2) + sqrt(ffn2)));
    importance_clear(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_together_are_one_by_one),
        cmocka_unit_test(the_probe_sees_what_is_computed),
        cmocka_unit_test(every_family_has_the_points),
        cmocka_unit_test(scores_are_means_of_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
