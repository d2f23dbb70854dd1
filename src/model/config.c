/* config.c - reads the hyper-parameters of a model from GGUF metadata or config.json.
 * One table has the usual key of each field of hparams in both formats; a family's rows (arch.h) replace
 * those that differ. Then missing values are derived and all values are checked, because shapes, loops and
 * allocations follow from them. */
#include "model/config.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct field_info {
    size_t offset;
    char kind; /* i, f, b */
    const char *name;
} field_info;

static const field_info fields[HP_COUNT] = {
#define HP_I(field, meaning) {offsetof(hparams, field), 'i', #field},
#define HP_F(field, meaning) {offsetof(hparams, field), 'f', #field},
#define HP_B(field, meaning) {offsetof(hparams, field), 'b', #field},
#include "model/hparams.def"
#undef HP_I
#undef HP_F
#undef HP_B
};

/* The key of a field in most families. value: its default (0: derived below, or none). */
static const struct {
    hp_id field;
    const char *hf, *gguf;
    double value;
} usual[] = {
    {HP_n_layer, "num_hidden_layers|n_layer|n_layers|num_layers", "block_count", 0},
    {HP_d_model, "hidden_size|n_embd|d_model", "embedding_length", 0},
    {HP_n_head, "num_attention_heads|n_head|n_heads", "attention.head_count", 0},
    {HP_n_kv_head, "num_key_value_heads|num_kv_heads|n_head_kv", "attention.head_count_kv", 0},
    {HP_d_head, "head_dim", "attention.key_length", 0},
    {HP_d_ff, "intermediate_size|ffn_dim|n_inner|ffn_hidden_size", "feed_forward_length", 0},
    {HP_n_vocab, "vocab_size", "vocab_size", 0},
    {HP_n_ctx_train, "max_position_embeddings|n_positions|max_seq_len|seq_length", "context_length", 2048},
    {HP_n_rot, "rotary_dim", "rope.dimension_count", 0},
    {HP_window, "", "attention.sliding_window", 0},
    {HP_rec_tap, "", "ssm.conv_kernel", 0},
    {HP_rec_inner, "", "ssm.inner_size", 0},
    {HP_rec_head, "", "ssm.time_step_rank", 0},
    {HP_rec_group, "", "ssm.group_count", 0},
    {HP_rec_state, "", "ssm.state_size", 0},
    {HP_norm_eps, "rms_norm_eps|layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps",
     "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon", 1e-5},
    {HP_rope_part,
     "rope_parameters.partial_rotary_factor|rope_parameters.full_attention.partial_rotary_factor|"
     "rope_scaling.partial_rotary_factor|partial_rotary_factor|rotary_pct|rope_pct",
     "", 1},
    {HP_rope_theta,
     "rope_parameters.rope_theta|rope_parameters.full_attention.rope_theta|rope_scaling.rope_theta|rope_"
     "theta|"
     "rotary_emb_base",
     "rope.freq_base", 10000},
    {HP_rope_theta_local, "rope_parameters.sliding_attention.rope_theta", "rope.freq_base_swa", 0},
    {HP_rope_part_local, "rope_parameters.sliding_attention.partial_rotary_factor", "", 0},
    {HP_n_rot_local, "", "rope.dimension_count_swa", 0},
    {HP_attn_scale, "", "attention.scale", 0},
    {HP_rec_in_scale, "", "", 1},
    {HP_rec_z_scale, "", "", 1},
    {HP_rec_x_scale, "", "", 1},
    {HP_rec_b_scale, "", "", 1},
    {HP_rec_c_scale, "", "", 1},
    {HP_rec_dt_scale, "", "", 1},
    {HP_rec_dt_min, "time_step_limit[0]", "", 0},
    {HP_rec_dt_max, "time_step_limit[1]", "", 1e30},
    {HP_rec_out_scale, "", "", 1},
    {HP_attn_in_scale, "", "", 1},
    {HP_attn_out_scale, "", "", 1},
    {HP_key_scale, "", "", 1},
    {HP_gate_scale, "", "", 1},
    {HP_down_scale, "", "", 1},
    {HP_attn_softcap, "attn_logit_softcapping", "attn_logit_softcapping", 0},
    {HP_logit_softcap, "final_logit_softcapping", "final_logit_softcapping", 0},
    {HP_embed_scale, "", "embedding_scale", 1},
    {HP_residual_scale, "", "residual_scale", 1},
    {HP_logit_scale, "", "logit_scale", 1},
    {HP_qkv_clip, "clip_qkv", "attention.clamp_kqv", 0},
    {HP_alibi_max_bias, "", "attention.max_alibi_bias", 0},
    {HP_n_expert, "num_local_experts|num_experts|n_routed_experts|moe_num_experts", "expert_count", 0},
    {HP_n_expert_used, "num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|moe_k",
     "expert_used_count", 0},
    {HP_d_expert, "moe_intermediate_size", "expert_feed_forward_length", 0},
    {HP_n_shared, "n_shared_experts|num_shared_experts|moe_num_shared_experts", "expert_shared_count", 0},
    {HP_d_shared, "shared_expert_intermediate_size|shared_intermediate_size",
     "expert_shared_feed_forward_length", 0},
    {HP_n_expert_group, "n_group", "expert_group_count", 0},
    {HP_n_group_used, "topk_group", "expert_group_used_count", 0},
    {HP_expert_score, "", "expert_gating_func", SCORE_SOFTMAX},
    {HP_n_dense, "first_k_dense_replace", "leading_dense_block_count", 0},
    {HP_n_nextn, "", "nextn_predict_layers", 0},
    {HP_expert_scale, "routed_scaling_factor|router_scaling_factor|moe_routed_scaling_factor",
     "expert_weights_scale", 1},
    {HP_ffn_scale, "", "", 1},
    {HP_expert_norm, "norm_topk_prob", "expert_weights_norm", 0},
    {HP_parallel, "", "use_parallel_residual", 0},
    {HP_tied_head, "tie_word_embeddings", "", 0},
};

