/* as_gguf_keys.c - see as_gguf.h: writes the configuration as metadata, and compares a written file with its
 * source. */
#include "base/num.h"
#include "model/as_gguf.h"
#include "model/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Families without an architecture of their own in GGUF are Llama's (Mistral). */
static const char *arch_name(const model *m, char *name, size_t size) {
    const char *list = m->arch->gguf != NULL ? m->arch->gguf : "llama";
    list_next(&list, name, size);
    if (m->cfg.hp.n_expert > 0) /* a second name is that of mixtures */
        list_next(&list, name, size);
    return name;
}

typedef struct writing {
    const model *m;
    gguf_writer *w;
    char prefix[64];
} writing;

static nib_status set_number(const writing *w, const char *name, double value, nib_error *err) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", w->prefix, name);
    return gguf_writer_set_float(w->w, key, GGUF_F32, value, err);
}

static nib_status set_count(const writing *w, const char *name, int64_t value, nib_error *err) {
    char key[256];
    snprintf(key, sizeof key, "%s.%s", w->prefix, name);
    return gguf_writer_set_int(w->w, key, GGUF_U32, value, err);
}

static nib_status set_flag(const writing *w, const char *name, bool value, nib_error *err) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", w->prefix, name);
    return gguf_writer_set_int(w->w, key, GGUF_BOOL, value, err);
}

/* Factors that a GGUF file of the family has in its weights. */
static bool is_baked(const arch_desc *arch, hp_id field) {
    return (arch->flags & A_BAKED_GGUF) &&
           (field == HP_embed_scale || field == HP_logit_scale || field == HP_attn_in_scale ||
            field == HP_attn_out_scale || field == HP_key_scale || field == HP_gate_scale ||
            field == HP_down_scale || field == HP_rec_in_scale || field == HP_rec_z_scale ||
            field == HP_rec_x_scale || field == HP_rec_b_scale || field == HP_rec_c_scale ||
            field == HP_rec_dt_scale || field == HP_rec_out_scale);
}

static nib_status set_field(const writing *w, hp_id field, nib_error *err) {
    const char *list;
    char kind, name[96], key[176];
    double value;
    if (is_baked(w->m->arch, field))
        return NIB_OK;
    if (!config_gguf_key(w->m->arch, field, &w->m->cfg.hp, &list, &kind, &value))
        return NIB_OK;
    list_next(&list, name, sizeof name);
    if (field == HP_norm_eps && w->m->arch->norm == NORM_LAYER && *list != '\0')
        list_next(&list, name, sizeof name);
    snprintf(key, sizeof key, "%s.%s", w->prefix, name);
    if (kind == 'f')
        return gguf_writer_set_float(w->w, key, GGUF_F32, value, err);
    NIB_TRY(gguf_writer_set_int(w->w, key, kind == 'b' ? GGUF_BOOL : GGUF_U32, (int64_t)value, err));
    if (field == HP_d_head || field == HP_d_head_full) { /* attention.key_length...: values have a key too */
        const int64_t of_values = field == HP_d_head ? w->m->cfg.hp.d_value : (int64_t)value;
        snprintf(key, sizeof key, "attention.value%.60s", strchr(name, '_'));
        return set_count(w, key, of_values, err);
    }
    return NIB_OK;
}

/* ---- rotary scaling ---- */

static nib_status set_type(const writing *w, const char *type, nib_error *err) {
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", w->prefix);
    return gguf_writer_set_string(w->w, key, type, strlen(type), err);
}

