/* job.c - see job.h: the formats and the order of the tensors, the header, and continuing an interrupted run.
 */
#include "quantize/job.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"
#include "numbers/encode.h"
#include "quantize/header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* ---- formats and order ---- */

static bool is_coarse(type_id type) {
    return type_get(type)->block_elems > 1;
}

/* The format of a tensor that is not rounded: f16 for values of a coarse format that change, or move between
 * its blocks; f32 for rotated ones that must stay exact. */
static type_id kept_type(const job *j, size_t i) {
    const gguf_tensor *t = &j->tensors.all[i];
    const bool turns = j->rotate.m && rotate_changes(&j->rotate, t);
    if (turns && model_block(j->m, t->block)->weights[t->w].exact)
        return TYPE_F32;
    const bool moves = turns || (j->permute.m && permute_moves_columns(&j->permute, t));
    return moves && is_coarse(t->as.type) ? TYPE_F16 : t->as.type;
}

/* Chooses a tensor's format, and counts it in the report. */
static void choose_type(job *j, size_t i) {
    const container_tensor *t = &j->tensors.all[i].as;
    if (j->keeps) {
        j->types[i] = kept_type(j, i);
        return;
    }
    bool fallback = false;
    mix x = j->mix;
    const int at = j->uses[i].block;
    if (j->q->head_type && at >= 0 && model_block(j->m, at)->layer < 0)
        x.base = x.other = x.more = x.head = j->head_type;
    else if (j->block_types && at >= 0)
        x.base = x.other = x.more = x.head = j->block_types[at];
    j->types[i] = mix_type(&x, j->m, t, &j->uses[i], &fallback);
    if (j->outliers > 0)
        mix_outliers(&j->types[i], j->outliers);
    if (j->types[i] == t->type) {
        j->types[i] = kept_type(j, i);
        return;
    }
    j->report->n_quantized++;
    j->report->n_fallback += fallback;
    j->report->n_coarse += is_coarse(t->type);
}

static int by_place(const void *a, const void *b, void *user) {
    const job *j = user;
    const tensor_use *uses = j->uses;
    const size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const bool made = j->tensors.all[i].data, other_made = j->tensors.all[k].data;
    if (made != other_made) /* tensors that are made from the configuration come first */
        return made ? -1 : 1;
    const int at = uses[i].block, other = uses[k].block;
    if ((at < 0) != (other < 0)) /* tensors of no block come last */
        return at < 0 ? 1 : -1;
    if (at != other)
        return at < other ? -1 : 1;
    if (uses[i].w != uses[k].w)
        return uses[i].w < uses[k].w ? -1 : 1;
    return i < k ? -1 : i > k;
}

/* A packed matrix that no block type holds exactly would grow to eight times its size, so the user must
 * request that. */
static nib_status check_kept(const job *j, nib_error *err) {
    for (size_t i = 0; i < j->n_tensor; i++) {
        const gguf_tensor *t = &j->tensors.all[i];
        const packed_matrix *of = t->n_piece ? t->pieces[0].tensor->packed : NULL;
        if (of && packed_is_integer(of) && t->from == TYPE_F32)
            return nib_fail(
                err, NIB_E_USAGE,
                "%s: no block format stores its values exactly (act-order, scales that f16 cannot hold, or "
                "groups that are no multiple of 32); --type f32 keeps them, another --type rounds them again",
                t->as.name);
    }
    return NIB_OK;
}

static nib_status decide(job *j, nib_error *err) {
    j->n_tensor = j->tensors.n;
    j->uses = mem_calloc(j->n_tensor + 1, sizeof *j->uses);
    j->types = mem_calloc(j->n_tensor + 1, sizeof *j->types);
    j->order = mem_calloc(j->n_tensor + 1, sizeof *j->order);
    if (!j->uses || !j->types || !j->order)
        return nib_fail_nomem(err, j->n_tensor * sizeof *j->uses, "a list of tensors");
    mix_uses(j->m, &j->tensors, j->uses);
    if (j->keeps && !j->permute.m && !j->rotate.m)
        NIB_TRY(check_kept(j, err));
    for (size_t i = 0; i < j->n_tensor; i++) {
        j->order[i] = i;
        choose_type(j, i);
    }
    qsort_r(j->order, j->n_tensor, sizeof *j->order, by_place, j);
    return NIB_OK;
}

/* Bytes of the tensor in the model's files. */
static uint64_t source_bytes(const gguf_tensor *t) {
    uint64_t row = 0;
    type_row_bytes(t->from, tensor_columns(&t->as), &row);
    return t->data ? 0 : (uint64_t)tensor_rows(&t->as) * row;
}

static uint64_t bytes_of(const job *j, size_t i) {
    const container_tensor *t = &j->tensors.all[i].as;
    uint64_t row_bytes = 0;
    type_row_bytes(j->types[i], tensor_columns(t), &row_bytes);
    return (uint64_t)tensor_rows(t) * row_bytes;
}