bool list_next(const char **list, char *name, size_t size) {
    const char *p = *list;
    if (p == NULL || *p == '\0')
        return false;
    size_t n = strcspn(p, "|");
    size_t m = n < size ? n : size - 1;
    memcpy(name, p, m);
    name[m] = '\0';
    *list = p[n] == '|' ? p + n + 1 : p + n;
    return true;
}

static void key_name(const config_source *s, const char *name, char *out, size_t size) {
    if (s->gguf_arch != NULL)
        snprintf(out, size, "%.100s.%s", s->gguf_arch, name);
    else
        snprintf(out, size, "%s", name);
}

/* Element i of a list of numbers; false: there is none. */
static bool element_number(const meta_value *v, size_t i, double *out) {
    if (v->type != META_ARRAY || i >= v->n || (v->elem != META_INT && v->elem != META_FLOAT))
        return false;
    *out = v->elem == META_INT ? (double)v->v.ints[i] : v->v.floats[i];
    return true;
}

/* A metadata value as a number; false: it is not a number. */
static bool value_number(const meta_value *v, bool widest, double *out) {
    switch (v->type) {
    case META_BOOL: *out = v->v.b ? 1 : 0; return true;
    case META_INT: *out = (double)v->v.i; return true;
    case META_FLOAT: *out = v->v.f; return true;
    case META_ARRAY:
        if (widest && v->elem == META_INT) { /* each layer has its own (config_shapes.c) */
            *out = 0;
            for (size_t i = 0; i < v->n; i++)
                *out = fmax(*out, (double)v->v.ints[i]);
            return true;
        }
        if (v->n == 0 || (v->elem != META_INT && v->elem != META_FLOAT))
            return false;
        *out = 0;
        for (size_t i = 0; i < v->n; i++) { /* a layer with 0 has no such part */
            double x = v->elem == META_INT ? (double)v->v.ints[i] : v->v.floats[i];
            if (x != 0 && *out != 0 && x != *out)
                return false;
            *out = x != 0 ? x : *out;
        }
        return true;
    default: return false;
    }
}

