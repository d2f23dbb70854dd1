/* config_rope.c - reads the rotary frequencies of a configuration: config.json's three styles (rope_theta
 * with rope_scaling, rope_parameters, rope_parameters for each kind of layer) and GGUF's keys and tensors. */
#include "model/config.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The places in config.json that may hold one table's options, in the order of precedence. */
typedef struct places {
    const char *prefix[4];
    int n;
} places;

static nib_status option(const config_source *s, const places *p, const char *name, double *value,
                         bool *found, nib_error *err) {
    int there = 0;
    char key[128];
    for (int i = 0; i < p->n && there != 1; i++) {
        snprintf(key, sizeof key, "%s%s", p->prefix[i], name);
        NIB_TRY(config_number(s, key, value, &there, err));
    }
    *found = there == 1;
    return NIB_OK;
}

static const char *option_text(const config_source *s, const places *p, const char *name) {
    char key[128];
    for (int i = 0; i < p->n; i++) {
        snprintf(key, sizeof key, "%s%s", p->prefix[i], name);
        const char *text = config_string(s, key);
        if (text != NULL)
            return text;
    }
    return NULL;
}

/* short_factor and long_factor: [n_rot / 2] positive numbers. */
static nib_status divisors(const config_source *s, const places *p, const char *name, int64_t n_rot,
                           const float **out, nib_error *err) {
    const meta_value *v = NULL;
    char key[128];
    for (int i = 0; i < p->n && v == NULL; i++) {
        snprintf(key, sizeof key, "%s%s", p->prefix[i], name);
        v = container_meta(s->c, key);
    }
    size_t n = (size_t)(n_rot / 2);
    bool numbers = v != NULL && v->type == META_ARRAY && (v->elem == META_FLOAT || v->elem == META_INT);
    if (!numbers || v->n != n)
        return nib_fail(err, NIB_E_MODEL, "rope %s: expected %zu numbers (n_rot / 2), found %zu", name, n,
                        numbers ? v->n : (size_t)0);
    float *d = arena_array(s->mem, n, sizeof *d);
    if (d == NULL)
        return nib_fail_nomem(err, n * sizeof *d, "rope factors");
    for (size_t i = 0; i < n; i++) {
        d[i] = (float)(v->elem == META_FLOAT ? v->v.floats[i] : (double)v->v.ints[i]);
        if (!(d[i] > 0) || !isfinite(d[i]))
            return nib_fail(err, NIB_E_MODEL, "rope %s: expected numbers above 0, found %s", name,
                            num_text(d[i], 6));
    }
    *out = d;
    return NIB_OK;
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static nib_status hf_kind(const config_source *s, const places *p, rope_kind *kind, nib_error *err) {
    static const struct {
        const char *name;
        rope_kind kind;
    } kinds[] = {
        {"default", ROPE_PLAIN}, {"linear", ROPE_LINEAR},     {"dynamic", ROPE_DYNAMIC},
        {"yarn", ROPE_YARN},     {"llama3", ROPE_LLAMA3},     {"longrope", ROPE_LONG},
        {"su", ROPE_LONG},       {"proportional", ROPE_PART},
    };
    *kind = ROPE_PLAIN;
    const char *name = option_text(s, p, "rope_type");
    if (name == NULL)
        name = option_text(s, p, "type");
    if (name == NULL)
        return NIB_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *kind = kinds[i].kind;
            return NIB_OK;
        }
    return nib_fail(err, NIB_E_MODEL,
                    "rope_type: expected default, linear, dynamic, yarn, llama3 or longrope, found \"%.60s\"",
                    name);
}

static nib_status hf_yarn(const config_source *s, const places *p, rope_params *r, nib_error *err) {
    double mscale = 0, mscale_all = 0, truncate = (s->arch->flags & A_YARN_EXACT) == 0;
    bool found;
    NIB_TRY(option(s, p, "beta_fast", &r->beta_fast, &found, err));
    NIB_TRY(option(s, p, "beta_slow", &r->beta_slow, &found, err));
    NIB_TRY(option(s, p, "truncate", &truncate, &found, err));
    NIB_TRY(option(s, p, "mscale", &mscale, &found, err));
    NIB_TRY(option(s, p, "mscale_all_dim", &mscale_all, &found, err));
    r->truncate = truncate != 0;
    if (r->attn_factor == 0)
        r->attn_factor = mscale != 0 && mscale_all != 0
                             ? yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, mscale_all)
                             : yarn_mscale(r->factor, 1);
    return NIB_OK;
}

