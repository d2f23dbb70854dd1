/* names.h - models of the Hugging Face hub as data: their names, the files of a repository that form a model,
 * and the hub's listing of files. No network here. */
#ifndef NIB_HUB_NAMES_H
#define NIB_HUB_NAMES_H

#include "base/status.h"

/* Parses "user/repo[:QUANT]", also with hf.co/ or https://huggingface.co/ before it. QUANT is a part of a
 * file's name (Q4_K_M, in any case) or a whole one. */
typedef struct hub_name {
    char user[97], repo[97]; /* the hub's own limit is 96 characters */
    char quant[129];         /* "": none */
} hub_name;

/* False: it is not such a name. The parts are safe as names of folders and within an address. */
bool hub_parse_name(const char *text, hub_name *out);

/* The first file of the named model among the n files of a repository (paths); -1: none. A .gguf file (of a
 * split one, the first shard) whose name has QUANT as a part between separators; without QUANT the one with
 * Q4_K_M, else the first by name; without QUANT and .gguf files config.json, if there are safetensors. */
int64_t hub_choose(const char *const *paths, size_t n, const char *quant);
/* True for a .gguf file, or the first shard of a split one. */
bool hub_is_first(const char *path);
/* True if `path` is a file of the model whose first file is `chosen`. */
bool hub_belongs(const char *chosen, const char *path);
/* True if all shards of `chosen`, as its name numbers them, are among the n files. */
bool hub_is_whole(const char *const *paths, size_t n, const char *chosen);

/* A file as the hub describes it. */
typedef struct hub_file {
    char *path; /* relative, without "..": safe under a folder */
    uint64_t bytes;
    char sha256[65]; /* of the content; "": the file is small, and only its blob is known */
    char blob[41];   /* SHA-1 as git computes it, over "blob BYTES\0" and the content */
} hub_file;

typedef struct hub_listing {
    char commit[41];
    hub_file *files;
    size_t n, cap;
} hub_listing;

enum { HUB_MAX_FILES = 1 << 16 };

/* Parses the hub's answer to /api/models/USER/REPO?blobs=true. Hidden files, and paths that lead out of a
 * folder, are left out. A file without size and checksum is NIB_E_MODEL. The caller clears *out in any
 * case. */
nib_status hub_read_listing(const char *json, size_t n_byte, hub_listing *out, nib_error *err);
void hub_listing_clear(hub_listing *l);

#endif