nib_status config_number(const config_source *s, const char *names, double *out, int *found, nib_error *err) {
    char name[96], key[256];
    *found = 0;
    while (list_next(&names, name, sizeof name)) {
        char *index = strchr(name, '[');
        if (index != NULL)
            *index++ = '\0';
        key_name(s, name, key, sizeof key);
        const meta_value *v = container_meta(s->c, key);
        if (v == NULL) {
            if (container_meta_is_null(s->c, key))
                *found = -1;
            continue;
        }
        /* keys that may have a number for each layer: the largest counts */
        const bool widest =
            strcmp(name, "attention.head_count_kv") == 0 || strcmp(name, "attention.head_count") == 0 ||
            strcmp(name, "feed_forward_length") == 0 || strcmp(name, "intermediate_size") == 0;
        if (index != NULL ? !element_number(v, (size_t)(*index - '0'), out) : !value_number(v, widest, out))
            return nib_fail(err, NIB_E_MODEL, "%s: expected one number%s", key,
                            v->type == META_ARRAY ? ", found values that differ from layer to layer" : "");
        if (!isfinite(*out))
            return nib_fail(err, NIB_E_MODEL, "%s: expected a finite number, found %s", key,
                            num_text(*out, 6));
        *found = 1;
        return NIB_OK;
    }
    return NIB_OK;
}

const char *config_string(const config_source *s, const char *names) {
    char name[96], key[256];
    while (list_next(&names, name, sizeof name)) {
        key_name(s, name, key, sizeof key);
        const char *text = container_meta_str(s->c, key);
        if (text != NULL)
            return text;
    }
    return NULL;
}

const char *config_expert_keys(const config_source *s) {
    size_t i = 0;
    while (usual[i].field != HP_n_expert)
        i++;
    return s->gguf_arch != NULL ? usual[i].gguf : usual[i].hf;
}

static bool text_is(const config_source *s, const char *key, const char *text, size_t n) {
    const char *found = container_meta_str(s->c, key);
    return found != NULL && strlen(found) == n && strncmp(found, text, n) == 0;
}

bool config_condition(const config_source *s, const char *when) {
    while (when != NULL && *when != '\0') {
        bool negate = *when == '!';
        const char *start = when + negate, *end = start + strcspn(start, "&");
        size_t n_key = strcspn(start, "=");
        char key[96];
        if (n_key >= sizeof key)
            return false;
        memcpy(key, start, n_key);
        key[n_key] = '\0';
        bool value = strncmp(start + n_key, "=true", 5) == 0;
        const char *text = strncmp(start + n_key, "==", 2) == 0 ? start + n_key + 2 : NULL;
        if (text != NULL)
            value = s->gguf_arch == NULL && text_is(s, key, text, (size_t)(end - text));
        else if (s->gguf_arch == NULL)
            container_meta_bool(s->c, key, &value);
        if (value == negate)
            return false;
        when = *end == '&' ? end + 1 : end;
    }
    return true;
}

static const arch_key *family_row(const config_source *s, hp_id field) {
    for (const arch_key *k = s->arch->keys; k != NULL && k->field != HP_COUNT; k++)
        if (k->field == field && config_condition(s, k->when))
            return k;
    return NULL;
}

static nib_status set_field(hparams *hp, hp_id field, double value, nib_error *err) {
    const field_info *f = &fields[field];
    char *at = (char *)hp + f->offset;
    if (f->kind == 'f') {
        memcpy(at, &value, sizeof value);
    } else if (f->kind == 'b') {
        bool b = value != 0;
        memcpy(at, &b, sizeof b);
    } else {
        if (value < 0 || value > 9e15 || value != floor(value))
            return nib_fail(err, NIB_E_MODEL, "%s: expected a whole number of at least 0, found %s", f->name,
                            num_text(value, 6));
        int64_t i = (int64_t)value;
        memcpy(at, &i, sizeof i);
    }
    return NIB_OK;
}