static void count_weights(job *j) {
    nib_quantize_report *r = j->report;
    for (size_t i = 0; i < j->n_tensor; i++) {
        const gguf_tensor *t = &j->tensors.all[i];
        const uint64_t bytes = bytes_of(j, i);
        j->total += bytes;
        r->bytes_in += source_bytes(t);
        if (j->types[i] == t->as.type)
            continue;
        r->n_weight += (uint64_t)(tensor_rows(&t->as) * tensor_columns(&t->as));
        r->bits += 8 * (double)bytes;
    }
    if (r->n_weight)
        r->bits /= (double)r->n_weight;
}

/* ---- continuing an interrupted run ---- */

/* A hash of the encoder's output for a small sample, because a changed encoder writes another file. */
static uint64_t hash_encoder(const job *j) {
    enum { SAMPLE = 256 };
    float x[SAMPLE];
    uint8_t blocks[SAMPLE * sizeof(float)];
    uint64_t s = 1, hash = 0;
    for (int i = 0; i < SAMPLE; i++) {
        s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)((int64_t)(s >> 40) - (1 << 23)) / (float)(1 << 23);
    }
    for (int id = 0; id < TYPE_COUNT; id++) {
        uint64_t n = 0;
        if (encode_can((type_id)id) && type_row_bytes((type_id)id, SAMPLE, &n) && n <= sizeof blocks &&
            encode_row((type_id)id, x, NULL, SAMPLE, blocks))
            hash = XXH3_64bits_withSeed(blocks, n, hash);
    }
    hash ^= (uint64_t)j->method + (j->rotate.m ? UINT64_C(1) << 32 : 0);
    for (int i = 0; j->permute.m && i < j->permute.axes.n; i++)
        if (j->permute.order[i])
            hash = XXH3_64bits_withSeed(j->permute.order[i],
                                        (size_t)j->permute.axes.size[i] * sizeof(int32_t), hash);
    if (j->prompts.n_prompt)
        hash = XXH3_64bits_withSeed(j->prompts.hash, strlen(j->prompts.hash), hash);
    for (size_t i = 0; i < j->n_tensor; i++)
        if (j->stats.of && j->stats.of[i])
            hash = XXH3_64bits_withSeed(j->stats.of[i],
                                        (size_t)tensor_columns(&j->tensors.all[i].as) *
                                            (size_t)stats_experts(&j->tensors.all[i]) * sizeof(float),
                                        hash);
    return hash;
}

/* Hashes sizes and modification times of the files, because the content key only samples the weights. */
static uint64_t hash_files(const container *c, uint64_t hash) {
    for (int i = 0; i < container_n_file(c); i++) {
        const file *f = container_file(c, i);
        const uint64_t is[2] = {file_size(f), (uint64_t)file_changed(f)};
        hash = XXH3_64bits_withSeed(is, sizeof is, hash);
    }
    return hash;
}

static nib_status job_key(const job *j, uint64_t *key, nib_error *err) {
    char content[CONTENT_KEY];
    NIB_TRY(container_content_key(j->c, content, err));
    *key = XXH3_64bits_withSeed(content, strlen(content), gguf_writer_hash(j->writer) ^ hash_encoder(j));
    *key = hash_files(j->c, *key);
    return NIB_OK;
}

static nib_status hash_part(const job *j, file *f, uint64_t offset, uint64_t n_byte, uint64_t *sum,
                            nib_error *err) {
    const uint64_t piece = (uint64_t)j->scratch.n_value * 8;
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return nib_fail_nomem(err, 64, "a checksum");
    XXH3_64bits_reset(h);
    nib_status status = NIB_OK;
    for (uint64_t at = 0; at < n_byte && status == NIB_OK; at += piece) {
        const uint64_t n = NUM_MIN(piece, n_byte - at);
        status = file_read_at(f, j->scratch.raw, offset + at, n, err);
        if (status == NIB_OK)
            XXH3_64bits_update(h, j->scratch.raw, (size_t)n);
    }
    *sum = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return status;
}

/* Number of tensors, from the first, whose bytes in the part file agree with the log. */
static size_t count_good(const job *j, file *f) {
    size_t n = 0;
    for (; n < j->journal.n && n < j->n_tensor; n++) {
        const uint64_t offset = gguf_writer_offset(j->writer, n), bytes = bytes_of(j, j->order[n]);
        uint64_t sum = 0;
        if (offset + bytes > file_size(f) || hash_part(j, f, offset, bytes, &sum, NULL) != NIB_OK ||
            sum != j->journal.sums[n])
            break;
    }
    return n;
}

