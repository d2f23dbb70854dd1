/* ahead.c - the head that predicts later tokens (multi-token prediction: DeepSeek-V3, arXiv 2412.19437,
 * section 2.2; "nextn" in GGUF), read as a model of one layer. It drafts tokens for the model that it belongs
 * to:
 *
 *     x = W [ norm(embedding of the token after position i) | norm(state of position i) ]
 *     x = an ordinary layer of the family, which attends to its own keys and values of positions up to i
 *     logits of the token after that one = head(norm(x))
 *
 * The state is what the model's output head reads: the residual stream after the final norm. To draft one
 * more token, the head's own norm(x) is the state of the next position. vLLM and SGLang compute DeepSeek's
 * and GLM's heads so, and llama.cpp Qwen3.5's (pull request 24025). A pass gets the states as its residual
 * stream (exec/step.h). */
#include "base/num.h"
#include "model/binder.h"
#include "model/builder.h"

#include <stdio.h>

void config_spell_ahead(const arch_desc *arch, char *pattern, size_t size) {
    static const char of_layer[] = "model.layers.%d.";
    char rest[128];
    if (strncmp(pattern, of_layer, sizeof of_layer - 1) != 0)
        return;
    snprintf(rest, sizeof rest, "%s", pattern + sizeof of_layer - 1);
    snprintf(pattern, size, "%s%s", arch->hf_ahead, rest);
}

bool config_has_ahead(const config_source *s, int64_t n_layer) {
    char pattern[128], name[BIND_NAME];
    for (const arch_tensor *r = s->arch->tensors; r->slot != SLOT_COUNT; r++) {
        if (r->slot != SLOT_AHEAD_IN)
            continue;
        const bool apart = s->gguf_arch == NULL && s->arch->hf_ahead != NULL;
        const char *list = s->gguf_arch != NULL ? slot_gguf_name(r->slot) : r->hf;
        list_next(&list, pattern, sizeof pattern);
        if (apart)
            config_spell_ahead(s->arch, pattern, sizeof pattern);
        const char *percent = strstr(pattern, "%d");
        if (percent == NULL)
            snprintf(name, sizeof name, "%s.weight", pattern);
        else
            snprintf(name, sizeof name, "%.*s%lld%s.weight", (int)(percent - pattern), pattern,
                     (long long)(apart ? 0 : n_layer), percent + 2);
        return (s->gguf_arch != NULL ? container_find(s->c, name) : config_find_hf(s, name)) != NULL;
    }
    return false;
}

static bool is_like_ahead(const arch_desc *arch, uint8_t layer) {
    if ((layer & LAYER_NO_ATTENTION) || ((arch->flags & A_AHEAD_FULL) && (layer & LAYER_SLIDES)))
        return false;
    return !(arch->flags & A_AHEAD_SLIDES) || (layer & LAYER_SLIDES);
}

/* The head's layer is as the model's last one with attention of the same kind. */
nib_status config_take_ahead(const config_source *s, config *c, nib_error *err) {
    const meta_value *kinds = s->gguf_arch == NULL ? container_meta(s->c, "mtp_layer_types") : NULL;
    if (kinds != NULL && (kinds->type != META_ARRAY || kinds->elem != META_STRING || kinds->n < 1 ||
                          strcmp(kinds->v.strings[0].data, "full_attention") != 0))
        return nib_fail(err, NIB_E_MODEL, "mtp_layer_types: expected full_attention first");
    int64_t last = c->hp.n_layer - 1;
    while (last >= 0 && !is_like_ahead(s->arch, c->layer[last]))
        last--;
    if (last < 0)
        return nib_fail(err, NIB_E_MODEL, "expected a layer with %s attention, as the head has, found none",
                        s->arch->flags & A_AHEAD_SLIDES ? "sliding" : "full");
    c->layer += last;
    c->shape += last;
    c->shape->kv_layer = 0;
    c->xielu = c->xielu ? c->xielu + last : NULL;
    c->hp.n_layer = 1;
    c->hp.n_nextn = 0;
    return NIB_OK;
}

