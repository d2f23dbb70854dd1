/* formats.c - lists the formats of weights and of keys and values between which a workload's plan chooses,
 * with their measured loss. The program is solved for each of them: a sequence has one format in each layer,
 * and a block one, so a share of a format would have to be rounded. */
#include "engine/planning/planning.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/kv_auto.h"
#include "engine/sessions.h"
#include "engine/sizes.h"

static planning_format *add(planning_formats *f, nib_flow_format is, bool allowed) {
    planning_format *x = &f->list[f->n];
    *x = (planning_format){.is = is, .kv_loss = is.loss};
    f->allowed[f->n++] = allowed;
    return x;
}

/* Adds the format of keys and values, if the back end has it. */
static nib_status add_kv(planning_formats *f, const engine_core *e, int kv, double loss, nib_error *err) {
    nib_error why;
    planning_format *x = add(f, (nib_flow_format){.kv_type = kv, .weights = NIB_WEIGHTS_FILE, .loss = loss},
                             loss >= 0 && loss <= f->max_loss);
    x->as = *e;
    x->as.resolved.kv = kv;
    x->as.resolved.kv_layers = NULL;
    x->as.resolved.kv_types = NULL;
    x->as.resolved.max_kv_loss = f->max_loss;
    NIB_TRY(sizes_formats(&x->as, err));
    const bool none = kv == NIB_KV_AUTO && !x->as.resolved.formats.layers;
    if (none || sessions_check_formats(&x->as, x->as.resolved.formats, &why) != NIB_OK) {
        mem_free(x->as.resolved.kv_types);
        f->n--;
    }
    return NIB_OK;
}

/* The loss of the formats by layer. */
static double loss_by_layer(const engine_core *e, const kv_loss *k) {
    double sum = 0;
    for (int l = 0; l < k->n_layer; l++)
        for (int j = 0; j < KV_LOSS_FORMATS; j++) {
            type_id type;
            if (type_from_name(kv_loss_formats[j], &type) && kv_format_of(e->resolved.formats, l) == type)
                sum += k->kl[l * KV_LOSS_FORMATS + j];
        }
    return sum;
}

static nib_status list_kv(planning_formats *f, const engine_core *e, nib_error *err) {
    static const int coded[KV_LOSS_FORMATS] = {NIB_KV_8, NIB_KV_4};
    kv_loss k;
    nib_status status = kv_auto_load(e, &k, err);
    if (status == NIB_OK)
        status = add_kv(f, e, NIB_KV_F16, 0, err);
    for (int i = 0; status == NIB_OK && i < KV_LOSS_FORMATS; i++)
        status = add_kv(f, e, coded[i], k.n_layer ? KV_AUTO_MARGIN * k.all[i] : -1, err);
    const int n = f->n;
    if (status == NIB_OK && k.n_layer && !e->kind->one_kv_format)
        status = add_kv(f, e, NIB_KV_AUTO, 0, err);
    if (status == NIB_OK && f->n > n) {
        planning_format *x = &f->list[n];
        x->is.loss = x->kv_loss = KV_AUTO_MARGIN * loss_by_layer(&x->as, &k);
    }
    kv_loss_clear(&k);
    return status;
}

/* Adds the same keys and values with weights of the fewest bytes within what is left of the loss. */
static nib_status add_weights(planning_formats *f, int i, nib_error *err) {
    const planning_format *own = &f->list[i];
    layout *lay;
    double loss;
    uint64_t channels;
    if (!f->allowed[i] || f->n == NIB_FLOW_FORMATS)
        return NIB_OK;
    NIB_TRY(planning_fewest(&own->as, f->max_loss - own->kv_loss, &lay, &loss, &channels, err));
    if (!lay)
        return NIB_OK;
    planning_format *x = add(f, own->is, true);
    x->as = own->as;
    x->as.resolved.kv_types = NULL; /* the other's list is borrowed */
    x->as.layout = x->lay = lay;
    x->channels = channels;
    x->kv_loss = own->kv_loss;
    x->is.weights = NIB_WEIGHTS_FEWEST;
    x->is.loss += loss;
    return NIB_OK;
}

nib_status planning_list_formats(const engine_core *e, int kv_type, planning_formats *out, nib_error *err) {
    const nib_plan_options *how = e->requested.planning;
    bool may_round = false;
    *out = (planning_formats){.max_loss = KV_AUTO_LOSS};
    if (how && how->quality && !plan_quality(how->quality, &out->max_loss, &may_round))
        return nib_fail(err, NIB_E_USAGE,
                        "quality: expected lossless, high, balanced or small, found \"%.40s\"", how->quality);
    if (kv_type == NIB_KV_AUTO && model_hparams(e->m)->pool_all == 0) {
        NIB_TRY(list_kv(out, e, err));
    } else {
        planning_format *x =
            add(out, (nib_flow_format){.kv_type = e->requested.kv_type, .weights = NIB_WEIGHTS_FILE}, true);
        x->as = *e;
        x->as.resolved.kv_types = NULL;
    }
    for (int i = 0, n = out->n; i < n && may_round && !how->mode && !(how->speed > 0); i++)
        NIB_TRY(add_weights(out, i, err));
    return NIB_OK;
}

void planning_close_formats(planning_formats *f) {
    for (int i = 0; i < f->n; i++) {
        mem_free(f->list[i].as.resolved.kv_types);
        layout_free(f->list[i].lay);
    }
}
