/* quantize.c - see nib_tools.h: finds the importance of columns, then writes the file. */
#include "nib_tools.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/headers.h"
#include "engine/residual/residual.h"
#include "formats/packed_matrix.h"
#include "measure/measure.h"
#include "measure/product_inputs.h"
#include "hub/find.h"
#include "quantize/imatrix_file.h"
#include "numbers/codebook.h"
#include "quantize/held_back.h"
#include "quantize/job.h"
#include "quantize/lapack.h"
#include "quantize/bit_allocation.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- importance ---- */

/* Reads the importance from the cache, or measures and stores it. */
static nib_status get_channels(job *j, const calibration *c, model_imatrix *out, nib_error *err) {
    stats_sites widths;
    nib_status status = NIB_E_NOTFOUND;
    NIB_TRY(stats_widths(&widths, j->m, err));
    char *path = imatrix_path(c->content, c->hash);
    if (path)
        status = imatrix_load(path, c->content, widths.k, widths.n, out, NULL);
    stats_widths_clear(&widths);
    const bool found = status == NIB_OK;
    if (!found)
        status = measure_channels(j->model, &j->options, c, out, err);
    nib_error why;
    if (status == NIB_OK && !found && path && imatrix_save(path, out, &why) != NIB_OK)
        log_line(&j->log, "the importance of channels was not stored: %s", why.message);
    snprintf(j->report->importance, sizeof j->report->importance, "%s%s", c->what,
             found ? ", measured before" : "");
    mem_free(path);
    return status;
}

static nib_status measure(job *j, nib_error *err) {
    calibration c;
    model_imatrix channels = {0};
    NIB_TRY(measure_prompts(j->model, &j->options, j->q->calib, true, &c, err));
    nib_status status = get_channels(j, &c, &channels, err);
    if (status == NIB_OK)
        status = stats_of_channels(&j->stats, j->m, &j->tensors, &channels, err);
    j->stats.n_token = c.n_prompt ? c.begin[c.n_prompt] : 0;
    imatrix_clear(&channels);
    calibration_clear(&c);
    return status;
}

static bool shares_weights(const model *m) {
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++)
            if (model_block(m, b)->weights[w].shared_block >= 0)
                return true;
    return false;
}

/* Whether the method's own pass suffices: AWQ and GPTQ observe the inputs of every block before they write
 * it. It does not suffice for a matrix that a later block reads too (tied embeddings), and for formats that
 * GPTQ rounds to nearest. */
static bool sees_inputs(const job *j) {
    const nib_quantize_options *q = j->q;
    const type_id types[] = {j->mix.base, j->mix.other, j->mix.more, j->mix.head,
                             q->head_type ? j->head_type : j->mix.head};
    if (j->method == METHOD_RTN || q->imatrix || q->keep_imatrix || q->bits > 0 || shares_weights(j->m))
        return false;
    for (size_t i = 0; i < NUM_COUNT(types) && j->method == METHOD_GPTQ; i++)
        if (!encode_shape_of(types[i]))
            return false;
    return true;
}

static nib_status get_importance(job *j, nib_error *err) {
    const nib_quantize_options *q = j->q;
    if (sees_inputs(j)) {
        snprintf(j->report->importance, sizeof j->report->importance, "%s", j->prompts.what);
        return NIB_OK;
    }
    if (j->keeps && (q->permute || q->rotate)) {
        snprintf(j->report->importance, sizeof j->report->importance, "none, values are not rounded");
        return NIB_OK;
    }
    if (!q->imatrix && container_packed_method(j->c)) {
        snprintf(j->report->importance, sizeof j->report->importance,
                 "none, a packed checkpoint is not measured");
        return NIB_OK;
    }
    if (q->imatrix && !strcmp(q->imatrix, "none")) {
        snprintf(j->report->importance, sizeof j->report->importance, "none");
        return NIB_OK;
    }
    if (q->imatrix) {
        snprintf(j->report->importance, sizeof j->report->importance, "%s", q->imatrix);
        return imatrix_file_read(q->imatrix, &j->tensors, &j->log, &j->stats, err);
    }
    return measure(j, err);
}

