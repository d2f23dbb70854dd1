/* jsonx.h - untrusted JSON: values of jansson with caps, and typed look-ups whose errors name the expected
 * type. A missing member and null are the same: the getter leaves *out unchanged and returns NIB_OK, unless
 * `required`. */
#ifndef NIB_BASE_JSONX_H
#define NIB_BASE_JSONX_H

#include "base/status.h"

#include <jansson.h>

/* The memory that a text's values may take is known before it is parsed; beyond a cap it is NIB_E_MODEL.
 * Three bytes of JSON may need two hundred bytes of heap, so the text's size alone is no useful bound.
 *   - text: an index of 150,000 tensors is 14 MB, the header of one safetensors file with 20,000 is 2.5 MB
 *     (vocabularies of tokenizer.json, up to 33 MB, are read by tokenizer/json_text.h instead).
 *   - heap: the two examples above take 45 and 28 MiB.
 *   - depth: published files nest 10 deep; the parser recurses. */
enum { JSONX_MAX_TEXT = 16 << 20, JSONX_MAX_HEAP = 64 << 20, JSONX_MAX_DEPTH = 64 };

/* Upper bounds of what jansson 2.14 allocates with glibc: an object with its first eight buckets, an array
 * with its first eight places, a number, a string or key without its bytes (a key's share of grown buckets
 * included), and the slot of each further member or element after its owner has doubled. */
enum {
    JSONX_COST_OBJECT = 240,
    JSONX_COST_ARRAY = 144,
    JSONX_COST_NUMBER = 40,
    JSONX_COST_STRING = 96,
    JSONX_COST_PLACE = 24
};

/* --- memory ---
 * jansson takes the memory of every value from mem.h, parsed or built: the n-th allocation can fail in tests,
 * and a mem_bound of the thread counts it. So memory is charged to a ledger before it is taken:
 *   - a text is parsed: jsonx_cost(text) bytes are charged, and given back after json_decref. Parsing takes
 *     no more, and fails as a whole if memory runs out.
 *   - values are built: n bytes are charged, mem_bound_set(&b, n) is set around building and jsonx_text, and
 *     b.peak bytes were taken. Past n, allocations fail, which jsonx_lost shows. */

/* Upper bound of the bytes that jsonx_parse takes for a text, and its value keeps. Any bytes are fine. */
uint64_t jsonx_cost(const char *text, size_t n_byte);

/* How often a part of a value was left out on this thread, because its memory could not be allocated.
 * json_object_set_new and its like are often not checked one by one: who builds compares this number before
 * and after (jsonx_built). */
size_t jsonx_lost(void);
void jsonx_lose(void); /* counts a part that could not be made for lack of other memory */

/* Text of n bytes -> a value (json_decref by the caller). Errors are NIB_E_MODEL with the line and column;
 * NIB_E_NOMEM also if its cost exceeds the bound of mem.h, before anything is taken. Duplicate keys and keys
 * with NUL are refused; integers beyond 64 bits are floats. */
nib_status jsonx_parse(const char *text, size_t n_byte, json_t **out, nib_error *err);
/* The same for the first value of a text. *n_read: bytes up to its end. */
nib_status jsonx_parse_first(const char *text, size_t n_byte, json_t **out, size_t *n_read, nib_error *err);
/* The part of a text that an object or a list inside `root` was parsed from, as it was written: numbers keep
 * their spelling. root: the value of the text [n_byte], not changed since. NULL: the value is not in it. */
const char *jsonx_source(const char *text, size_t n_byte, const json_t *root, const json_t *value,
                         size_t *n_source);
/* Parses a file of at most `max_bytes` and JSONX_MAX_TEXT. */
nib_status jsonx_load(const char *path, uint64_t max_bytes, json_t **out, nib_error *err);

/* As json_dumps, but the text is complete or NULL: when memory runs out, jansson 2.14 silently omits
 * characters. Freed by mem_free. */
char *jsonx_text(const json_t *value, size_t flags);

/* The same value, for functions of jansson that take it without const because they count its references or
 * iterate over it. They do not change its content. */
static inline json_t *jsonx_counted(const json_t *value) {
    return (json_t *)(uintptr_t)value;
}

/* A string; bytes that are no UTF-8 become U+FFFD. NULL: no memory. */
json_t *jsonx_string(const char *text, size_t n_byte);

/* Puts a value under a key or at the end of a list, and takes its reference. False: out of memory, also for
 * value NULL. */
bool jsonx_put(json_t *object, const char *key, json_t *value);
bool jsonx_add(json_t *list, json_t *value);
/* Returns `value` if all_there. Otherwise (a part could not be allocated) drops its reference and returns
 * NULL. */
json_t *jsonx_whole(json_t *value, bool all_there);
/* The same for a value that was built since jsonx_lost() was `lost`. */
json_t *jsonx_built(json_t *value, size_t lost);

nib_status jsonx_get_i64(const json_t *object, const char *key, bool required, int64_t *out, nib_error *err);
nib_status jsonx_get_f64(const json_t *object, const char *key, bool required, double *out, nib_error *err);
nib_status jsonx_get_bool(const json_t *object, const char *key, bool required, bool *out, nib_error *err);
nib_status jsonx_get_string(const json_t *object, const char *key, bool required, const char **out,
                            nib_error *err);

#endif
