/* loader.c - reads rows of weights with as few calls as their order in the files allows, and packs them panel
 * by panel. */
#include "weights/loader.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* A direct read begins and ends at multiples of FILE_ALIGN: maximum number of extra bytes at both ends. */
#define EDGES (2 * (uint64_t)FILE_ALIGN)

#define NEARLY_ALL 0.9

typedef struct source {
    file *f;
    bool own;
    struct stat at_open;
    bool have_stat;
} source;

struct loader {
    const container *c;
    int n_file;
    source *files;
};

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

nib_status loader_open(const model *m, bool direct, loader **out, nib_error *err) {
    const container *c = model_container(m);
    int n = container_n_file(c);
    loader *ld = mem_calloc(1, sizeof *ld);
    if (ld)
        ld->files = mem_calloc((size_t)n, sizeof *ld->files);
    if (!ld || !ld->files) {
        mem_free(ld);
        return nib_fail_nomem(err, (size_t)n * sizeof *ld->files, "the list of weight files");
    }
    ld->c = c;
    ld->n_file = n;
    for (int i = 0; i < n; i++) {
        source *s = &ld->files[i];
        file *have = container_file(c, i);
        s->have_stat = stat(file_path(have), &s->at_open) == 0;
        s->f = have;
        if (!direct)
            continue;
        nib_status status = file_open(file_path(have), FILE_DIRECT, &s->f, err);
        s->own = status == NIB_OK;
        if (status == NIB_OK && file_size(s->f) != file_size(have))
            status = nib_fail(err, NIB_E_IO,
                              "%s: expected an unchanged file, it changed while the model was opened",
                              file_path(have));
        if (status != NIB_OK) {
            loader_close(ld);
            return status;
        }
    }
    *out = ld;
    return NIB_OK;
}

void loader_close(loader *ld) {
    if (!ld)
        return;
    for (int i = 0; i < ld->n_file; i++)
        if (ld->files[i].own)
            file_close(ld->files[i].f);
    mem_free(ld->files);
    mem_free(ld);
}

bool loader_is_cached(const model *m) {
    const container *c = model_container(m);
    for (int i = 0; i < container_n_file(c); i++)
        if (file_cached(container_file(c, i)) < NEARLY_ALL)
            return false;
    return true;
}

bool loader_identity(const loader *ld, uint64_t out[2]) {
    XXH128_hash_t so_far = {0, 0};
    for (int i = 0; i < ld->n_file; i++) {
        const struct stat *at = &ld->files[i].at_open;
        const int64_t mark[] = {at->st_size, at->st_mtim.tv_sec, at->st_mtim.tv_nsec, (int64_t)so_far.high64};
        if (!ld->files[i].have_stat)
            return false;
        so_far = XXH3_128bits_withSeed(mark, sizeof mark, so_far.low64);
    }
    out[0] = so_far.high64;
    out[1] = so_far.low64;
    return true;
}

nib_status loader_check_unchanged(const loader *ld, nib_error *err) {
    for (int i = 0; i < ld->n_file; i++) {
        const source *s = &ld->files[i];
        struct stat now;
        if (!s->have_stat)
            continue;
        if (stat(file_path(s->f), &now) != 0)
            return nib_fail_errno(err, "cannot read the properties of", file_path(s->f), errno);
        if (now.st_size != s->at_open.st_size || now.st_mtim.tv_sec != s->at_open.st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != s->at_open.st_mtim.tv_nsec || now.st_ino != s->at_open.st_ino)
            return nib_fail(err, NIB_E_IO, "%s: the file changed while the model was running",
                            file_path(s->f));
    }
    return NIB_OK;
}

uint64_t loader_row_bytes(const weight *w) {
    uint64_t bytes = 0;
    type_row_bytes(w->type, w->vector ? 1 : w->transposed ? w->k : weight_file_k(w), &bytes);
    return bytes;
}

uint64_t loader_skipped_bytes(const weight *w) {
    uint64_t bytes = 0;
    if (w->first_col > 0 && !w->vector && !w->transposed) /* a row with a codebook is whole */
        type_row_bytes(w->type, w->first_col, &bytes);
    return bytes;
}