/* Finds the number of valid finished tensors; logs if others are lost. */
static nib_status find_good(const job *j, size_t *n, nib_error *err) {
    const char *out = j->q->out;
    const size_t size = strlen(out) + sizeof ".part";
    file *f;
    if (j->journal.other)
        log_line(&j->log,
                 "%s.part was made by other settings, another input or another version: starting again", out);
    if (!j->journal.n)
        return NIB_OK;
    char *path = mem_alloc(size);
    if (!path)
        return nib_fail_nomem(err, size, "a file name");
    snprintf(path, size, "%s.part", out);
    if (file_open(path, 0, &f, NULL) == NIB_OK) {
        *n = count_good(j, f);
        file_close(f);
    }
    mem_free(path);
    if (*n < j->journal.n)
        log_line(&j->log,
                 "%s.part is damaged: of %zu finished tensors only the first %zu are intact; the others are "
                 "written again",
                 out, j->journal.n, *n);
    return NIB_OK;
}

static nib_status resume(job *j, nib_error *err) {
    uint64_t key;
    size_t n = 0;
    NIB_TRY(job_key(j, &key, err));
    NIB_TRY(journal_open(&j->journal, j->q->out, key, err));
    NIB_TRY(find_good(j, &n, err));
    NIB_TRY(journal_keep(&j->journal, n, err));
    for (; j->n_done < n; j->n_done++) {
        const uint64_t bytes = bytes_of(j, j->order[j->n_done]);
        NIB_TRY(gguf_writer_skip(j->writer, bytes, err));
        j->done += bytes;
    }
    j->report->n_resumed = (int)n;
    j->begun = true;
    return NIB_OK;
}

/* ---- opening ---- */

static int64_t longest_row(const job *j) {
    int64_t k = 1;
    for (size_t i = 0; i < j->n_tensor; i++)
        k = NUM_MAX(k, tensor_columns(&j->tensors.all[i].as));
    return k;
}

static bool moves_rows(const job *j) {
    for (size_t i = 0; i < j->n_tensor; i++)
        if (j->tensors.all[i].n_turn || j->tensors.all[i].transposed)
            return true;
    return false;
}

int64_t job_longest_product(const job *j) {
    int64_t k = 0;
    for (size_t i = 0; i < j->n_tensor; i++)
        if (j->uses[i].block > 0 && j->uses[i].product)
            k = NUM_MAX(k, tensor_columns(&j->tensors.all[i].as));
    return k;
}

static nib_status take_scratch(job *j, nib_error *err) {
    const int n_thread = pool_size(j->threads);
    const int64_t n_row = j->method == METHOD_GPTQ ? (int64_t)GPTQ_ROWS * n_thread : 1,
                  turned = j->rotate.m ? rotate_together(&j->rotate, &j->tensors) : 0;
    const row_needs needs = {.longest = longest_row(j),
                             .n_value = NUM_MAX(n_row * job_longest_product(j), turned),
                             .reorders = moves_rows(j),
                             .n_thread = n_thread};
    const uint64_t bytes = row_scratch_bytes(&needs);
    ledger_measure_runtime(j->ledger, false);
    NIB_TRY(ledger_charge(j->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, err));
    j->charged = bytes;
    return row_scratch_open(&j->scratch, &needs, err);
}

nib_status job_open(job *j, nib_error *err) {
    const uint64_t caps[NIB_N_TIER] = {j->options.ram, NIB_AUTO, NIB_AUTO};
    const int n_thread = j->options.n_thread ? j->options.n_thread : thread_physical_cores();
    NIB_TRY(ledger_open(places_of(caps), &j->ledger, err));
    NIB_TRY(pool_open(n_thread, &j->threads, err));
    NIB_TRY(decide(j, err));
    count_weights(j);
    NIB_TRY(take_scratch(j, err));
    NIB_TRY(gguf_writer_open_part(j->q->out, &j->writer, err));
    NIB_TRY(header_check(j, err));
    NIB_TRY(header_write(j, j->writer, err));
    return resume(j, err);
}

void job_close(job *j, bool refused) {
    const bool useless = j->begun && (refused || j->n_done == 0);
    (useless ? gguf_writer_discard : gguf_writer_abort)(j->writer);
    journal_close(&j->journal, useless);
    row_scratch_close(&j->scratch);
    if (j->ledger)
        ledger_release(j->ledger, PLACE_RAM, NIB_OWNER_STAGING, j->charged);
    pool_close(j->threads);
    ledger_close(j->ledger);
    stats_close(&j->stats);
    calibration_clear(&j->prompts);
    permute_close(&j->permute);
    rotate_close(&j->rotate);
    mem_free(j->block_types);
    mem_free(j->order);
    mem_free(j->types);
    mem_free(j->uses);
    gguf_tensors_close(&j->tensors);
    model_close(j->m);
}

nib_status job_commit(job *j, nib_error *err) {
    gguf_writer_set_cancel(j->writer, &j->cancel);
    const nib_status status = gguf_writer_commit(j->writer, err);
    j->writer = NULL;
    if (status == NIB_OK)
        journal_close(&j->journal, true);
    j->report->bytes_out = j->total;
    return status;
}
