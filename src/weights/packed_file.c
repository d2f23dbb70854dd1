/* packed_file.c - the format of the packed file. Numbers have the machine's byte order; a file with another
 * one does not match. */
#include "weights/packed_file.h"

#include "base/mem.h"
#include "base/num.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NEARLY_ALL 0.9

typedef struct packed_header {
    char magic[8];
    packed_what what;
    uint64_t zero[500];
    uint64_t hash; /* of all fields before it */
} packed_header;
_Static_assert(sizeof(packed_header) == FILE_ALIGN, "the image begins at a page");

/* Sums: [n_unit + 1], then, with second slices, [second_unit + 1]. */
struct packed {
    file *f;
    packed_what what; /* the part of the file that is used */
    uint64_t *sums;
};

struct packed_writer {
    file_writer *out;
    packed_what what;
    uint64_t n_put, n_byte;
    uint64_t *sums;
};

static void fill_header(const packed_what *what, packed_header *header) {
    memset(header, 0, sizeof *header);
    memcpy(header->magic, "NIBPACK2", sizeof header->magic);
    header->what = *what;
    header->hash = XXH3_64bits(header, sizeof *header - sizeof header->hash);
}

/* The last entry of each table is a checksum of the header and of the other entries. */
static uint64_t sum_of_sums(const packed_header *header, const uint64_t *sums, uint64_t n_unit) {
    return XXH3_64bits_withSeed(sums, (size_t)n_unit * sizeof *sums, header->hash);
}

static uint64_t *second_sums(const packed_what *what, uint64_t *sums) {
    return sums + what->n_unit + 1;
}

static bool table_bytes(const packed_what *what, uint64_t *bytes) {
    uint64_t n, second = what->second_unit;
    return (second == 0 || num_add_u64(second, 1, &second)) && num_add_u64(what->n_unit, 1, &n) &&
           num_add_u64(n, second, &n) && num_mul_u64(n, sizeof(uint64_t), bytes);
}

uint64_t packed_file_bytes(const packed_what *what) {
    uint64_t table, all;
    if (!table_bytes(what, &table) || !num_add_u64(table, what->image_bytes, &all) ||
        !num_add_u64(all, what->second_bytes, &all) || !num_add_u64(all, sizeof(packed_header), &all))
        return UINT64_MAX;
    return all;
}

char *packed_path(const char *folder, const packed_what *what) {
    char name[48];
    snprintf(name, sizeof name, "%016llx%016llx.nibpack", (unsigned long long)what->key[0],
             (unsigned long long)what->key[1]);
    return path_join(folder, name);
}

/* Whether a header is intact and has the required content; it may have second slices in addition. */
static bool header_fits(const packed_header *found, const packed_what *what) {
    packed_what has = what->second_unit ? *what : found->what;
    packed_header expected;
    memcpy(has.key, what->key, sizeof has.key);
    memcpy(has.source, what->source, sizeof has.source);
    has.image_bytes = what->image_bytes;
    has.n_unit = what->n_unit;
    fill_header(&has, &expected);
    return !memcmp(found, &expected, sizeof expected);
}

bool packed_exists(const char *path, const packed_what *what) {
    packed_header *found = mem_alloc_aligned(FILE_ALIGN, sizeof *found);
    packed_what wanted = *what;
    file *f = NULL;
    bool fits = found && file_open(path, 0, &f, NULL) == NIB_OK &&
                file_read_at(f, found, 0, sizeof *found, NULL) == NIB_OK;
    if (fits) {
        memcpy(wanted.source, found->what.source, sizeof wanted.source);
        fits = header_fits(found, &wanted);
    }
    file_close(f);
    mem_free(found);
    return fits;
}

static nib_status check_tables(packed *k, const packed_header *header, nib_error *err) {
    uint64_t table;
    const packed_what *what = &k->what;
    if (!table_bytes(what, &table) || !(k->sums = mem_alloc(table)))
        return nib_fail_nomem(err, sizeof *header, "a packed file's checksums");
    const uint64_t at = sizeof *header + header->what.image_bytes + header->what.second_bytes;
    NIB_TRY(file_read_at(k->f, k->sums, at, table, err));
    if (k->sums[what->n_unit] == sum_of_sums(header, k->sums, what->n_unit) &&
        (what->second_unit == 0 || second_sums(what, k->sums)[what->second_unit] ==
                                       sum_of_sums(header, second_sums(what, k->sums), what->second_unit)))
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL, "%s: the table of checksums is damaged", file_path(k->f));
}