/* The rows or columns of the tensor that the row names. */
static bool size_of_tensor(const config_source *s, const arch_key *row, int64_t n_layer, double *out) {
    const char *name = row->hf_rows ? row->hf_rows : row->hf_columns;
    const char *number = name ? strstr(name, "%d") : NULL;
    const container_tensor *t = NULL;
    if (name == NULL || s->gguf_arch)
        return false;
    for (int64_t i = 0; t == NULL && i < (n_layer > 0 ? NUM_MIN(n_layer, 1024) : 1024); i++) {
        char full[128];
        snprintf(full, sizeof full, "%.*s%lld%s", number ? (int)(number - name) : 0, name, (long long)i,
                 number ? number + 2 : name);
        t = config_find_hf(s, number ? full : name);
    }
    if (t == NULL || t->n_dim < 1)
        return false;
    *out = (double)t->shape[row->hf_rows ? 0 : t->n_dim - 1];
    return true;
}

static nib_status read_field(const config_source *s, hp_id field, config *out, nib_error *err) {
    const arch_key *row = family_row(s, field);
    bool gguf = s->gguf_arch != NULL;
    const char *names = "";
    double value = 0;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (usual[i].field == field) {
            names = gguf ? usual[i].gguf : usual[i].hf;
            value = usual[i].value;
        }
    if (row != NULL && size_of_tensor(s, row, out->hp.n_layer, &value))
        return set_field(&out->hp, field, value, err);
    if (row == NULL || !(row->flags & K_CONST)) {
        const char *own = row == NULL ? NULL : gguf ? row->gguf : row->hf;
        double read = 0;
        int found = 0;
        const bool letters =
            row != NULL && (row->flags & K_LETTERS) && config_string(s, own != NULL ? own : names);
        if (!letters)
            NIB_TRY(config_number(s, own != NULL ? own : names, &read, &found, err));
        if (found == 1 && row != NULL && row->form != KEY_PLAIN && read <= 0)
            return nib_fail(err, NIB_E_MODEL, "%s: expected more than 0, found %s", fields[field].name,
                            num_text(read, 6));
        if (field == HP_tied_head)
            out->tie_said = found == 1;
        unsigned takes = gguf ? K_DEFAULT_GGUF : K_DEFAULT;
        if (found == 0 && row != NULL && (row->flags & takes)) {
            read = row->value;
            found = 1;
        }
        if (found != 1)
            return set_field(&out->hp, field, value, err);
        value = read;
    } else {
        value = row->value;
    }
    if (row != NULL && row->form == KEY_RSQRT)
        value = 1 / sqrt(value);
    else if (row != NULL && row->form == KEY_INVERSE)
        value = 1 / value;
    return set_field(&out->hp, field, value, err);
}

/* Whether a value has no effect (0; of a scale 1), so that a file may omit its key. */
static bool says_nothing(hp_id field, double value, const hparams *hp) {
    switch (field) {
    case HP_window:
    case HP_n_rot:
    case HP_rec_tap:
    case HP_rec_inner:
    case HP_rec_head:
    case HP_rec_group:
    case HP_rec_state:
    case HP_rope_theta_local:
    case HP_attn_softcap:
    case HP_logit_softcap:
    case HP_qkv_clip:
    case HP_alibi_max_bias: return value == 0;
    case HP_n_expert:
    case HP_n_expert_used:
    case HP_d_expert:
    case HP_n_shared:
    case HP_d_shared:
    case HP_n_expert_group:
    case HP_n_group_used:
    case HP_n_dense:
    case HP_n_nextn: return value == 0;
    case HP_expert_score: return hp->n_expert == 0;
    case HP_embed_scale:
    case HP_residual_scale:
    case HP_expert_scale:
    case HP_ffn_scale:
    case HP_logit_scale: return value == 1;
    case HP_attn_scale: return value == 1 / sqrt((double)hp->d_head);
    case HP_d_value: return true; /* written with d_head */
    case HP_q_low_rank:
    case HP_kv_low_rank:
    case HP_d_ple:
    case HP_d_latent:
    case HP_n_kv_shared:
    case HP_n_stream:
    case HP_n_rot_local:
    case HP_d_head_full: return value == 0;
    case HP_stream_active: return hp->n_stream == 0;
    case HP_d_head: return hp->d_head * hp->n_head == hp->d_model && hp->d_value == hp->d_head;
    default: return false;
    }
}