static nib_status set_yarn(const writing *w, const rope_params *r, nib_error *err) {
    const double usual = r->factor <= 1 ? 1 : 0.1 * log(r->factor) + 1;
    if (r->truncate == ((w->m->arch->flags & A_YARN_EXACT) != 0))
        return nib_fail(err, NIB_E_MODEL, "rope scaling: a GGUF file cannot express \"truncate\": %s",
                        r->truncate ? "true" : "false");
    NIB_TRY(set_type(w, "yarn", err));
    NIB_TRY(set_number(w, "rope.scaling.factor", r->factor, err));
    NIB_TRY(set_count(w, "rope.scaling.original_context_length", (int64_t)r->orig_ctx, err));
    NIB_TRY(set_number(w, "rope.scaling.yarn_beta_fast", r->beta_fast, err));
    NIB_TRY(set_number(w, "rope.scaling.yarn_beta_slow", r->beta_slow, err));
    double implied = usual;
    if ((w->m->arch->flags & A_YARN_SCORES) && r->score_factor != 1) {
        const double log_mul = (r->score_factor - 1) / log(r->factor); /* 0.1 * mscale_all_dim */
        NIB_TRY(set_number(w, "rope.scaling.yarn_log_multiplier", log_mul, err));
        implied = 1;
    }
    if (fabs(r->attn_factor / implied - 1) < 1e-7)
        return NIB_OK;
    return set_number(w, "rope.scaling.attn_factor", r->attn_factor / implied, err);
}

static nib_status set_ropes(const writing *w, nib_error *err) {
    const config *c = &w->m->cfg;
    const rope_params *r = &c->ropes[0];
    if (c->n_rope == 0)
        return NIB_OK;
    if (c->n_rope > 1 && c->ropes[1].kind != ROPE_PLAIN)
        return nib_fail(err, NIB_E_MODEL, "rope scaling: a GGUF file cannot express it for sliding layers");
    switch (r->kind) {
    case ROPE_PLAIN:
    case ROPE_PART:
    case ROPE_LLAMA3: return NIB_OK; /* their factors are a tensor */
    case ROPE_LINEAR:
        NIB_TRY(set_type(w, "linear", err));
        return set_number(w, "rope.scaling.factor", r->factor, err);
    case ROPE_YARN: return set_yarn(w, r, err);
    case ROPE_LONG:
        NIB_TRY(set_type(w, "longrope", err));
        NIB_TRY(set_count(w, "rope.scaling.original_context_length", (int64_t)r->orig_ctx, err));
        return set_number(w, "rope.scaling.attn_factor", r->attn_factor, err);
    case ROPE_DYNAMIC: break;
    }
    return nib_fail(err, NIB_E_MODEL, "rope scaling: a GGUF file cannot express \"dynamic\"");
}

/* The head that predicts later tokens is one more layer of lists, as llama.cpp's converter writes it; NULL:
 * there is none. */
static const config *head_of(const model *m) {
    return m->next != NULL ? &m->next->cfg : NULL;
}

/* Writes one bool for each layer if the family's own pattern differs. */
static nib_status set_slides(const writing *w, nib_error *err) {
    const config *c = &w->m->cfg;
    char key[128], kind;
    int64_t slides[1024];
    const int64_t every = config_gguf_pattern(w->m->arch);
    const char *name;
    double value;
    bool differs = false;
    const config *head = head_of(w->m);
    const size_t n = (size_t)c->hp.n_layer + (head != NULL);
    if (c->hp.window == 0 || n > NUM_COUNT(slides) ||
        config_gguf_key(w->m->arch, HP_window_pattern, &c->hp, &name, &kind, &value))
        return NIB_OK;
    for (int64_t i = 0; i < c->hp.n_layer; i++) {
        slides[i] = (c->layer[i] & LAYER_SLIDES) != 0;
        differs |= slides[i] != (every == 0 || (i + 1) % every != 0);
    }
    if (head != NULL)
        slides[c->hp.n_layer] = (head->layer[0] & LAYER_SLIDES) != 0;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", w->prefix);
    return differs ? gguf_writer_set_ints(w->w, key, GGUF_BOOL, slides, n, err) : NIB_OK;
}