static nib_status check_file(packed *k, nib_error *err) {
    const char *path = file_path(k->f);
    packed_header *found = mem_alloc_aligned(FILE_ALIGN, sizeof *found);
    if (!found)
        return nib_fail_nomem(err, sizeof *found, "a packed file's header");
    nib_status status = file_read_at(k->f, found, 0, sizeof *found, err);
    if (status == NIB_OK && !header_fits(found, &k->what))
        status =
            nib_fail(err, NIB_E_MODEL,
                     "%s: expected the header for these weights and this version, found another one", path);
    if (status == NIB_OK && file_size(k->f) != packed_file_bytes(&found->what))
        status = nib_fail(err, NIB_E_MODEL, "%s: expected %llu bytes, found %llu", path,
                          (unsigned long long)packed_file_bytes(&found->what),
                          (unsigned long long)file_size(k->f));
    if (status == NIB_OK)
        status = check_tables(k, found, err);
    mem_free(found);
    return status;
}

/* The time of the last use, for packed_evict. */
static void note_use(const char *path) {
    (void)utimensat(AT_FDCWD, path, NULL, 0);
}

nib_status packed_open(const char *path, const packed_what *what, bool streams, packed **out,
                       nib_error *err) {
    packed *k = mem_calloc(1, sizeof *k);
    if (!k)
        return nib_fail_nomem(err, sizeof *k, "a packed file");
    k->what = *what;
    nib_status status = file_open(path, 0, &k->f, err);
    if (status == NIB_OK && (streams || file_cached(k->f) < NEARLY_ALL)) {
        file *round = NULL;
        if (file_open(path, FILE_DIRECT, &round, NULL) == NIB_OK) {
            file_close(k->f);
            k->f = round;
        }
    }
    if (status == NIB_OK)
        status = check_file(k, err);
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
    *begin = sizeof(packed_header);
    return k->f;
}

const char *packed_name(const packed *k) {
    return file_path(k->f);
}

uint64_t packed_heap_bytes(const packed *k) {
    uint64_t bytes = 0;
    table_bytes(&k->what, &bytes);
    return bytes;
}

uint64_t packed_disk_bytes(const packed *k) {
    return file_size(k->f);
}

bool packed_check(const packed *k, uint64_t unit, const void *data, uint64_t n_byte) {
    const packed_what *what = &k->what;
    if (unit >= what->n_unit + what->second_unit)
        return false;
    return XXH3_64bits(data, (size_t)n_byte) == k->sums[unit + (unit >= what->n_unit)];
}

/* ---- writing ---- */

nib_status packed_writer_open(const char *path, const packed_what *what, packed_writer **out,
                              nib_error *err) {
    uint64_t table;
    packed_header header;
    packed_writer *w = mem_calloc(1, sizeof *w);
    if (w)
        w->sums = table_bytes(what, &table) ? mem_alloc(table) : NULL;
    if (!w || !w->sums) {
        packed_writer_abort(w);
        return nib_fail_nomem(err, sizeof *w, "writing a packed file");
    }
    w->what = *what;
    fill_header(what, &header);
    nib_status status = file_writer_open(path, &w->out, err);
    if (status == NIB_OK)
        status = file_writer_write(w->out, &header, sizeof header, err);
    if (status != NIB_OK) {
        packed_writer_abort(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

nib_status packed_writer_put(packed_writer *w, const void *unit, uint64_t n_byte, nib_error *err) {
    const uint64_t n_unit = w->what.n_unit + w->what.second_unit;
    if (w->n_put == n_unit || n_byte > w->what.image_bytes + w->what.second_bytes - w->n_byte)
        return nib_fail(err, NIB_E_FAILED,
                        "expected no more units than were declared for the packed file, found one more");
    w->sums[w->n_put + (w->n_put >= w->what.n_unit)] = XXH3_64bits(unit, (size_t)n_byte);
    w->n_put++;
    w->n_byte += n_byte;
    return file_writer_write(w->out, unit, (size_t)n_byte, err);
}

nib_status packed_writer_commit(packed_writer *w, nib_error *err) {
    const packed_what *what = &w->what;
    const uint64_t n_unit = what->n_unit + what->second_unit;
    uint64_t table = 0;
    packed_header header;
    nib_status status = NIB_OK;
    if (w->n_put != n_unit || w->n_byte != what->image_bytes + what->second_bytes)
        status = nib_fail(err, NIB_E_FAILED, "expected %llu units for the packed file, found %llu",
                          (unsigned long long)n_unit, (unsigned long long)w->n_put);
    fill_header(what, &header);
    w->sums[what->n_unit] = sum_of_sums(&header, w->sums, what->n_unit);
    if (what->second_unit)
        second_sums(what, w->sums)[what->second_unit] =
            sum_of_sums(&header, second_sums(what, w->sums), what->second_unit);
    table_bytes(what, &table); /* was checked when the writer was opened */
    if (status == NIB_OK)
        status = file_writer_write(w->out, w->sums, (size_t)table, err);
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
