/* profile_file.h - shared by the JSON files of profile/: lists of numbers, and the keys of weights and
 * prompts. */
#ifndef NIB_PROFILE_PROFILE_FILE_H
#define NIB_PROFILE_PROFILE_FILE_H

#include "base/jsonx.h"
#include "profile/machine.h"

/* $XDG_CACHE_HOME/nibble/<folder>/<beginning><hash of the key><ending>; caller frees with mem_free. Takes the
 * key's reference. NULL: no memory (or key is NULL), or no cache folder. */
char *profile_keyed_path(json_t *key, const char *folder, const char *beginning, const char *ending);
/* The key of files about this machine (its processor, its cores and the instruction set in use), and the path
 * with this key. */
json_t *profile_machine_key(const machine *m);
char *profile_machine_path(const machine *m, const char *folder, const char *ending);

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts><ending>; caller frees. NULL: no memory. */
char *profile_path(const char *content, const char *prompts, const char *ending);

/* The latest such file of these weights, whatever the prompts; NULL: none, or no memory. Caller frees. */
char *profile_find(const char *content, const char *ending);

/* An array of n numbers. holes: a negative number (not measured) becomes null. NULL: no memory, or a number
 * that is not finite. */
json_t *profile_numbers(const double *x, size_t n, bool holes);
/* Reads the member `key`: an array of exactly n finite numbers of 0 or more. holes: null becomes -1. */
nib_status profile_read_numbers(const json_t *object, const char *key, size_t n, bool holes, double *out,
                                nib_error *err);
/* Reads a member that is one finite number of at least `min`. */
nib_status profile_read_number(const json_t *object, const char *key, double min, double *out,
                               nib_error *err);
/* Reads a member that is an integer from min to max. */
nib_status profile_read_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                            nib_error *err);
/* Reads the members "content" and "prompts": 1 to 39 characters of 0-9 and a-f. */
nib_status profile_read_keys(const json_t *object, char content[40], char prompts[40], nib_error *err);
/* NIB_E_MODEL unless `found`, a profile's content key, equals `content` (NULL: any). */
nib_status profile_check_content(const char *content, const char *found, nib_error *err);

/* Writes the document, whose reference it takes: one line a member, numbers with 9 digits. Caller frees with
 * mem_free. */
nib_status profile_text(json_t *document, char **text, nib_error *err);
/* Creates the folders; the file is whole or absent. */
nib_status profile_write(const char *path, const char *text, nib_error *err);
/* Reads a file; caller frees *text. NIB_E_NOTFOUND: no such file. */
nib_status profile_read(const char *path, char **text, size_t *n_byte, nib_error *err);

/* Converts a document to a profile. The caller clears *out, also after an error. */
typedef nib_status profile_reader(const json_t *document, void *out, nib_error *err);
/* Reads a file, for the model with this content key (NULL: any). found: the key in *out. Errors name
 * the file. */
nib_status profile_load(const char *path, const char *content, profile_reader *read, void *out,
                        const char *found, nib_error *err);
/* Frees the text, and writes it if its printing returned NIB_OK (status). */
nib_status profile_save(const char *path, nib_status status, char *text, nib_error *err);

#endif