/* Writes a number for each layer if they differ. */
static nib_status set_shapes(const writing *w, const char *name, size_t field, nib_error *err) {
    const config *c = &w->m->cfg;
    int64_t each[1024];
    char key[128];
    const config *head = head_of(w->m);
    const size_t n = (size_t)c->hp.n_layer + (head != NULL);
    bool differs = false;
    if (n > NUM_COUNT(each))
        return NIB_OK;
    for (int64_t i = 0; i < c->hp.n_layer; i++) {
        memcpy(&each[i], (const char *)&c->shape[i] + field, sizeof each[i]);
        differs |= each[i] != each[0];
    }
    if (head != NULL)
        memcpy(&each[c->hp.n_layer], (const char *)head->shape + field, sizeof *each);
    snprintf(key, sizeof key, "%s.%s", w->prefix, name);
    return differs ? gguf_writer_set_ints(w->w, key, GGUF_U32, each, n, err) : NIB_OK;
}

/* Whether set_shapes writes the field. */
static bool has_shapes(const config *c, hp_id field) {
    bool differs = false;
    for (int64_t i = 1; i < c->hp.n_layer; i++)
        differs |= (field == HP_d_ff && c->shape[i].d_ff != c->shape[0].d_ff) ||
                   (field == HP_n_head && c->shape[i].n_head != c->shape[0].n_head) ||
                   (field == HP_n_kv_head && c->shape[i].n_kv_head != c->shape[0].n_kv_head);
    return differs;
}

static nib_status set_xielu(const writing *w, nib_error *err) {
    const config *c = &w->m->cfg;
    char key[64];
    double each[1024];
    if (c->xielu == NULL)
        return NIB_OK;
    if (c->hp.n_layer > (int64_t)NUM_COUNT(each))
        return nib_fail(err, NIB_E_MODEL, "xIELU: expected at most %zu layers", NUM_COUNT(each));
    for (int p = 0; p < XIELU_N; p++) {
        for (int64_t i = 0; i < c->hp.n_layer; i++)
            each[i] = (double)c->xielu[i][p];
        snprintf(key, sizeof key, "xielu.%s", xielu_names[p]);
        NIB_TRY(gguf_writer_set_floats(w->w, key, GGUF_F32, each, (size_t)c->hp.n_layer, err));
    }
    return NIB_OK;
}

/* Writes from how many standard deviations on the gates of each layer's neurons count. */
static nib_status set_sparsity(const writing *w, nib_error *err) {
    const config *c = &w->m->cfg;
    double each[1024];
    char key[128];
    bool any = false;
    for (int64_t i = 0; i < c->hp.n_layer && i < (int64_t)NUM_COUNT(each); i++) {
        each[i] = (double)c->shape[i].sparsity;
        any |= isfinite(each[i]);
    }
    if (!any || c->hp.n_layer > (int64_t)NUM_COUNT(each)) /* gguf_check_config finds what is not written */
        return NIB_OK;
    snprintf(key, sizeof key, "%s.activation_sparsity_scale", w->prefix);
    return gguf_writer_set_floats(w->w, key, GGUF_F32, each, (size_t)c->hp.n_layer, err);
}