static nib_status hf_rope(const config_source *s, const places *p, const hparams *hp, rope_params *r,
                          nib_error *err) {
    bool found;
    NIB_TRY(hf_kind(s, p, &r->kind, err));
    /* Phi-3's first checkpoints say "yarn" for what became "longrope"; their factor lists show it. */
    if (r->kind == ROPE_YARN) {
        char key[128];
        for (int i = 0; i < p->n; i++) {
            snprintf(key, sizeof key, "%sshort_factor", p->prefix[i]);
            if (container_meta(s->c, key) != NULL)
                r->kind = ROPE_LONG;
        }
    }
    double alpha = 0;
    if ((s->arch->flags & A_ROPE_ALPHA) && r->kind == ROPE_DYNAMIC) /* the base has it (enlarge_base) */
        NIB_TRY(option(s, p, "alpha", &alpha, &found, err));
    if (alpha > 0)
        r->kind = ROPE_PLAIN;
    if (r->kind == ROPE_PLAIN)
        return NIB_OK;
    r->orig_ctx = (double)hp->n_ctx_train;
    static const places top = {{""}, 1};
    NIB_TRY(option(s, &top, "original_max_position_embeddings", &r->orig_ctx, &found, err));
    if (!found)
        NIB_TRY(option(s, p, "original_max_position_embeddings", &r->orig_ctx, &found, err));
    NIB_TRY(option(s, p, "factor", &r->factor, &found, err));
    if (r->kind == ROPE_PART) {
        r->part = 1;
        NIB_TRY(option(s, p, "partial_rotary_factor", &r->part, &found, err));
        return NIB_OK;
    }
    if (!found && (r->kind == ROPE_YARN || r->kind == ROPE_LONG))
        r->factor = (double)hp->n_ctx_train / r->orig_ctx;
    else if (!found)
        return nib_fail(err, NIB_E_MODEL, "rope scaling: expected a \"factor\", found none");
    double all_dim = 0;
    NIB_TRY(option(s, p, "mscale_all_dim", &all_dim, &found, err));
    if (all_dim != 0)
        r->score_factor = yarn_mscale(r->factor, all_dim);
    r->attn_factor = 0;
    if (r->kind == ROPE_YARN || r->kind == ROPE_LONG)
        NIB_TRY(option(s, p, "attention_factor", &r->attn_factor, &found, err));
    if (r->attn_factor == 0 && (s->arch->flags & A_YARN_BARE))
        r->attn_factor = 1;
    if (r->kind == ROPE_YARN)
        NIB_TRY(hf_yarn(s, p, r, err));
    if (r->kind == ROPE_LONG) {
        NIB_TRY(divisors(s, p, "short_factor", r->n_rot, &r->divide, err));
        NIB_TRY(divisors(s, p, "long_factor", r->n_rot, &r->divide_long, err));
        if (r->attn_factor == 0)
            r->attn_factor = r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->orig_ctx));
    }
    if (r->kind == ROPE_LLAMA3) {
        NIB_TRY(option(s, p, "low_freq_factor", &r->low_freq, &found, err));
        NIB_TRY(option(s, p, "high_freq_factor", &r->high_freq, &found, err));
    }
    if (r->attn_factor == 0)
        r->attn_factor = 1;
    return NIB_OK;
}

/* Reads a table of divisors from a tensor, f32 [n_rot / 2]. */
static nib_status tensor_divisors(const config_source *s, const char *name, int64_t n_rot, const float **out,
                                  nib_error *err) {
    const container_tensor *t = container_find(s->c, name);
    *out = NULL;
    if (t == NULL)
        return NIB_OK;
    if (t->type != TYPE_F32 || t->n_dim != 1 || t->shape[0] != n_rot / 2)
        return nib_fail(err, NIB_E_MODEL, "%s: expected f32 [%lld], found %s [%lld]", name,
                        (long long)(n_rot / 2), type_get(t->type)->name,
                        t->n_dim == 1 ? (long long)t->shape[0] : -1LL);
    float *d = arena_alloc(s->mem, (size_t)t->bytes);
    if (d == NULL)
        return nib_fail_nomem(err, (size_t)t->bytes, name);
    NIB_TRY(file_read_at(container_file(s->c, t->file), d, t->offset, t->bytes, err));
    for (int64_t i = 0; i < n_rot / 2; i++)
        if (!(d[i] > 0) || !isfinite(d[i]))
            return nib_fail(err, NIB_E_MODEL, "%s: expected numbers above 0, found %s", name,
                            num_text(d[i], 6));
    *out = d;
    return NIB_OK;
}

