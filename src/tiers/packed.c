/* packed.c - the packed file's form. Its numbers are the machine's own: another byte order does not match. */
#include "tiers/packed.h"

#include "base/mem.h"
#include "base/num.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NEARLY_ALL 0.9

typedef struct packed_head {
    char magic[8];
    packed_what what;
    uint64_t zero[504];
    uint64_t hash; /* of everything before */
} packed_head;
_Static_assert(sizeof(packed_head) == FILE_ALIGN, "the image begins at a page");

struct packed {
    file *f;
    uint64_t n_unit;
    uint64_t *sums; /* [n_unit + 1] */
};

struct packed_writer {
    file_writer *out;
    packed_what what;
    uint64_t n_put, n_byte;
    uint64_t *sums; /* [n_unit + 1] */
};

static void fill_head(const packed_what *what, packed_head *head) {
    memset(head, 0, sizeof *head);
    memcpy(head->magic, "NIBPACK1", sizeof head->magic);
    head->what = *what;
    head->hash = XXH3_64bits(head, sizeof *head - sizeof head->hash);
}

/* The last entry covers the head and the others. */
static uint64_t sum_of_sums(const packed_head *head, const uint64_t *sums, uint64_t n_unit) {
    return XXH3_64bits_withSeed(sums, (size_t)n_unit * sizeof *sums, head->hash);
}

static bool table_bytes(const packed_what *what, uint64_t *bytes) {
    uint64_t n;
    return num_add_u64(what->n_unit, 1, &n) && num_mul_u64(n, sizeof(uint64_t), bytes);
}

uint64_t packed_file_bytes(const packed_what *what) {
    uint64_t table, all;
    if (!table_bytes(what, &table) || !num_add_u64(table, what->image_bytes, &all) ||
        !num_add_u64(all, sizeof(packed_head), &all))
        return UINT64_MAX;
    return all;
}

char *packed_path(const char *folder, const packed_what *what) {
    char name[48];
    snprintf(name, sizeof name, "%016llx%016llx.nibpack", (unsigned long long)what->key[0],
             (unsigned long long)what->key[1]);
    return path_join(folder, name);
}

static nib_status check_file(packed *k, const packed_what *what, nib_error *err) {
    const char *path = file_path(k->f);
    uint64_t table, size = packed_file_bytes(what);
    packed_head expected, *found = mem_alloc_aligned(FILE_ALIGN, sizeof *found);
    if (!found || !table_bytes(what, &table) || !(k->sums = mem_alloc(table))) {
        mem_free(found);
        return nib_fail_nomem(err, sizeof *found, "a packed file's checksums");
    }
    fill_head(what, &expected);
    nib_status status = NIB_OK;
    if (file_size(k->f) != size)
        status = nib_fail(err, NIB_E_MODEL, "%s: expected %llu bytes, found %llu", path,
                          (unsigned long long)size, (unsigned long long)file_size(k->f));
    if (status == NIB_OK)
        status = file_read_at(k->f, found, 0, sizeof *found, err);
    if (status == NIB_OK && memcmp(found, &expected, sizeof expected))
        status = nib_fail(err, NIB_E_MODEL, "%s: made for other weights, or by another version", path);
    if (status == NIB_OK)
        status = file_read_at(k->f, k->sums, sizeof *found + what->image_bytes, table, err);
    if (status == NIB_OK && k->sums[what->n_unit] != sum_of_sums(&expected, k->sums, what->n_unit))
        status = nib_fail(err, NIB_E_MODEL, "%s: the table of checksums is damaged", path);
    mem_free(found);
    return status;
}

/* The time of the last use, for packed_make_room. */
static void note_use(const char *path) {
    (void)utimensat(AT_FDCWD, path, NULL, 0);
}

nib_status packed_open(const char *path, const packed_what *what, bool streams, packed **out,
                       nib_error *err) {
    packed *k = mem_calloc(1, sizeof *k);
    if (!k)
        return nib_fail_nomem(err, sizeof *k, "a packed file");
    k->n_unit = what->n_unit;
    nib_status status = file_open(path, 0, &k->f, err);
    if (status == NIB_OK && (streams || file_cached(k->f) < NEARLY_ALL)) {
        file *round = NULL;
        if (file_open(path, FILE_DIRECT, &round, NULL) == NIB_OK) {
            file_close(k->f);
            k->f = round;
        }
    }
    if (status == NIB_OK)
        status = check_file(k, what, err);
    if (status != NIB_OK) {
        packed_close(k);
        return status;
    }
    note_use(path);
    *out = k;
    return NIB_OK;
}

void packed_close(packed *k) {
    if (!k)
        return;
    file_close(k->f);
    mem_free(k->sums);
    mem_free(k);
}

file *packed_image(const packed *k, uint64_t *begin) {
    *begin = sizeof(packed_head);
    return k->f;
}

const char *packed_name(const packed *k) {
    return file_path(k->f);
}

uint64_t packed_heap_bytes(const packed *k) {
    return (k->n_unit + 1) * sizeof *k->sums;
}

bool packed_check(const packed *k, uint64_t unit, const void *data, uint64_t n_byte) {
    return unit < k->n_unit && XXH3_64bits(data, (size_t)n_byte) == k->sums[unit];
}

/* ---- writing ---- */

nib_status packed_writer_open(const char *path, const packed_what *what, packed_writer **out,
                              nib_error *err) {
    uint64_t table;
    packed_head head;
    packed_writer *w = mem_calloc(1, sizeof *w);
    if (w)
        w->sums = table_bytes(what, &table) ? mem_alloc(table) : NULL;
    if (!w || !w->sums) {
        packed_writer_abort(w);
        return nib_fail_nomem(err, sizeof *w, "writing a packed file");
    }
    w->what = *what;
    fill_head(what, &head);
    nib_status status = file_writer_open(path, &w->out, err);
    if (status == NIB_OK)
        status = file_writer_write(w->out, &head, sizeof head, err);
    if (status != NIB_OK) {
        packed_writer_abort(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

nib_status packed_writer_put(packed_writer *w, const void *unit, uint64_t n_byte, nib_error *err) {
    if (w->n_put == w->what.n_unit || n_byte > w->what.image_bytes - w->n_byte)
        return nib_fail(err, NIB_E_FAILED, "more units than the packed file has place for");
    w->sums[w->n_put++] = XXH3_64bits(unit, (size_t)n_byte);
    w->n_byte += n_byte;
    return file_writer_write(w->out, unit, (size_t)n_byte, err);
}

nib_status packed_writer_commit(packed_writer *w, nib_error *err) {
    packed_head head;
    nib_status status = NIB_OK;
    if (w->n_put != w->what.n_unit || w->n_byte != w->what.image_bytes)
        status = nib_fail(err, NIB_E_FAILED, "expected %llu units for the packed file, found %llu",
                          (unsigned long long)w->what.n_unit, (unsigned long long)w->n_put);
    fill_head(&w->what, &head);
    w->sums[w->what.n_unit] = sum_of_sums(&head, w->sums, w->what.n_unit);
    if (status == NIB_OK)
        status = file_writer_write(w->out, w->sums, (size_t)(w->what.n_unit + 1) * sizeof *w->sums, err);
    if (status == NIB_OK) {
        status = file_writer_commit(w->out, err);
        w->out = NULL;
    }
    packed_writer_abort(w);
    return status;
}

void packed_writer_abort(packed_writer *w) {
    if (!w)
        return;
    file_writer_abort(w->out);
    mem_free(w->sums);
    mem_free(w);
}