/* Writes which layers are recurrent. */
static nib_status set_mixers(const writing *w, nib_error *err) {
    enum { MAX_LAYER = 1024 };
    const config *c = &w->m->cfg;
    const mixer_layers how = w->m->arch->mixer_layers;
    const bool every = how == MIXER_EVERY, single = how == MIXER_SINGLE;
    int64_t neurons[MAX_LAYER], heads[MAX_LAYER], recurrent[MAX_LAYER], n = c->hp.n_layer, period = 0;
    bool periodic = true;
    char key[128];
    if (w->m->arch->mixer == MIXER_NONE || (!every && !single && how != MIXER_LISTED))
        return NIB_OK;
    if (n > MAX_LAYER)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d layers, found %lld", MAX_LAYER, (long long)n);
    for (int64_t i = n - 1; i >= 0; i--) {
        recurrent[i] = (c->layer[i] & LAYER_RECURRENT) != 0;
        heads[i] = c->layer[i] & LAYER_NO_ATTENTION ? 0 : c->hp.n_kv_head;
        neurons[i] = c->layer[i] & LAYER_NO_FFN ? 0 : c->hp.d_ff;
        period = recurrent[i] ? period : i + 1;
    }
    for (int64_t i = 0; i < n; i++)
        periodic = periodic && recurrent[i] == (period == 0 || (i + 1) % period != 0);
    if (every && periodic && period > 0)
        return set_count(w, "full_attention_interval", period, err);
    snprintf(key, sizeof key, "%s.feed_forward_length", w->prefix);
    if (single)
        NIB_TRY(gguf_writer_set_ints(w->w, key, GGUF_U32, neurons, (size_t)n, err));
    snprintf(key, sizeof key, "%s.attention.%s", w->prefix, every ? "recurrent_layers" : "head_count_kv");
    return gguf_writer_set_ints(w->w, key, every ? GGUF_BOOL : GGUF_U32, every ? recurrent : heads, (size_t)n,
                                err);
}

nib_status gguf_write_config(const model *m, gguf_writer *w, nib_error *err) {
    writing now = {.m = m, .w = w};
    char first[64];
    const char *arch = arch_name(m, first, sizeof first), *name = model_name(m);
    snprintf(now.prefix, sizeof now.prefix, "%s", arch);
    if (m->cfg.rope != m->arch->rope_hf && m->gguf_arch == NULL)
        return nib_fail(err, NIB_E_MODEL, "a GGUF file of %s cannot express rotary pairs that are halves",
                        arch);
    if (m->cfg.act != m->arch->act)
        return nib_fail(err, NIB_E_MODEL,
                        "a GGUF file of %s cannot express another activation function than the family's",
                        arch);
    NIB_TRY(gguf_writer_set_string(w, "general.architecture", arch, strlen(arch), err));
    NIB_TRY(gguf_writer_set_string(w, "general.name", name, strlen(name), err));
    const bool mixes = m->arch->mixer != MIXER_NONE, single = m->arch->mixer_layers == MIXER_SINGLE;
    const bool listed = mixes && (single || m->arch->mixer_layers == MIXER_LISTED);
    for (int i = 0; i < HP_COUNT; i++)
        if (!has_shapes(&m->cfg, (hp_id)i) && !(listed && i == HP_n_kv_head) &&
            !(mixes && single && i == HP_d_ff)) /* set_mixers */
            NIB_TRY(set_field(&now, (hp_id)i, err));
    if (!listed)
        NIB_TRY(set_shapes(&now, "attention.head_count_kv", offsetof(layer_shape, n_kv_head), err));
    NIB_TRY(set_shapes(&now, "feed_forward_length", offsetof(layer_shape, d_ff), err));
    NIB_TRY(set_shapes(&now, "attention.head_count", offsetof(layer_shape, n_head), err));
    NIB_TRY(set_sparsity(&now, err));
    NIB_TRY(set_slides(&now, err));
    NIB_TRY(set_xielu(&now, err));
    NIB_TRY(set_mixers(&now, err));
    if (m->arch->flags & A_NOPE_NAMED)
        NIB_TRY(set_flag(&now, "rope.scaling.finetuned", m->cfg.hp.n_rot > 0, err));
    return set_ropes(&now, err);
}

/* ---- what was written ---- */

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b));
}

/* Fields without a GGUF key that follow from other fields. */
static bool is_derived(hp_id field) {
    return field == HP_rope_part || field == HP_window_pattern || field == HP_window_from ||
           field == HP_n_kv_head_full || field == HP_wide_shared || field == HP_n_kv_head ||
           field == HP_d_ff || field == HP_rope_part_local || field == HP_nope_every ||
           field == HP_tied_head || field == HP_n_ctx_max;
}