static nib_status keep_importance(job *j, nib_error *err) {
    const nib_quantize_options *q = j->q;
    if (!q->keep_imatrix)
        return NIB_OK;
    if (!j->stats.of)
        return nib_fail(err, NIB_E_USAGE, "expected a measured importance matrix to write, found none");
    return imatrix_file_write(q->keep_imatrix, &j->tensors, &j->stats, j->report->importance, err);
}

/* ---- an average number of bits ---- */

/* Checks --bits before anything is measured. */
static nib_status check_average(const job *j, nib_error *err) {
    allocation_list list;
    int min = 8, max = 0;
    if (j->q->bits == 0)
        return NIB_OK;
    NIB_TRY(allocate_find(j->q->type, &list, err));
    for (int i = 0; i < list.n; i++) {
        min = NUM_MIN(min, list.of[i].bits);
        max = NUM_MAX(max, list.of[i].bits);
    }
    if (j->q->bits < min || j->q->bits > max)
        return nib_fail(err, NIB_E_USAGE, "--bits: expected %d to %d, the bits of %s, found %s", min, max,
                        j->q->type ? j->q->type : "n2g64 to q8_0", num_text(j->q->bits, 4));
    return NIB_OK;
}

static nib_status share(job *j, nib_error *err) {
    enum { MIXED_FILE = 1024 /* llama.cpp's file type for "as the tensors" */ };
    calibration c;
    allocation_list list;
    if (j->q->bits == 0)
        return NIB_OK;
    NIB_TRY(allocate_find(j->q->type, &list, err));
    j->block_types = mem_calloc((size_t)model_n_block(j->m), sizeof *j->block_types);
    if (!j->block_types)
        return nib_fail_nomem(err, 64, "the blocks' formats");
    j->mix.file_type = MIXED_FILE;
    j->mix.mixed = false;
    NIB_TRY(measure_prompts(j->model, &j->options, NULL, false, &c, err));
    const nib_status status = allocate_bits(j->model, &j->options, &c, j->m, &list, j->q->bits,
                                            j->q->head_type, j->block_types, &j->report->kl, err);
    calibration_clear(&c);
    return status;
}

/* ---- the whole call ---- */

/* Checks, before anything is measured, that OUT can be written and is not one of the input files. */
static nib_status check_out(const job *j, nib_error *err) {
    const char *out = j->q->out;
    struct stat there, own;
    if (stat(out, &there) != 0)
        return NIB_OK;
    if (!S_ISREG(there.st_mode))
        return nib_fail(err, NIB_E_USAGE, "%s: expected a name for the file that is made, found %s", out,
                        S_ISDIR(there.st_mode) ? "a folder" : "something else");
    for (int i = 0; i < container_n_file(j->c); i++)
        if (fstat(file_handle(container_file(j->c, i)), &own) == 0 && own.st_dev == there.st_dev &&
            own.st_ino == there.st_ino)
            return nib_fail(err, NIB_E_USAGE,
                            "%s: expected another name than the model's, found the model itself", out);
    return NIB_OK;
}

static nib_status open_model(job *j, nib_error *err) {
    char *path;
    NIB_TRY(model_find(j->model, &path, err));
    const nib_status status = model_open(path, &j->log, &j->m, err);
    mem_free(path);
    NIB_TRY(status);
    j->c = model_container(j->m);
    NIB_TRY(check_out(j, err));
    const char *packed = container_packed_method(j->c);
    if (packed && (j->method != METHOD_RTN || j->q->bits > 0))
        return nib_fail(err, NIB_E_USAGE,
                        "the weights are packed by %s and cannot be measured: write them to a file first "
                        "(without --method and --bits)",
                        packed);
    j->keeps = packed && (!j->q->type || j->narrow);
    if (j->keeps && j->q->head_type)
        return nib_fail(err, NIB_E_USAGE,
                        "--head-type: the packed weights keep their values unless --type names a format");
    const bool moves = j->q->permute || j->q->rotate;
    if (packed && moves)
        return nib_fail(err, NIB_E_USAGE,
                        "%s: the weights are packed by %s and cannot be changed: write them to a file first",
                        j->q->permute ? "--permute" : "--rotate", packed);
    j->keeps = j->keeps || (moves && !j->q->type && !(j->q->bits > 0));
    if (j->narrow && !packed)
        return nib_fail(
            err, NIB_E_USAGE,
            "--type packed: expected a checkpoint in a packed form (AWQ, GPTQ, compressed-tensors)");
    NIB_TRY(gguf_tensors_open(j->m, &j->tensors, err));
    j->drops_ahead = moves && gguf_tensors_drop_ahead(&j->tensors, j->m);
    if (j->drops_ahead)
        log_line(&j->log,
                 "%s leaves out the head that predicts later tokens, whose channels stay in the old order",
                 j->q->permute ? "--permute" : "--rotate");
    if (j->narrow && gguf_tensors_narrow(&j->tensors) == 0)
        log_line(&j->log, "--type packed: no format has fewer bits for these values than the usual one");
    return NIB_OK;
}

