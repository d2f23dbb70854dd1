/* files.h - the files of /v1/files: what clients have uploaded, and what batches have written, in one folder.
 *
 *     FOLDER/file-ID        the content
 *     FOLDER/file-ID.json   {"filename","purpose","created_at"}; written after the content, so a file without
 *                           it is not there
 *     FOLDER/batch_ID.json  a batch (batches.h)
 *
 * Only the owner can read the folder. Everything is written under a temporary name, synced and renamed,
 * except the results of a running batch, which grow line by line. Thread rule: libmicrohttpd's thread and the
 * computing thread; nothing is kept in memory. */
#ifndef NIB_SERVER_FILES_H
#define NIB_SERVER_FILES_H

#include "server/exchange.h"

enum { FILES_ID = 40, FILES_MAX_JSON = 1 << 20 };
#define FILES_MAX_UPLOAD (UINT64_C(512) << 20)

/* A new id: PREFIX and 24 hexadecimal digits. */
void files_new_id(const char *prefix, char out[FILES_ID]);
/* Whether the text is an id with this prefix, so that it can be a part of a path. */
bool files_is_id(const char *text, const char *prefix);
/* FOLDER/ID + suffix; the caller frees it with mem_free. NULL: no memory. */
char *files_path(const server *s, const char *id, const char *suffix);
/* Reads or writes FOLDER/ID.json. NULL: *why. The caller frees the value. */
json_t *files_read_json(const server *s, const char *id, fault *why);
bool files_write_json(const server *s, const char *id, const json_t *value, fault *why);
/* Calls fn for each id with the prefix that has a .json. */
void files_each(const server *s, const char *prefix, void (*fn)(void *user, const char *id), void *user);
/* False: the server keeps no files, *x says so. */
bool files_are_open(exchange *x);
/* Sends the list of what `read` makes of each such id. */
typedef json_t *files_reader(const server *s, const char *id, fault *why);
void files_list_all(exchange *x, const char *prefix, files_reader *read);
/* Describes an empty or written file, which exists from now on. */
bool files_describe(const server *s, const char *id, const char *filename, const char *purpose, fault *why);

/* ---- routes ---- */
void files_create(exchange *x);
void files_list(exchange *x);
void files_get(exchange *x); /* /v1/files/ID and /v1/files/ID/content */
void files_delete(exchange *x);
/* The body of an upload goes to a temporary file of the exchange. False: x->why. */
bool files_take(exchange *x, const char *data, size_t n);
void files_drop(exchange *x); /* closes the exchange's files */

#endif