static nib_status check_numbers(const arch_desc *arch, const hparams *a, const hparams *b, nib_error *err) {
#define HP_I(field, meaning)                                                                                 \
    if (!is_derived(HP_##field) && a->field != b->field)                                                     \
        return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express %s %lld", #field, (long long)a->field);
#define HP_F(field, meaning)                                                                                 \
    if (!is_derived(HP_##field) && !is_baked(arch, HP_##field) && !near(a->field, b->field))                 \
        return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express %s %s", #field, num_text(a->field, 6));
#define HP_B(field, meaning)                                                                                 \
    if (!is_derived(HP_##field) && a->field != b->field)                                                     \
        return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express %s: %s", #field,                       \
                        a->field ? "true" : "false");
#include "model/hparams.def"
#undef HP_I
#undef HP_F
#undef HP_B
    return NIB_OK;
}

static nib_status check_ropes(const model *m, const model *written, nib_error *err) {
    enum { MAX_PAIRS = 8192 };
    const config *a = &m->cfg, *b = &written->cfg;
    if (a->n_rope != b->n_rope)
        return nib_fail(err, NIB_E_MODEL,
                        "a GGUF file cannot express the rotary frequencies of sliding layers");
    for (int t = 0; t < a->n_rope; t++)
        for (int longer = 0; longer < 2; longer++) {
            const int64_t length = longer ? a->hp.n_ctx_train : 1;
            float x[MAX_PAIRS], y[MAX_PAIRS], f, g;
            model_rope_freqs(m, t, length, x, &f);
            model_rope_freqs(written, t, length, y, &g);
            bool same = near((double)f, (double)g);
            for (int64_t i = 0; i < a->ropes[t].n_rot / 2; i++)
                same = same && (near((double)x[i], (double)y[i]) || fabsf(x[i] - y[i]) < 1e-20f);
            if (!same)
                return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express the rotary frequencies");
        }
    return NIB_OK;
}

static bool is_same_shape(const layer_shape *a, const layer_shape *b) {
    return a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->d_head == b->d_head &&
           a->d_ff == b->d_ff && a->kv_layer == b->kv_layer && near((double)a->scale, (double)b->scale) &&
           (a->sparsity == b->sparsity || near((double)a->sparsity, (double)b->sparsity));
}

/* The same ops in every block: norms without weights are in no file. */
static nib_status check_ops(const model *m, const model *written, nib_error *err) {
    for (int b = 0; b < model_n_block(m); b++) {
        const program *x = &model_block(m, b)->program, *y = &model_block(written, b)->program;
        for (int i = 0; i < NUM_MAX(x->n_op, y->n_op); i++) {
            const bool both = i < x->n_op && i < y->n_op;
            if (!both || x->ops[i].kind != y->ops[i].kind)
                return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express the op %s of %s",
                                op_name(i < x->n_op ? x->ops[i].kind : y->ops[i].kind),
                                model_block(m, b)->name);
        }
    }
    return NIB_OK;
}

nib_status gguf_check_config(const model *m, const model *written, nib_error *err) {
    const config *a = &m->cfg, *b = &written->cfg;
    NIB_TRY(check_numbers(m->arch, &a->hp, &b->hp, err));
    NIB_TRY(check_ropes(m, written, err));
    for (int64_t i = 0; i < a->hp.n_layer; i++)
        if (!is_same_shape(&a->shape[i], &b->shape[i]))
            return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express the shape of layer %lld",
                            (long long)i);
    for (int64_t i = 0; i < a->hp.n_layer; i++)
        if (a->layer[i] != b->layer[i])
            return nib_fail(err, NIB_E_MODEL,
                            "a GGUF file cannot express which layers slide or have no rotary embedding");
    if (a->act != b->act ||
        (a->xielu && memcmp(a->xielu, b->xielu, (size_t)a->hp.n_layer * sizeof *a->xielu) != 0))
        return nib_fail(err, NIB_E_MODEL, "a GGUF file cannot express the activation function");
    return m->arch->flags & A_BAKED_GGUF ? NIB_OK : check_ops(m, written, err);
}