static nib_status gguf_rope(const config_source *s, const hparams *hp, rope_params *r, nib_error *err) {
    int found;
    const char *type = config_string(s, "rope.scaling.type");
    double factor = 0;
    NIB_TRY(config_number(s, "rope.scaling.factor|rope.scale_linear", &factor, &found, err));
    bool scaled = found == 1 && factor > 0;
    r->factor = scaled ? factor : 1;
    r->orig_ctx = (double)hp->n_ctx_train;
    NIB_TRY(config_number(s, "rope.scaling.original_context_length", &r->orig_ctx, &found, err));
    NIB_TRY(config_number(s, "rope.scaling.attn_factor", &r->attn_factor, &found, err));
    NIB_TRY(config_number(s, "rope.scaling.yarn_beta_fast", &r->beta_fast, &found, err));
    NIB_TRY(config_number(s, "rope.scaling.yarn_beta_slow", &r->beta_slow, &found, err));
    if (type == NULL ? scaled : strcmp(type, "linear") == 0) {
        r->kind = ROPE_LINEAR;
    } else if (type != NULL && strcmp(type, "yarn") == 0) {
        r->kind = ROPE_YARN;
        double log_mul = 0; /* mscale_all_dim; mscale is 1 */
        NIB_TRY(config_number(s, "rope.scaling.yarn_log_multiplier", &log_mul, &found, err));
        if (s->arch->flags & A_YARN_SCORES) /* the converter of these families multiplies it by 0.1 */
            log_mul *= 10;
        /* mscale is 1, or, in files of these families, equal to mscale_all_dim if that is not 1 */
        const double mscale = (s->arch->flags & A_YARN_SCORES) && log_mul != 0 ? log_mul : 1;
        if (log_mul != 0)
            r->score_factor = yarn_mscale(r->factor, log_mul);
        r->attn_factor *= yarn_mscale(r->factor, mscale) / r->score_factor;
    } else if (type != NULL && strcmp(type, "none") != 0 && strcmp(type, "longrope") != 0) {
        return nib_fail(err, NIB_E_MODEL,
                        "rope.scaling.type: expected none, linear, yarn or longrope, found \"%.60s\"", type);
    }
    NIB_TRY(tensor_divisors(s, "rope_freqs.weight", r->n_rot, &r->divide, err));
    const float *longer, *shorter;
    NIB_TRY(tensor_divisors(s, "rope_factors_long.weight", hp->n_rot, &longer, err));
    NIB_TRY(tensor_divisors(s, "rope_factors_short.weight", hp->n_rot, &shorter, err));
    if (longer != NULL && shorter != NULL) {
        r->kind = ROPE_LONG;
        r->divide = shorter;
        r->divide_long = longer;
    } else if (type != NULL && strcmp(type, "longrope") == 0) {
        return nib_fail(err, NIB_E_MODEL,
                        "rope.scaling.type longrope: expected tensors rope_factors_long.weight and "
                        "rope_factors_short.weight");
    }
    return NIB_OK;
}

static nib_status check_rope(const rope_params *r, nib_error *err) {
    const struct {
        const char *name;
        double value, min, max;
    } all[] = {
        {"factor", r->factor, 1e-6, 1e6},
        {"partial_rotary_factor", r->part, 0, 1},
        {"attention_factor", r->attn_factor, 1e-6, 1e6},
        {"original context", r->orig_ctx, 2, 1e12},
        {"low_freq_factor", r->low_freq, 1e-6, 1e6},
        {"high_freq_factor", r->high_freq, 1e-6, 1e6},
        {"beta_fast", r->beta_fast, 1e-6, 1e6},
        {"beta_slow", r->beta_slow, 1e-6, 1e6},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!(all[i].value >= all[i].min && all[i].value <= all[i].max))
            return nib_fail(err, NIB_E_MODEL, "rope scaling: %s: expected %s to %s, found %s", all[i].name,
                            num_text(all[i].min, 6), num_text(all[i].max, 6), num_text(all[i].value, 6));
    if (r->kind == ROPE_LLAMA3 && r->high_freq <= r->low_freq)
        return nib_fail(
            err, NIB_E_MODEL,
            "rope scaling: expected a high_freq_factor above the low_freq_factor, found %s and %s",
            num_text(r->high_freq, 6), num_text(r->low_freq, 6));
    if (r->kind == ROPE_YARN && r->theta <= 1)
        return nib_fail(err, NIB_E_MODEL, "rope scaling: rope_theta: expected more than 1, found %s",
                        num_text(r->theta, 6));
    return NIB_OK;
}

