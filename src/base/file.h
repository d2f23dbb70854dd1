/* file.h - reads files whose content is not trusted, and writes files that are whole or absent.
 *
 * Thread rule: file_read_at may be called from several threads on one file. */
#ifndef NIB_BASE_FILE_H
#define NIB_BASE_FILE_H

#include "base/cancel.h"

typedef struct file file;

enum { FILE_DIRECT = 1 /* bypass the page cache: O_DIRECT if the file system supports it, else fadvise */ };

/* Opens a regular file for reading. flags: FILE_DIRECT or 0. NIB_E_NOTFOUND; NIB_E_MODEL: no regular file;
 * NIB_E_IO. */
nib_status file_open(const char *path, unsigned flags, file **out, nib_error *err);
void file_close(file *f);
const char *file_path(const file *f);
uint64_t file_size(const file *f);   /* when it was opened */
int64_t file_changed(const file *f); /* nanoseconds since 1970 of the last change, when it was opened */
bool file_is_direct(const file *f);  /* offsets, sizes and buffers must then be multiples of FILE_ALIGN */
#define FILE_ALIGN 4096u
int file_handle(const file *f); /* the descriptor, for read_queue.c; stays the file's */

/* Reads exactly n bytes at offset; a short read is NIB_E_MODEL ("expected n bytes at ..., file ends at ..."),
 * a failing one NIB_E_IO. With FILE_DIRECT an unaligned request goes through an internal bounce buffer. */
nib_status file_read_at(file *f, void *out, uint64_t offset, uint64_t n_byte, nib_error *err);
/* A file without a name, for reading and writing, that ends with its last user: n_byte bytes of disk space in
 * this folder, which is made if it is missing. It is as with FILE_DIRECT. A full disk is NIB_E_IO;
 * NIB_E_NOFIT: less than a tenth of the file system would stay free. */
nib_status file_open_scratch(const char *folder, uint64_t n_byte, file **out, nib_error *err);
/* Writes to such a file. data, offset and n_byte are multiples of FILE_ALIGN. */
nib_status file_write_at(file *f, const void *data, uint64_t offset, uint64_t n_byte, nib_error *err);
void file_will_need(file *f, uint64_t offset, uint64_t n_byte); /* a readahead hint */
double file_cached(
    file *f); /* share of the file that is in the page cache (0 to 1), estimated from samples; 0: unknown */

/* Reads the whole file and adds a NUL (caller frees *out with mem_free). NIB_E_MODEL: it has more than `max`
 * bytes. */
nib_status file_read_all(const char *path, uint64_t max, char **out, size_t *n_byte, nib_error *err);

/* A writer whose file appears under its name only when file_writer_commit succeeds (temporary name, fsync,
 * rename). A full disk is a clear NIB_E_IO. */
typedef struct file_writer file_writer;
nib_status file_writer_open(const char *path, file_writer **out, nib_error *err);
/* The same for texts of users: only the owner may read the file. */
nib_status file_writer_open_private(const char *path, file_writer **out, nib_error *err);
nib_status file_writer_write(file_writer *w, const void *data, size_t n_byte, nib_error *err);
/* The same in steps that outlive the process: the file is PATH.part, which survives file_writer_abort, a full
 * disk and a killed process. It is opened with its content; writing begins at its start, and file_writer_skip
 * keeps bytes. Commit truncates it at the end of writing; abort removes an empty one. NIB_E_IO: another
 * process is writing it. */
nib_status file_writer_open_part(const char *path, file_writer **out, nib_error *err);
nib_status file_writer_skip(file_writer *w, uint64_t n_byte, nib_error *err); /* 0: flushes the buffer */
/* n zeros, as a hole that takes no disk space if the file system supports it. */
nib_status file_writer_hole(file_writer *w, uint64_t n_byte, nib_error *err);
/* Sets a canceller that commit polls after everything is written and before the file appears (syncing may
 * take a while): if it returns true, commit removes the file and returns NIB_E_CANCELLED. NULL: none. */
void file_writer_set_cancel(file_writer *w, const canceller *cancel);
nib_status file_writer_commit(file_writer *w, nib_error *err); /* frees w in any case */
void file_writer_abort(file_writer *w);                        /* removes what was written; NULL is fine */
void file_writer_discard(file_writer *w);                      /* the same, and PATH.part too */
/* status: of the writing so far. Commits if it is NIB_OK, else aborts. Returns the first error. */
nib_status file_writer_end(file_writer *w, nib_status status, nib_error *err);
/* Writes a whole file at once, with the guarantees of a writer. */
nib_status file_write_all(const char *path, const void *data, size_t n_byte, nib_error *err);

bool path_is_dir(const char *path); /* follows symbolic links */
bool path_exists(const char *path);
/* Makes the missing parent folders of `path`. */
nib_status path_make_folders(const char *path, nib_error *err);
/* Bytes that may be written there, or in its nearest existing parent, while a tenth of the file system stays
 * free; 0: unknown. */
uint64_t path_disk_left(const char *folder);
char *path_join(const char *folder, const char *name); /* caller frees with mem_free; NULL: no memory */
/* $XDG_CACHE_HOME/nibble, $XDG_DATA_HOME/nibble, $XDG_STATE_HOME/nibble with the standard fallbacks; caller
 * frees. */
char *path_cache_dir(void);
char *path_data_dir(void);
char *path_state_dir(void);

#endif