static void warn(const job *j) {
    const nib_quantize_report *r = j->report;
    if (r->n_coarse)
        log_line(&j->log,
                 "%d tensors are in a coarse format already: their loss remains, and a file with f16 or "
                 "bf16 weights gives a better one",
                 r->n_coarse);
    if (r->n_fallback)
        log_line(&j->log,
                 "%d tensors have rows that are no multiple of the format's block, and get a format with "
                 "blocks of 32",
                 r->n_fallback);
    if (r->n_resumed)
        log_line(&j->log, "%d of %d tensors were finished before", r->n_resumed, r->n_tensor);
}

/* ---- methods that need inputs ---- */

static nib_status begin_inputs(void *user, const engine_parts *e, nib_error *err) {
    job *j = user;
    return gram_open(&j->inputs, e->layout, j->method == METHOD_AWQ, j->threads, e->ledger, err);
}

static nib_status after_block(void *user, int b, nib_error *err) {
    job *j = user;
    if (j->inputs.failed) {
        if (err)
            *err = j->inputs.why;
        return j->inputs.why.status;
    }
    const nib_status status = job_block(j, b, err);
    gram_clear(&j->inputs);
    return status;
}

static void end_inputs(void *user) {
    job *j = user;
    gram_close(&j->inputs);
}

/* Bytes for the sums of a block's inputs, and for the method's work on one tensor. */
static uint64_t method_bytes(void *user, const engine_parts *e) {
    const job *j = user;
    const bool squares = j->method == METHOD_AWQ;
    const int64_t k = job_longest_product(j);
    const int n_thread = pool_size(j->threads);
    return gram_bytes(e->m, squares) + (squares ? awq_bytes(k, n_thread) : gptq_bytes(k, n_thread)) +
           j->scratch.n_byte;
}

static nib_status make_by_inputs(job *j, nib_error *err) {
    const product_watch how = {.begin = begin_inputs,
                               .after = after_block,
                               .end = end_inputs,
                               .bytes = method_bytes,
                               .probe = &j->inputs.probe,
                               .what = "blocks",
                               .user = j};
    if (j->method == METHOD_GPTQ)
        NIB_TRY(lapack_check(err));
    if (j->method == METHOD_GPTQ && lapack_note()[0])
        log_line(&j->log, "%s", lapack_note());
    if (j->method == METHOD_GPTQ && lapack_is_slow())
        log_line(&j->log, "OpenBLAS was not found; the reference LAPACK takes many times as long. Debian: "
                          "libopenblas0-pthread");
    return measure_product_inputs(j->model, &j->options, &j->prompts, &how, err);
}

static bool find_method(const char *name, method *out) {
    static const struct {
        const char *name;
        method is;
    } rows[] = {{"rtn", METHOD_RTN},
                {"squeezellm", METHOD_RTN /* for rows with codebooks */},
                {"awq", METHOD_AWQ},
                {"gptq", METHOD_GPTQ}};
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        if (!strcasecmp(name ? name : "rtn", rows[i].name)) {
            *out = rows[i].is;
            return true;
        }
    return false;
}

/* --rotate: finds what can be rotated, and moves the norms. */
static nib_status rotate(job *j, nib_error *err) {
    if (!j->q->rotate)
        return NIB_OK;
    if (j->method != METHOD_RTN || j->q->permute)
        return nib_fail(err, NIB_E_USAGE,
                        "--rotate: expected method rtn, found %s: run it on the rotated file",
                        j->q->permute ? "--permute" : j->q->method);
    NIB_TRY(rotate_open(&j->rotate, j->m, &j->tensors, err));
    j->report->n_rotated = j->rotate.n_axis;
    return NIB_OK;
}

