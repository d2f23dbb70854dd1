/* stats.c - see stats.h. */
#include "quantize/stats.h"

#include "base/mem.h"
#include "engine/imatrix.h"

#include <string.h>

nib_status stats_of_channels(stats *s, const model *m, const gguf_tensors *tensors, model_imatrix *channels,
                             nib_error *err) {
    model_sites sites;
    s->channels = *channels;
    memset(channels, 0, sizeof *channels);
    memcpy(s->key, s->channels.prompts, sizeof s->key);
    s->of = mem_calloc(tensors->n + 1, sizeof *s->of);
    if (!s->of)
        return nib_fail_nomem(err, tensors->n * sizeof *s->of, "a list of tensors");
    NIB_TRY(sites_open(&sites, m, err));
    for (size_t i = 0; i < tensors->n; i++) {
        const gguf_tensor *t = &tensors->all[i];
        const int at = t->block < 0 ? -1 : sites.first[t->block] + t->w;
        const int entry = at < 0 ? -1 : sites.of[at] >= 0 ? sites.of[at] : sites.stack[at];
        if (entry >= 0)
            s->of[i] = s->channels.mean + s->channels.first[entry];
    }
    sites_close(&sites);
    return NIB_OK;
}

nib_status stats_widths(stats_sites *s, const model *m, nib_error *err) {
    model_sites sites;
    NIB_TRY(sites_open(&sites, m, err));
    *s = (stats_sites){sites.k, sites.n_site + sites.n_stack};
    sites.k = NULL; /* owned by the caller from now on */
    sites_close(&sites);
    return NIB_OK;
}

void stats_widths_clear(stats_sites *s) {
    mem_free(s->k);
    memset(s, 0, sizeof *s);
}

int64_t stats_experts(const gguf_tensor *t) {
    return t->as.n_dim == 3 ? t->as.shape[0] : 1;
}

void stats_close(stats *s) {
    mem_free(s->of);
    mem_free(s->own);
    imatrix_clear(&s->channels);
    memset(s, 0, sizeof *s);
}