nib_status loader_check_vector(const weight *w, nib_error *err) {
    const type_info *type = type_get(w->type);
    if (!type->dequantize || type->block_elems != 1)
        return nib_fail(err, NIB_E_MODEL, "weight %s: expected a vector of a float type, found %s", w->name,
                        type->name);
    return NIB_OK;
}

static void change_vector(const weight *w, float *out) {
    for (int64_t i = 0; w->times && i < w->k; i++)
        out[i] *= w->times[i];
    if (w->minus_exp)
        for (int64_t i = 0; i < w->k; i++)
            out[i] = -expf(out[i]);
    if (w->add != 0)
        for (int64_t i = 0; i < w->k; i++)
            out[i] += w->add;
}

typedef struct buffer_plan {
    uint64_t raw, transposed, scratch;
} buffer_plan;

static buffer_plan plan_buffer(const layout *lay, uint64_t raw_target) {
    buffer_plan p = {0, 0, 0};
    for (int i = 0; i < layout_n_block(lay); i++) {
        const block *blk = layout_block(lay, i);
        for (int j = 0; j < blk->n_weight; j++) {
            const weight *w = &blk->weights[j];
            if (w->shared_block >= 0)
                continue;
            uint64_t panel = (w->vector ? (uint64_t)w->k : PACK_PANEL) * loader_row_bytes(w);
            p.raw = NUM_MAX(p.raw, panel);
            if (w->vector)
                continue;
            if (w->transposed)
                p.transposed = NUM_MAX(p.transposed, panel);
            p.scratch = NUM_MAX(p.scratch, pack_scratch_bytes(&w->format, w->k));
        }
    }
    p.raw = (uint64_t)num_round_up((int64_t)p.raw, FILE_ALIGN) + EDGES;
    p.raw = NUM_MAX(p.raw, raw_target / FILE_ALIGN * FILE_ALIGN);
    p.transposed = round64(p.transposed);
    p.scratch = round64(p.scratch);
    return p;
}

uint64_t load_raw_bytes(const layout *lay, uint64_t raw_target) {
    return plan_buffer(lay, raw_target).raw;
}

uint64_t load_buffer_bytes(const layout *lay, uint64_t raw_target, int depth) {
    buffer_plan p = plan_buffer(lay, raw_target);
    return p.raw * (uint64_t)depth + p.transposed + p.scratch;
}

nib_status load_buffer_init(load_buffer *b, const layout *lay, uint64_t raw_target, int depth, uint8_t *raw,
                            nib_error *err) {
    buffer_plan p = plan_buffer(lay, raw_target);
    memset(b, 0, sizeof *b);
    const uint64_t own_raw = raw ? 0 : p.raw * (uint64_t)depth, bytes = own_raw + p.transposed + p.scratch;
    b->map = mem_map(bytes);
    if (!b->map)
        return nib_fail_nomem(err, bytes, "staging");
    b->bytes = bytes;
    b->raw = raw ? raw : b->map;
    b->raw_bytes = p.raw;
    b->transposed = (uint8_t *)b->map + own_raw;
    b->scratch = b->transposed + p.transposed;
    return NIB_OK;
}

void load_buffer_deinit(load_buffer *b) {
    if (b->map)
        mem_unmap(b->map, b->bytes);
    memset(b, 0, sizeof *b);
}

const weight_piece *loader_piece(const weight *w, int64_t r, int64_t *row_in_tensor, int64_t *n_left) {
    for (int i = 0; i < w->n_piece; i++) {
        const weight_piece *p = &w->pieces[i];
        if (r < p->n_row) {
            *row_in_tensor = p->first_row + r;
            *n_left = p->n_row - r;
            return p;
        }
        r -= p->n_row;
    }
    return NULL;
}

file *loader_file(const loader *ld, int i) {
    return ld->files[i].f;
}

static nib_status no_row(const weight *w, int64_t r, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "weight %s: no piece has row %lld", w->name, (long long)r);
}