bool config_gguf_key(const arch_desc *arch, hp_id field, const hparams *hp, const char **name, char *kind,
                     double *value) {
    const config_source as_gguf = {.arch = arch, .gguf_arch = ""}; /* conditions have their defaults */
    const arch_key *row = family_row(&as_gguf, field);
    const char *at = (const char *)hp + fields[field].offset;
    *name = row != NULL ? row->gguf : NULL;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0] && *name == NULL; i++)
        if (usual[i].field == field)
            *name = usual[i].gguf;
    if (*name == NULL || **name == '\0' || (row != NULL && (row->flags & K_CONST)))
        return false;
    *kind = fields[field].kind;
    *value = *kind == 'b'   ? (double)*(const bool *)at
             : *kind == 'i' ? (double)*(const int64_t *)(const void *)at
                            : *(const double *)(const void *)at;
    if (field == HP_n_layer) /* GGUF counts the heads that predict later tokens too */
        *value += (double)hp->n_nextn;
    if (field == HP_embed_scale && (arch->flags & A_EMBED_SQRT))
        *value /= sqrt((double)hp->d_model);
    if (says_nothing(field, *value, hp) || (*kind == 'b' && *value == 0 && row == NULL))
        return false;
    if (row != NULL && row->form == KEY_RSQRT)
        *value = 1 / (*value * *value);
    else if (row != NULL && row->form == KEY_INVERSE)
        *value = 1 / *value;
    return true;
}

int64_t config_gguf_pattern(const arch_desc *arch) {
    const config_source as_gguf = {.arch = arch, .gguf_arch = ""};
    const arch_key *row = family_row(&as_gguf, HP_window_pattern);
    return row != NULL && (row->flags & (K_DEFAULT_GGUF | K_CONST)) ? (int64_t)row->value : 0;
}

/* The vocabulary's size is the number of the embedding's rows; GGUF files need no key for it. */
static void vocab_from_tensor(const config_source *s, hparams *hp) {
    if (s->gguf_arch == NULL)
        return;
    const container_tensor *t = container_find(s->c, "token_embd.weight");
    if (t != NULL && t->n_dim == 2)
        hp->n_vocab = t->shape[0];
}

bool config_has_slot(const arch_desc *arch, slot_id slot) {
    const arch_tensor *row = arch->tensors;
    while (row->slot != SLOT_COUNT && row->slot != slot)
        row++;
    return row->slot == slot;
}

/* A family without routers has no experts, whatever its configuration says of one of them. */
static void derive_experts(const config_source *s, hparams *hp) {
    if (!config_has_slot(s->arch, SLOT_ROUTER) || hp->n_expert == 0)
        hp->n_expert = hp->n_expert_used = hp->d_expert = hp->n_shared = hp->d_shared = hp->n_dense =
            hp->n_expert_group = hp->n_group_used = 0;
    else if (hp->d_expert == 0)
        hp->d_expert = hp->d_ff;
    if (hp->d_shared == 0 && hp->n_shared < 1 << 20 && hp->d_expert < 1 << 25)
        hp->d_shared = hp->n_shared * hp->d_expert;
    if (hp->d_shared == 0) /* of the mean of both */
        hp->ffn_scale = 1;
    if (hp->expert_score == 0)
        hp->expert_score = SCORE_SOFTMAX;
    if (hp->expert_scale == 0)
        hp->expert_scale = 1;
    if (hp->n_nextn < hp->n_layer) /* GGUF counts the layers of multi-token prediction too */
        hp->n_layer -= hp->n_nextn;
    hp->n_nextn = config_has_ahead(s, hp->n_layer);
}

/* With rows of low rank a head has a plain part and a rotated part, and keys of its own. GGUF files of the
 * absorbed form have the head sizes under keys of their own. */
