/* unused.c - tensors that no weight uses. An unused tensor of a layer is most likely part of an unsupported
 * computation (a bias, a norm). Without it answers would be silently wrong, so it is an error. Known buffers
 * of old checkpoints are skipped; other tensors (a vision tower, prediction layers) are logged once. */
#include "base/mem.h"
#include "model/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Suffixes of tensors that hold no weights: causal masks, frequencies, calibration. */
static const char *const harmless[] = {
    ".rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached",
    ".attn_rot_embd.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    ".act_fn.alpha_p",
    ".act_fn.alpha_n",
    ".act_fn.beta",
    ".layer_scalar",
    ".layer_output_scale.weight",
    ".self_attn.k_scale",
    ".self_attn.v_scale",
    ".self_attn.q_scale",
    ".act_fn.eps", /* numbers of the configuration (config_act.c) */
};

static bool is_harmless(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        size_t k = strlen(harmless[i]);
        if (n >= k && strcmp(name + n - k, harmless[i]) == 0)
            return true;
    }
    return false;
}

static const char *without(const char *text, const char *prefix) {
    size_t n = prefix != NULL ? strlen(prefix) : 0;
    return n > 0 && strncmp(text, prefix, n) == 0 ? text + n : text;
}

/* The number of the layer that a pattern's prefix up to "%d" gives a name; -1: it has another prefix. */
static int64_t number_in(const char *pattern, const char *bare) {
    const char *percent = strstr(pattern, "%d");
    const size_t n = percent == NULL ? 0 : (size_t)(percent - pattern);
    const bool is = percent != NULL && strncmp(bare, pattern, n) == 0 && isdigit((unsigned char)bare[n]);
    return is ? strtoll(bare + n, NULL, 10) : -1;
}

/* Whether the names of the head that predicts later tokens have a prefix of their own. */
static bool has_prefix(const model *m) {
    return m->gguf_arch == NULL && m->arch->hf_ahead != NULL;
}

/* Whether a tensor belongs to such a head, by the first word of its name: "mtp.fc", "mtp_emb_norm.0". */
static bool is_of_ahead(const model *m, const char *bare) {
    const char *prefix = has_prefix(m) ? without(m->arch->hf_ahead, m->arch->hf_base) : "";
    const size_t n = strcspn(prefix, "._");
    return n > 0 && strncmp(bare, prefix, n) == 0 && (bare[n] == '.' || bare[n] == '_');
}

/* Which layer of the model, or of the head, a tensor belongs to by its name ("blk.3.", "model.layers.3.");
 * -1: none. Prefixes may be there or not, as in tensors.c. */
static int64_t layer_of(const model *m, const char *name) {
    const char *bare = without(without(name, "model.language_model."), "language_model.");
    bare = without(bare, m->arch->hf_base);
    if (is_of_ahead(m, bare))
        return m->ahead ? number_in(without(m->arch->hf_ahead, m->arch->hf_base), bare) : m->cfg.hp.n_layer;
    if (m->ahead && has_prefix(m))
        return -1;
    for (const arch_tensor *row = m->arch->tensors; row->slot != SLOT_COUNT; row++) {
        const char *pattern =
            m->gguf_arch != NULL ? "blk.%d." : without(row->hf != NULL ? row->hf : "", m->arch->hf_base);
        const int64_t layer = number_in(pattern, bare);
        if (layer >= 0)
            return layer;
    }
    return -1;
}

/* Whether a layer that uses the keys and values of another has this tensor of keys or values, as some
 * checkpoints do. */
static bool is_of_shared_keys(const model *m, const char *name, int64_t layer) {
    bool is = false;
    if (m->cfg.shape[layer].kv_layer == layer)
        return false;
    for (const arch_tensor *row = m->arch->tensors; row->slot != SLOT_COUNT; row++) {
        const char *pattern = m->gguf_arch == NULL ? row->hf
                              : row->gguf          ? row->gguf
                                                   : slot_gguf_name(row->slot);
        const char *tail = pattern != NULL ? strstr(pattern, "%d.") : NULL;
        if (row->slot == SLOT_K || row->slot == SLOT_V || row->slot == SLOT_K_NORM)
            is = is || (tail != NULL && strstr(name, tail + 2) != NULL);
    }
    return is;
}

/* Whether a tensor of a layer has a name that the family marks as not needed. */
static bool is_not_needed(const model *m, const char *name) {
    for (const arch_tensor *row = m->arch->tensors; row->slot != SLOT_COUNT; row++) {
        const char *pattern = (row->flags & T_UNUSED) && m->gguf_arch == NULL ? row->hf : NULL;
        const char *tail = pattern != NULL ? strstr(pattern, "%d") : NULL;
        if (tail != NULL && strstr(name, tail + 2) != NULL)
            return true;
    }
    return false;
}

static int by_address(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

/* The names of all *n tensors that weights use, ordered by address: a part of a tensor has the same name.
 * NULL: out of memory. */
static const char **used_tensors(const model *m, size_t *n) {
    size_t max = 0;
    for (int i = 0; i < m->n_block; i++)
        for (int j = 0; j < m->blocks[i].n_weight; j++)
            max += (size_t)m->blocks[i].weights[j].n_piece;
    const char **used = mem_array(max, sizeof *used);
    if (used == NULL)
        return NULL;
    *n = 0;
    for (int i = 0; i < m->n_block; i++)
        for (int j = 0; j < m->blocks[i].n_weight; j++)
            for (int k = 0; k < m->blocks[i].weights[j].n_piece; k++)
                used[(*n)++] = m->blocks[i].weights[j].pieces[k].tensor->name;
    qsort(used, *n, sizeof *used, by_address);
    return used;
}

nib_status tensors_check_unused(const model *m, const logger *log, nib_error *err) {
    size_t n_used, n_left = 0;
    const char *first = NULL;
    const char **used = used_tensors(m, &n_used);
    const bool skips_ahead = m->next != NULL || (m->share.n > 1 && m->cfg.hp.n_nextn > 0);
    if (used == NULL)
        return nib_fail_nomem(err, sizeof *used, "the list of tensors");
    nib_status status = NIB_OK;
    for (size_t i = 0; i < container_n_tensor(m->c) && status == NIB_OK; i++) {
        const container_tensor *t = container_tensor_at(m->c, i);
        if (bsearch(&t->name, used, n_used, sizeof *used, by_address) != NULL || is_harmless(t->name) ||
            t->source)
            continue;
        int64_t layer = layer_of(m, t->name) - m->first_layer;
        if (m->ahead ? layer != 0 : skips_ahead && layer == m->cfg.hp.n_layer)
            continue; /* of the model, or of its head (ahead.c) */
        if (layer >= 0 && layer < m->cfg.hp.n_layer &&
            (is_of_shared_keys(m, t->name, layer) || is_not_needed(m, t->name)))
            continue;
        if (layer >= 0 && layer < m->cfg.hp.n_layer)
            status = nib_fail(err, NIB_E_MODEL, "tensor %s: expected a tensor that the architecture %s uses",
                              t->name, m->arch->name);
        else if (!(m->cfg.hp.tied_head && strcmp(t->name, "lm_head.weight") == 0) && n_left++ == 0)
            first = t->name;
    }
    mem_free(used);
    if (status == NIB_OK && n_left > 0)
        log_line(log, "%zu tensors are not used, the first is %s", n_left, first);
    return status;
}