/* --permute: finds the order of channels, and which blocks of them have 8 bits. */
static nib_status permute(job *j, nib_error *err) {
    calibration c;
    if (!j->q->permute)
        return NIB_OK;
    if (j->method != METHOD_RTN)
        return nib_fail(err, NIB_E_USAGE,
                        "--permute: expected method rtn, found %s: run it on the permuted file",
                        j->q->method);
    NIB_TRY(measure_prompts(j->model, &j->options, j->q->calib, true, &c, err));
    const permute_options how = {j->q->outlier > 0 ? j->q->outlier : CHANNELS_OUTLIER, j->q->share8 / 100};
    const nib_status status = permute_open(&j->permute, j->m, j->model, &j->options, &c, &how, err);
    calibration_clear(&c);
    j->report->n_first = j->permute.n_outlier;
    j->report->share8 = j->permute.share8 * 100;
    return status;
}

static nib_status make(job *j, nib_error *err) {
    NIB_TRY(open_model(j, err));
    NIB_TRY(check_average(j, err));
    NIB_TRY(rotate(j, err));
    NIB_TRY(permute(j, err));
    if (j->method != METHOD_RTN)
        NIB_TRY(measure_prompts(j->model, &j->options, j->q->calib, true, &j->prompts, err));
    NIB_TRY(get_importance(j, err));
    NIB_TRY(keep_importance(j, err));
    NIB_TRY(share(j, err));
    NIB_TRY(job_open(j, err));
    j->report->n_tensor = (int)j->n_tensor;
    warn(j);
    if (j->method != METHOD_RTN && j->n_done < j->n_tensor)
        NIB_TRY(make_by_inputs(j, err));
    while (j->n_done < j->n_tensor)
        NIB_TRY(job_next(j, err));
    return job_commit(j, err);
}

/* Reads --outliers; at least one of the formats must support outliers. */
static nib_status take_outliers(job *j, const char *type, nib_error *err) {
    const int of_10000 = (int)(j->q->outliers * 100 + 0.5);
    type_id with = TYPE_C4;
    if (of_10000 == 0)
        return NIB_OK;
    if (!mix_outliers(&with, of_10000))
        return nib_fail(err, NIB_E_USAGE, "--outliers: expected 0.45 or 1, found %s",
                        num_text(j->q->outliers, 4));
    with = j->mix.base;
    const bool listed =
        j->q->bits > 0 && j->q->type && (strcasestr(j->q->type, "c3") || strcasestr(j->q->type, "c4"));
    if (!listed && (j->q->bits > 0 || !mix_outliers(&with, of_10000)))
        return nib_fail(err, NIB_E_USAGE,
                        "--outliers: expected type c3 or c4, which have codebooks, found %s",
                        j->q->type ? j->q->type
                        : type     ? type
                                   : "none");
    j->outliers = of_10000;
    return NIB_OK;
}

/* Reads --head-type, which must be a format and not a mix. */
static nib_status take_head_type(job *j, nib_error *err) {
    char names[512];
    mix of;
    if (!j->q->head_type)
        return NIB_OK;
    if (mix_find(j->q->head_type, &of) && of.mixed)
        return nib_fail(err, NIB_E_USAGE, "--head-type: expected one format, found '%s', a mix of several",
                        j->q->head_type);
    if (!mix_find(j->q->head_type, &of))
        return nib_fail(err, NIB_E_USAGE, "--head-type: expected a format, found '%s'; known: %s",
                        j->q->head_type, mix_names(names));
    j->head_type = of.base;
    return NIB_OK;
}

/* Writes the residuals of the finished file. */
static nib_status write_residual(const char *name, const nib_engine_options *options,
                                 const nib_quantize_options *q, nib_error *err) {
    nib_engine_options o = *options;
    engine_core e;
    if (!q->residual)
        return NIB_OK;
    o.residual = NULL;
    o.plan = NULL;
    o.planning = NULL;
    nib_status status = headers_open(&e, q->out, &o, NULL, err);
    if (status == NIB_OK)
        status = residuals_write(&e, name, q->residual, err);
    core_close(&e);
    return status == NIB_OK || status == NIB_E_CANCELLED
               ? status
               : nib_fail_prefix(err, status, "the model was written, but its residuals were not");
}