static nib_status derive_latent(const config_source *s, hparams *hp, nib_error *err) {
    double width = 0;
    int found = 0;
    if (hp->kv_low_rank == 0)
        return NIB_OK;
    if (s->gguf_arch != NULL) {
        NIB_TRY(config_number(s, "attention.key_length_mla", &width, &found, err));
        if (found == 1 && width >= 0 && width < 1 << 14)
            hp->d_head = (int64_t)width;
        NIB_TRY(config_number(s, "attention.value_length_mla", &width, &found, err));
        if (found == 1 && width >= 0 && width < 1 << 14)
            hp->d_value = (int64_t)width;
        hp->d_plain = hp->d_head - hp->n_rot;
    } else {
        hp->d_head = hp->d_plain + hp->n_rot;
    }
    if (hp->n_rot < 1 || hp->d_plain < 0 || hp->d_value < 1)
        return nib_fail(err, NIB_E_MODEL,
                        "latent attention: expected dimensions of rotated keys and of values, found %lld "
                        "rotated, %lld plain and %lld of values",
                        (long long)hp->n_rot, (long long)hp->d_plain, (long long)hp->d_value);
    hp->n_kv_head = hp->n_head;
    return NIB_OK;
}

static bool is_nope(const config_source *s) {
    const char *type = s->gguf_arch ? NULL : config_string(s, "position_embedding_type");
    double finetuned = 0;
    int found;
    if (!(s->arch->flags & A_NOPE_NAMED))
        return false;
    if (s->gguf_arch == NULL)
        return type != NULL && strcmp(type, "nope") == 0;
    return config_number(s, "rope.scaling.finetuned", &finetuned, &found, NULL) == NIB_OK && finetuned == 0;
}

/* A GGUF file has one width for the heads of these delta nets, and as many as for attention. */
static void derive_kda(hparams *hp) {
    hp->rec_head = hp->rec_group = hp->n_head;
    hp->rec_dt_rank = hp->rec_state;
    hp->rec_inner = NUM_MIN(hp->n_head, (int64_t)1 << 20) * NUM_MIN(hp->rec_state, (int64_t)1 << 20);
}

static nib_status derive(const config_source *s, config *out, nib_error *err) {
    hparams *hp = &out->hp;
    if (s->arch->mixer == MIXER_KDA && s->gguf_arch != NULL)
        derive_kda(hp);
    NIB_TRY(derive_latent(s, hp, err));
    if (s->arch->mixer != MIXER_NONE && config_n_listed(s) > 0)
        hp->n_layer = config_n_listed(s);
    if (hp->n_kv_head == 0 && (s->arch->flags & A_KV_DOUBLED) && hp->n_kv_head_full < 1 << 16)
        hp->n_kv_head = 2 * hp->n_kv_head_full;
    if (hp->n_kv_head == 0)
        hp->n_kv_head = hp->n_head;
    if (hp->d_head == 0) {
        if (hp->n_head == 0 || hp->d_model % hp->n_head != 0)
            return nib_fail(err, NIB_E_MODEL, "d_model %lld is not a multiple of n_head %lld",
                            (long long)hp->d_model, (long long)hp->n_head);
        hp->d_head = hp->d_model / hp->n_head;
    }
    if (hp->d_value == 0)
        hp->d_value = hp->d_head;
    if (hp->d_ff == 0 && hp->d_model < INT64_C(1) << 40)
        hp->d_ff = 4 * hp->d_model;
    derive_experts(s, hp);
    if (hp->d_embed == 0)
        hp->d_embed = hp->d_model;
    if (!(hp->rope_part >= 0 && hp->rope_part <= 1))
        return nib_fail(err, NIB_E_MODEL, "rope_part (partial_rotary_factor): expected 0 to 1, found %s",
                        num_text(hp->rope_part, 6));
    if (hp->n_rot == 0)
        hp->n_rot = (int64_t)((double)hp->d_head * hp->rope_part);
    if (hp->n_rot_local == 0)
        hp->n_rot_local = (int64_t)((double)hp->d_head * NUM_MIN(fmax(hp->rope_part_local, 0), 1.0));
    if ((s->arch->flags & A_NO_ROPE) || hp->alibi_max_bias > 0 || is_nope(s))
        hp->n_rot = 0;
    if (s->arch->flags & A_EMBED_SQRT)
        hp->embed_scale *= sqrt((double)hp->d_model);
    if ((s->arch->flags & A_LOCAL_PLAIN) && hp->window > 0 && hp->rope_theta_local == 0)
        hp->rope_theta_local = hp->rope_theta;
    if (hp->attn_scale == 0) {
        double width = (double)hp->d_head;
        if (s->gguf_arch != NULL && s->arch->scale_width_layers > 0 &&
            hp->n_layer == s->arch->scale_width_layers)
            width = (double)hp->d_model / (double)hp->n_head;
        hp->attn_scale = 1 / sqrt(width);
    }
    /* Up to these positions sparse attention chooses all complete blocks, and sees the others anyway. */
    if (hp->sparse_budget > 0 && hp->sparse_budget < 1 << 30 && hp->sparse_block < 1 << 30)
        hp->n_ctx_max = hp->sparse_budget + NUM_MAX(hp->sparse_block, (int64_t)1) - 1;
    vocab_from_tensor(s, hp);
    return NIB_OK;
}

