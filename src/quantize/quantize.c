/* quantize.c - see quantize.h: importance, then the file. */
#include "quantize/quantize.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "measure/measure.h"
#include "measure/products.h"
#include "model/find.h"
#include "quantize/imatrix.h"
#include "quantize/job.h"

#include <stdio.h>
#include <string.h>

/* ---- importance ---- */

/* From the cache, or measured and then kept there. */
static nib_status get_channels(job *j, const calibration *c, columns *out, nib_error *err) {
    stats_sites widths;
    char *path = columns_path(c->content, c->hash);
    nib_status status = NIB_E_NOTFOUND;
    NIB_TRY(stats_widths(&widths, j->m, err));
    if (path)
        status = columns_load(path, c->content, widths.k, widths.n, out, NULL);
    stats_widths_clear(&widths);
    const bool found = status == NIB_OK;
    if (!found)
        status = measure_channels(j->model, &j->options, c, out, err);
    nib_error why;
    if (status == NIB_OK && !found && path && columns_save(path, out, &why) != NIB_OK)
        log_line(&j->log, "the importance of channels is not kept: %s", why.message);
    snprintf(j->report->importance, sizeof j->report->importance, "%s%s", c->what,
             found ? ", measured before" : "");
    mem_free(path);
    return status;
}

static nib_status measure(job *j, nib_error *err) {
    calibration c;
    columns channels = {0};
    NIB_TRY(measure_prompts(j->model, &j->options, j->q->calib, &c, err));
    nib_status status = get_channels(j, &c, &channels, err);
    if (status == NIB_OK)
        status = stats_of_channels(&j->stats, j->m, &channels, err);
    j->stats.n_token = c.n_prompt ? c.begin[c.n_prompt] : 0;
    columns_clear(&channels);
    calibration_clear(&c);
    return status;
}

static nib_status get_importance(job *j, nib_error *err) {
    const quantize_options *q = j->q;
    if (q->imatrix && !strcmp(q->imatrix, "none")) {
        snprintf(j->report->importance, sizeof j->report->importance, "none");
        return NIB_OK;
    }
    if (q->imatrix) {
        snprintf(j->report->importance, sizeof j->report->importance, "%s", q->imatrix);
        return imatrix_read(q->imatrix, j->c, &j->log, &j->stats, err);
    }
    return measure(j, err);
}

static nib_status keep_importance(job *j, nib_error *err) {
    const quantize_options *q = j->q;
    if (!q->keep_imatrix)
        return NIB_OK;
    if (!j->stats.of)
        return nib_fail(err, NIB_E_USAGE, "there is no importance to write");
    return imatrix_write(q->keep_imatrix, j->c, &j->stats, j->report->importance, err);
}

/* ---- all of it ---- */

static nib_status open_model(job *j, nib_error *err) {
    char *path;
    NIB_TRY(model_find(j->model, &path, err));
    const nib_status status = model_open_headers(path, &j->log, NULL, &j->m, err);
    mem_free(path);
    NIB_TRY(status);
    j->c = model_container(j->m);
    if (container_get_kind(j->c) != CONTAINER_GGUF)
        return nib_fail(err, NIB_E_USAGE,
                        "%s: expected a GGUF file, found safetensors; convert it with llama.cpp's "
                        "convert_hf_to_gguf.py first",
                        container_path(j->c));
    return NIB_OK;
}

static void warn(const job *j) {
    const quantize_report *r = j->report;
    if (r->n_coarse)
        log_line(&j->log,
                 "%d tensors are in a coarse format already: what that lost stays lost, a file with f16 or "
                 "bf16 weights gives a better one",
                 r->n_coarse);
    if (r->n_fallback)
        log_line(&j->log, "%d tensors have rows that the format does not divide, and get one in blocks of 32",
                 r->n_fallback);
    if (r->n_resumed)
        log_line(&j->log, "%d of %d tensors were finished before", r->n_resumed, r->n_tensor);
}

static nib_status make(job *j, nib_error *err) {
    NIB_TRY(open_model(j, err));
    NIB_TRY(get_importance(j, err));
    NIB_TRY(keep_importance(j, err));
    NIB_TRY(job_open(j, err));
    j->report->n_tensor = (int)j->n_tensor;
    warn(j);
    while (j->n_done < j->n_tensor)
        NIB_TRY(job_next(j, err));
    return job_commit(j, err);
}

nib_status quantize(const char *name, const nib_engine_options *o, const quantize_options *q,
                    quantize_report *out, nib_error *err) {
    const double start = time_now();
    char names[512];
    memset(out, 0, sizeof *out);
    job j = {.model = name,
             .options = *o,
             .q = q,
             .report = out,
             .log = {o->log, o->user},
             .cancel = {o->cancel, o->user},
             .journal = {.fd = -1}};
    if (!mix_find(q->type, &j.mix))
        return nib_fail(err, NIB_E_USAGE, "unknown type '%s'; known: %s", q->type, mix_names(names));
    const nib_status status = make(&j, err);
    out->error = j.all > 0 ? j.error / j.all : 0;
    job_close(&j);
    out->seconds = time_now() - start;
    out->rss_peak = ledger_look().peak;
    return status;
}