static nib_status make_file(const char *name, const nib_engine_options *o, const nib_quantize_options *q,
                            nib_quantize_report *out, nib_error *err) {
    char names[512];
    memset(out, 0, sizeof *out);
    job j = {.model = name,
             .options = *o,
             .q = q,
             .report = out,
             .log = {.fn = o->log, .user = o->user},
             .cancel = {o->cancel, o->user},
             .journal = {.fd = -1}};
    const bool books = q->method && !strcasecmp(q->method, "squeezellm");
    j.narrow = q->type && !strcasecmp(q->type, "packed");
    const char *type = q->bits > 0 || j.narrow ? NULL : q->type ? q->type : books ? "c4" : NULL;
    /* The paper rounds neither embedding nor head, and with codebooks they lose the most. */
    nib_quantize_options own = *q;
    if (books && type)
        own.type = type;
    if (books && !q->head_type)
        own.head_type = "q8_0";
    j.q = &own;
    if (type && strchr(type, ',') && !mix_find(type, &j.mix))
        return nib_fail(err, NIB_E_USAGE,
                        "'%s': expected an average number of bits (--bits) for a list of formats, found none",
                        type);
    if (!mix_find(type, &j.mix))
        return nib_fail(err, NIB_E_USAGE, "unknown type '%s'; known: %s", type, mix_names(names));
    if (!find_method(q->method, &j.method))
        return nib_fail(err, NIB_E_USAGE, "unknown method '%s'; known: rtn, squeezellm, awq, gptq",
                        q->method);
    if (books && !(q->bits > 0) && !codebook_has(j.mix.base))
        return nib_fail(err, NIB_E_USAGE,
                        "squeezellm: expected type c3 or c4, which have codebooks, found %s", type);
    NIB_TRY(take_head_type(&j, err));
    NIB_TRY(take_outliers(&j, type, err));
    const nib_status status = make(&j, err);
    out->error = j.all > 0 ? j.error / j.all : 0;
    job_close(&j, status == NIB_E_USAGE || status == NIB_E_MODEL);
    return status;
}

/* AWQ's search sees one input at a time, and may lose more in the whole model than it gains: its file stays
 * only if text that was not measured is at least as likely as with the file that is rounded to nearest. */
static nib_status keep_better(const char *name, const nib_engine_options *o, const nib_quantize_options *q,
                              nib_quantize_report *out, nib_error *err) {
    const logger log = {.fn = o->log, .user = o->user};
    nib_engine_options silent = *o;
    nib_quantize_options plain = *q;
    nib_quantize_report of_plain;
    char path[PATH_MAX];
    double by_awq, by_rtn = NAN;
    silent.log = NULL;
    NIB_TRY(held_back_perplexity(q->out, &silent, &by_awq, err));
    if (isnan(by_awq)) {
        log_line(&log, "awq was not compared with rtn: the model has no text, or a short context");
        return NIB_OK;
    }
    if (snprintf(path, sizeof path, "%s.rtn", q->out) >= (int)sizeof path)
        return nib_fail(err, NIB_E_USAGE, "%s: expected a shorter path", q->out);
    plain.method = "rtn";
    plain.out = path;
    plain.keep_imatrix = NULL;
    nib_status status = make_file(name, &silent, &plain, &of_plain, err);
    if (status == NIB_OK)
        status = held_back_perplexity(path, &silent, &by_rtn, err);
    if (status == NIB_OK)
        log_line(&log, "perplexity of held-back text: %.3f by awq, %.3f by rtn: %s is kept", by_awq, by_rtn,
                 by_rtn < by_awq ? "rtn" : "awq");
    if (status == NIB_OK && by_rtn < by_awq) {
        *out = of_plain;
        if (rename(path, q->out))
            status =
                nib_fail(err, NIB_E_IO, "%s: cannot be renamed to %s: %s", path, q->out, strerror(errno));
    }
    unlink(path);
    return status;
}

nib_status nib_quantize(const char *name, const nib_engine_options *o, const nib_quantize_options *q,
                        nib_quantize_report *out, nib_error *err) {
    const double start = time_now();
    nib_status status = make_file(name, o, q, out, err);
    if (status == NIB_OK && q->method && !strcasecmp(q->method, "awq"))
        status = keep_better(name, o, q, out, err);
    if (status == NIB_OK)
        status = write_residual(name, o, q, err);
    out->seconds = time_now() - start;
    out->rss_peak = ledger_process_usage().peak;
    return status;
}