int64_t loader_rows_at_once(const weight *w, const load_buffer *b) {
    uint64_t rows = (b->raw_bytes - EDGES) / NUM_MAX(loader_row_bytes(w), 1);
    int64_t n = (int64_t)NUM_MIN(rows, (uint64_t)NUM_MAX(w->n, PACK_PANEL)) / PACK_PANEL * PACK_PANEL;
    return NUM_MIN(NUM_MAX(n, PACK_PANEL), LOADER_MAX_ROWS);
}

bool loader_extent(const loader *ld, const weight *w, int64_t first, int64_t n_row, uint64_t max,
                   load_extent *out) {
    uint64_t each = loader_row_bytes(w), lo = UINT64_MAX, hi = 0;
    int64_t row, left;
    int which = -1;
    if (w->transposed)
        return false;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &row, &left);
        if (!p || p->tensor->packed || (which >= 0 && which != p->tensor->file))
            return false;
        left = NUM_MIN(left, n_row - i);
        which = p->tensor->file;
        uint64_t begin = p->tensor->offset + (uint64_t)row * each;
        lo = NUM_MIN(lo, begin);
        hi = NUM_MAX(hi, begin + (uint64_t)left * each);
    }
    if (which < 0)
        return false;
    lo -= lo % FILE_ALIGN;
    if (hi - lo > max || (uint64_t)num_round_up((int64_t)(hi - lo), FILE_ALIGN) > max)
        return false;
    *out = (load_extent){ld->files[which].f, lo, (uint64_t)num_round_up((int64_t)(hi - lo), FILE_ALIGN),
                         hi - lo};
    return true;
}

void loader_pack_rows(const weight *w, const void *const *rows, int64_t at, int64_t n, const load_target *to,
                      const load_buffer *b) {
    const pack_from from = {.type = w->type, .imatrix = w->imatrix, .plain = w->plain, .over = w->over};
    for (int64_t i = 0; i < n; i += PACK_PANEL)
        pack_panel_from(&w->format, &from, w->k, to->dst_first + at + i, (int)NUM_MIN(PACK_PANEL, n - i),
                        rows + i, to->dst, b->scratch);
}

void loader_pack(const weight *w, int64_t first, int64_t n_row, const load_target *to,
                 const load_extent *from, const uint8_t *raw, const load_buffer *b) {
    const void *rows[LOADER_MAX_ROWS];
    const uint64_t each = loader_row_bytes(w), skipped = loader_skipped_bytes(w);
    int64_t row, left;
    float *out = to->dst;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &row, &left);
        left = NUM_MIN(left, n_row - i);
        const uint8_t *at = raw + (p->tensor->offset + (uint64_t)row * each - from->offset);
        if (w->vector)
            type_get(w->type)->dequantize(at, out + i, left);
        for (int64_t j = 0; j < left && !w->vector; j++)
            rows[i + j] = at + (uint64_t)j * each + skipped;
    }
    if (w->vector)
        change_vector(w, out);
    else
        loader_pack_rows(w, rows, 0, n_row, to, b);
}

/* Reads rows that are in several files, or too far apart for one read. */
static nib_status read_scattered(const loader *ld, const weight *w, int64_t first, int64_t n_row,
                                 load_buffer *b, const void **rows, nib_error *err) {
    uint64_t each = loader_row_bytes(w), at = 0;
    int64_t row, left;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &row, &left);
        if (!p)
            return no_row(w, first + i, err);
        left = NUM_MIN(left, n_row - i);
        if (p->tensor->packed)
            NIB_TRY(packed_read(ld->c, p->tensor, row, left, w->type, b->raw + at, err));
        else
            NIB_TRY(file_read_at(ld->files[p->tensor->file].f, b->raw + at,
                                 p->tensor->offset + (uint64_t)row * each, (uint64_t)left * each, err));
        for (int64_t j = 0; j < left; j++)
            rows[i + j] = b->raw + at + (uint64_t)j * each + loader_skipped_bytes(w);
        at += (uint64_t)left * each;
    }
    return NIB_OK;
}