static bool has_tensor(const block *b, const container_tensor *t) {
    for (int i = 0; i < b->n_weight; i++)
        if (b->weights[i].pieces[0].tensor == t)
            return true;
    return false;
}

uint64_t model_ahead_bytes(const model *m, bool own) {
    uint64_t sum = 0;
    for (int b = 0; m->next != NULL && b < m->next->n_block; b++) {
        const block *x = &m->next->blocks[b];
        sum += x->bytes;
        for (int i = 0; own && i < x->n_weight; i++) {
            const weight *w = &x->weights[i];
            const container_tensor *t = w->pieces[0].tensor;
            if (!w->vector && w->shared_block < 0 &&
                (has_tensor(&m->blocks[0], t) || has_tensor(&m->blocks[m->n_block - 1], t)))
                sum -= w->bytes;
        }
    }
    return sum;
}

static bool is_there(const binder *b, slot_id slot) {
    return bind_find(b, bind_row(b, slot), 0, ".weight") != NULL;
}

/* The slot whose place in programs another one has. */
static void stand_in(binder *b, slot_id slot, slot_id of) {
    b->out->slot[of] = b->out->slot[slot];
}

nib_status bind_ahead_in(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const slot_id embed = is_there(b, SLOT_AHEAD_EMBED) ? SLOT_AHEAD_EMBED : SLOT_EMBED;
    if (hp->d_embed != hp->d_model || hp->n_stream > 1)
        return nib_fail(err, NIB_E_MODEL,
                        "expected an embedding and one residual stream of the model's width, found others");
    NIB_TRY(bind_linear(b, embed, hp->n_vocab, hp->d_model, SLOT_COUNT, 0, err));
    stand_in(b, embed, SLOT_EMBED);
    NIB_TRY(bind_norm(b, SLOT_AHEAD_EMBED_NORM, hp->d_model, 1, err));
    NIB_TRY(bind_norm(b, SLOT_AHEAD_STATE_NORM, hp->d_model, 1, err));
    return bind_linear(b, SLOT_AHEAD_IN, hp->d_model, 2 * hp->d_model, SLOT_COUNT, 0, err);
}

nib_status bind_ahead_out(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    if (b->m->ahead && is_there(b, SLOT_AHEAD_OUT_NORM)) {
        NIB_TRY(bind_norm(b, SLOT_AHEAD_OUT_NORM, hp->d_model, 1, err));
        stand_in(b, SLOT_AHEAD_OUT_NORM, SLOT_OUT_NORM);
    }
    if (b->m->ahead && is_there(b, SLOT_AHEAD_HEAD)) {
        NIB_TRY(bind_linear(b, SLOT_AHEAD_HEAD, hp->n_vocab, hp->d_model, SLOT_COUNT, 0, err));
        stand_in(b, SLOT_AHEAD_HEAD, SLOT_HEAD);
    }
    return NIB_OK;
}

void build_ahead_in(builder *p) {
    const int64_t d = p->m->cfg.hp.d_model;
    const reg both = model_declare_reg(p->m, "ahead");
    static const slot_id norms[] = {SLOT_AHEAD_EMBED_NORM, SLOT_AHEAD_STATE_NORM};
    op *o = emit(p, OP_EMBED, REG_E, REG_NONE, d, 0);
    o->w = p->b->slot[SLOT_EMBED].w;
    o->u.num.value = (float)p->m->cfg.hp.embed_scale;
    for (int i = 0; i < 2; i++) {
        emit_norm(p, norms[i], REG_H, i == 0 ? REG_E : REG_X, d, 1);
        emit_copy(p, both, REG_H, 1, d, d, i * d, 2 * d, 0);
    }
    emit_linear(p, SLOT_AHEAD_IN, REG_X, both);
}