/* Bounds far above any model, and low enough that a product of three sizes fits 64 bits. */
static const struct {
    hp_id field;
    double min, max;
} bounds[] = {
    {HP_n_layer, 1, 16384},
    {HP_d_model, 1, 1 << 22},
    {HP_n_head, 1, 1 << 16},
    {HP_n_kv_head, 1, 1 << 16},
    {HP_d_head, 1, 1 << 14},
    {HP_d_ff, 1, 1 << 24},
    {HP_n_vocab, 1, 1 << 26},
    {HP_n_ctx_train, 1, 1e12},
    {HP_d_embed, 1, 1 << 22},
    {HP_n_rot, 0, 1 << 14},
    {HP_norm_eps, 0, 1},
    {HP_rope_theta, 1e-3, 1e30},
    {HP_rope_theta_local, 0, 1e30},
    {HP_attn_scale, 1e-9, 1e9},
    {HP_attn_softcap, 0, 1e9},
    {HP_logit_softcap, 0, 1e9},
    {HP_embed_scale, -1e9, 1e9},
    {HP_residual_scale, -1e9, 1e9},
    {HP_d_value, 1, 1 << 14},
    {HP_d_plain, 0, 1 << 14},
    {HP_q_low_rank, 0, 1 << 20},
    {HP_d_head_full, 0, 1 << 14},
    {HP_n_kv_head_full, 0, 1 << 16},
    {HP_n_kv_shared, 0, 16384},
    {HP_d_ple, 0, 1 << 20},
    {HP_n_stream, 0, MIX_MAX},
    {HP_stream_active, 0, MIX_MAX - 1},
    {HP_stream_rank, 0, 1 << 20},
    {HP_d_latent, 0, 1 << 22},
    {HP_router_cap, 0, 1e9},
    {HP_connect_iterations, 0, 1000},
    {HP_connect_eps, 0, 1},
    {HP_pool_chosen, 0, 1 << 14},
    {HP_pool_all, 0, 1 << 14},
    {HP_index_head, 0, 1 << 12},
    {HP_index_width, 0, 1 << 12},
    {HP_index_used, 0, 1 << 16},
    {HP_o_group, 0, 1 << 10},
    {HP_o_low_rank, 0, 1 << 16},
    {HP_gate_limit, 0, 1e9},
    {HP_n_rot_local, 0, 1 << 14},
    {HP_kv_low_rank, 0, 1 << 20},
    {HP_low_rank_eps, 0, 1},
    {HP_logit_scale, -1e9, 1e9},
    {HP_qkv_clip, 0, 1e30},
    {HP_alibi_max_bias, 0, 1e6},
    {HP_pos_offset, 0, 1 << 20},
    {HP_pos_scale, -1e6, 1e6},
    {HP_pos_offset, 0, 1 << 20},
    {HP_n_expert, 0, ROUTE_MAX_EXPERT},
    {HP_d_expert, 0, 1 << 24},
    {HP_d_shared, 0, 1 << 24},
    {HP_n_expert_group, 0, ROUTE_MAX_EXPERT},
    {HP_expert_score, 1, 5},
    {HP_expert_scale, -1e9, 1e9},
};