/* The same for a matrix that the file holds as [k, columns]: row r of w is column r of the piece. Reads k
 * short segments to the buffer, as [k, n_row], through the page cache, because it keeps the bytes between
 * them for the next columns. */
static nib_status read_columns(const loader *ld, const weight *w, int64_t first, int64_t n_row,
                               load_buffer *b, nib_error *err) {
    uint64_t elem = loader_row_bytes(w) / (uint64_t)w->k;
    int64_t col, left;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &col, &left);
        if (!p)
            return no_row(w, first + i, err);
        left = NUM_MIN(left, n_row - i);
        int64_t n_col = p->tensor->shape[1];
        for (int64_t r = 0; r < w->k; r++)
            NIB_TRY(file_read_at(container_file(ld->c, p->tensor->file),
                                 b->raw + (uint64_t)(r * n_row + i) * elem,
                                 p->tensor->offset + (uint64_t)((w->first_col + r) * n_col + col) * elem,
                                 (uint64_t)left * elem, err));
    }
    return NIB_OK;
}

static void turn_panel(const weight *w, const load_buffer *b, int64_t i0, int64_t n, int64_t n_row,
                       const void **rows) {
    uint64_t elem = loader_row_bytes(w) / (uint64_t)w->k;
    for (int64_t i = 0; i < n; i++) {
        uint8_t *out = b->transposed + (uint64_t)(i * w->k) * elem;
        for (int64_t r = 0; r < w->k; r++)
            memcpy(out + (uint64_t)r * elem, b->raw + (uint64_t)(r * n_row + i0 + i) * elem, elem);
        rows[i] = out;
    }
}

/* n_row: at most the rows that fit the buffer (loader_rows_at_once). */
static nib_status load_rows(const loader *ld, const weight *w, int64_t first, int64_t n_row,
                            const load_target *to, load_buffer *b, nib_error *err) {
    const void *rows[LOADER_MAX_ROWS];
    load_extent all;
    if (loader_extent(ld, w, first, n_row, b->raw_bytes, &all)) {
        NIB_TRY(file_read_at(all.f, b->raw, all.offset, all.min, err));
        loader_pack(w, first, n_row, to, &all, b->raw, b);
        return NIB_OK;
    }
    if (!w->transposed) {
        NIB_TRY(read_scattered(ld, w, first, n_row, b, rows, err));
        loader_pack_rows(w, rows, 0, n_row, to, b);
        return NIB_OK;
    }
    NIB_TRY(read_columns(ld, w, first, n_row, b, err));
    for (int64_t i = 0; i < n_row; i += PACK_PANEL) {
        int64_t panel = NUM_MIN(PACK_PANEL, n_row - i);
        turn_panel(w, b, i, panel, n_row, rows);
        loader_pack_rows(w, rows, i, panel, to, b);
    }
    return NIB_OK;
}

nib_status loader_matrix(const loader *ld, const weight *w, int64_t first, int64_t n_row,
                         const load_target *to, load_buffer *b, nib_error *err) {
    int64_t at_once = loader_rows_at_once(w, b);
    for (int64_t done = 0; done < n_row; done += at_once) {
        load_target part = {to->dst, to->dst_n, to->dst_first + done};
        NIB_TRY(load_rows(ld, w, first + done, NUM_MIN(at_once, n_row - done), &part, b, err));
    }
    return NIB_OK;
}

nib_status loader_vector(const loader *ld, const weight *w, float *out, load_buffer *b, nib_error *err) {
    const type_info *type = type_get(w->type);
    uint64_t each = (uint64_t)type->block_bytes;
    int64_t row, left;
    NIB_TRY(loader_check_vector(w, err));
    for (int64_t i = 0; i < w->k; i += left) {
        const weight_piece *p = loader_piece(w, i, &row, &left);
        if (!p)
            return no_row(w, i, err);
        left = NUM_MIN(left, w->k - i);
        NIB_TRY(file_read_at(ld->files[p->tensor->file].f, b->raw, p->tensor->offset + (uint64_t)row * each,
                             (uint64_t)left * each, err));
        type->dequantize(b->raw, out + i, left);
    }
    change_vector(w, out);
    return NIB_OK;
}
