/* packed_file.h - the packed file: a model's weights in the order of the image, so that they are packed once
 * and later only read.
 *
 *     [header: 4 KiB][image: a multiple of 4 KiB][checksums][checksums of second slices]
 *
 * Checksums: 8 bytes for each unit of the image (page_layout.h), and 8 of all these. The image ends with
 * second slices (page_layout.h), if there are any. A run without them uses the same file and does not read
 * them.
 *
 * The file is not trusted: its header and size must be exactly what this program would write for this model
 * now, the table of checksums has its own checksum, and each unit is checked when it is read. A file appears
 * under its name only when it is whole. */
#ifndef NIB_WEIGHTS_PACKED_FILE_H
#define NIB_WEIGHTS_PACKED_FILE_H

#include "base/file.h"
#include "base/log.h"

/* What identifies the file, and its size. */
typedef struct packed_what {
    uint64_t key[2];    /* contents of the model, and how each weight is packed: the file's name */
    uint64_t source[2]; /* hash of the sizes and modification times of the model's files */
    uint64_t image_bytes, n_unit;
    uint64_t second_key[2]; /* the same of second slices, at the end; all 0: none */
    uint64_t second_bytes, second_unit;
} packed_what;

typedef struct packed packed;

uint64_t packed_file_bytes(const packed_what *what); /* size of the whole file */
/* FOLDER/<key>.nibpack; caller frees. NULL: no memory. */
char *packed_path(const char *folder, const packed_what *what);
/* Whether a file exists whose header matches `what`, apart from `source`. */
bool packed_exists(const char *path, const packed_what *what);

/* NIB_E_NOTFOUND: no such file. NIB_E_MODEL: it does not match, with the reason. Reads bypass the page cache,
 * unless the file is cached already and no weights are streamed: with streaming the page cache would use
 * memory beyond the cap for the whole run. */
nib_status packed_open(const char *path, const packed_what *what, bool streams, packed **out, nib_error *err);
void packed_close(packed *k);                         /* NULL is fine */
file *packed_image(const packed *k, uint64_t *begin); /* owned by k; *begin: the image's offset */
const char *packed_name(const packed *k);             /* the file's path */
uint64_t packed_heap_bytes(const packed *k);          /* of the checksums, for the ledger */
uint64_t packed_disk_bytes(const packed *k);          /* size of the file, unused second slices included */
/* Whether the n_byte bytes at `data` have the checksum of this unit. Any thread. */
bool packed_check(const packed *k, uint64_t unit, const void *data, uint64_t n_byte);

/* Writes a packed file: every unit once, in order. The file appears at commit. */
typedef struct packed_writer packed_writer;
nib_status packed_writer_open(const char *path, const packed_what *what, packed_writer **out, nib_error *err);
nib_status packed_writer_put(packed_writer *w, const void *unit, uint64_t n_byte, nib_error *err);
nib_status packed_writer_commit(packed_writer *w, nib_error *err); /* frees w in any case */
void packed_writer_abort(packed_writer *w);                        /* NULL is fine */

/* Makes space for n_byte more bytes: removes unfinished files of interrupted writers, then the least recently
 * used packed files except `keep` (a file name, or NULL), until all of them fit in `max` bytes and leave a
 * tenth of the file system free. Creates the folder. NIB_E_NOFIT: they cannot fit; NIB_E_IO: the folder
 * cannot be created or read. */
nib_status packed_evict(const char *folder, uint64_t max, uint64_t n_byte, const char *keep,
                        const logger *log, nib_error *err);

#endif