static double field_value(const hparams *hp, hp_id field) {
    const char *at = (const char *)hp + fields[field].offset;
    double value = 0;
    if (fields[field].kind == 'f') {
        memcpy(&value, at, sizeof value);
    } else {
        int64_t i;
        memcpy(&i, at, sizeof i);
        value = (double)i;
    }
    return value;
}

static nib_status check(const config_source *s, const hparams *hp, nib_error *err) {
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        double v = field_value(hp, bounds[i].field);
        if (!(v >= bounds[i].min && v <= bounds[i].max))
            return nib_fail(err, NIB_E_MODEL, "%s: expected %s to %s, found %s", fields[bounds[i].field].name,
                            num_text(bounds[i].min, 6), num_text(bounds[i].max, 6), num_text(v, 6));
    }
    if (hp->n_head % hp->n_kv_head != 0)
        return nib_fail(err, NIB_E_MODEL, "n_head %lld is not a multiple of n_kv_head %lld",
                        (long long)hp->n_head, (long long)hp->n_kv_head);
    if (hp->n_rot > hp->d_head || hp->n_rot % 2 != 0)
        return nib_fail(err, NIB_E_MODEL, "n_rot: expected an even number of at most d_head %lld, found %lld",
                        (long long)hp->d_head, (long long)hp->n_rot);
    if (hp->n_rot_local > hp->d_head || hp->n_rot_local % 2 != 0)
        return nib_fail(err, NIB_E_MODEL,
                        "n_rot_local: expected an even number of at most d_head %lld, found %lld",
                        (long long)hp->d_head, (long long)hp->n_rot_local);
    if (hp->n_stream > 0 && hp->stream_active >= hp->n_stream)
        return nib_fail(err, NIB_E_MODEL, "stream_active: expected less than %lld streams, found %lld",
                        (long long)hp->n_stream, (long long)hp->stream_active);
    NIB_TRY(config_check_experts(hp, err));
    NIB_TRY(config_check_entries(hp, err));
    /* Every layer has tensors, so this also bounds allocations by the file's contents. */
    if ((uint64_t)hp->n_layer > container_n_tensor(s->c))
        return nib_fail(err, NIB_E_MODEL,
                        "n_layer: expected at most the number of tensors, found %lld layers and %zu tensors",
                        (long long)hp->n_layer, container_n_tensor(s->c));
    return NIB_OK;
}

nib_status config_read(const config_source *s, config *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    NIB_TRY(config_check_supported(s, err));
    for (int i = 0; i < HP_COUNT; i++)
        NIB_TRY(read_field(s, (hp_id)i, out, err));
    NIB_TRY(derive(s, out, err));
    NIB_TRY(check(s, &out->hp, err));
    out->rope = s->gguf_arch != NULL ? s->arch->rope_gguf : s->arch->rope_hf;
    if (s->gguf_arch == NULL && s->arch->rope_half && config_condition(s, s->arch->rope_half))
        out->rope = ROPE_HALF;
    NIB_TRY(config_read_act(s, out, err));
    NIB_TRY(config_read_layers(s, out, err));
    NIB_TRY(config_check_mixer(s->arch->mixer, out, err));
    NIB_TRY(config_read_shapes(s, out, err));
    NIB_TRY(config_read_ropes(s, out, err));
    if (s->arch->flags & A_YARN_SCORES) {
        const rope_params *r = &out->ropes[0];
        out->hp.attn_scale *= r->score_factor * r->score_factor;
    }
    if (out->hp.pos_scale != 0 && out->hp.pos_scale_every == 0)
        out->hp.pos_scale_every = out->n_rope > 0 ? (int64_t)out->ropes[0].orig_ctx : out->hp.n_ctx_train;
    return NIB_OK;
}