/* "alpha" (NTK-aware scaling, fixed): a larger base, without other scaling. */
static nib_status enlarge_base(const config_source *s, const places *p, hparams *hp, nib_error *err) {
    double alpha = 0;
    bool found;
    rope_kind kind;
    if (!(s->arch->flags & A_ROPE_ALPHA) || s->gguf_arch != NULL)
        return NIB_OK;
    NIB_TRY(hf_kind(s, p, &kind, err));
    NIB_TRY(option(s, p, "alpha", &alpha, &found, err));
    if (kind == ROPE_DYNAMIC && alpha > 0 && hp->d_head > 2)
        hp->rope_theta *= pow(alpha, (double)hp->d_head / (double)(hp->d_head - 2));
    return NIB_OK;
}

/* Without options the rotary embedding would be plain, where the family's own default is not. */
static nib_status check_given(const config_source *s, const places *p, nib_error *err) {
    double theta;
    bool found = option_text(s, p, "rope_type") || option_text(s, p, "type");
    if (!found)
        NIB_TRY(option(s, p, "rope_theta", &theta, &found, err));
    if (found || s->gguf_arch || !(s->arch->flags & A_ROPE_GIVEN))
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL,
                    "config.json: expected rope_parameters, since %s scales its rotary embedding, found none "
                    "({\"rope_type\": \"default\"} is the plain one)",
                    s->arch->hf);
}

nib_status config_read_ropes(const config_source *s, config *out, nib_error *err) {
    hparams *hp = &out->hp;
    static const places full = {
        {"rope_parameters.full_attention.", "rope_parameters.compress.", "rope_parameters.", "rope_scaling."},
        4};
    static const places local = {{"rope_parameters.sliding_attention.", "rope_parameters.main."}, 2};
    NIB_TRY(check_given(s, &full, err));
    NIB_TRY(enlarge_base(s, &full, hp, err));
    const rope_params plain = {.n_rot = hp->n_rot,
                               .theta = hp->rope_theta,
                               .factor = 1,
                               .attn_factor = 1,
                               .score_factor = 1,
                               .orig_ctx = fmax((double)hp->n_ctx_train, 2),
                               .low_freq = 1,
                               .high_freq = 4,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .truncate = (s->arch->flags & A_YARN_EXACT) == 0};
    out->n_rope = 0;
    out->ropes[0] = out->ropes[1] = plain;
    if (hp->n_rot == 0)
        return NIB_OK;
    out->n_rope = 1;
    if (hp->d_head_full > 0)
        out->ropes[0].n_rot = hp->d_head_full;
    if (s->gguf_arch != NULL)
        NIB_TRY(gguf_rope(s, hp, &out->ropes[0], err));
    else
        NIB_TRY(hf_rope(s, &full, hp, &out->ropes[0], err));
    NIB_TRY(check_rope(&out->ropes[0], err));
    if (hp->rope_theta_local == 0)
        return NIB_OK;
    out->ropes[1].theta = hp->rope_theta_local;
    if (hp->n_rot_local > 0)
        out->ropes[1].n_rot = hp->n_rot_local;
    out->n_rope = 2;
    if (s->gguf_arch == NULL)
        NIB_TRY(hf_rope(s, &local, hp, &out->ropes[1], err));
    if (hp->pool_all > 0) { /* an entry is rotated by the first of its positions */
        out->n_rope = 4;
        out->ropes[2] = out->ropes[3] = out->ropes[0];
        out->ropes[2].behind = hp->pool_chosen - 1;
        out->ropes[3].behind = hp->pool_all - 1;
    }
    return check_rope(&out->ropes[1], err);
}
