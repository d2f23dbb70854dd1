/* jsonx.h - JSON from strangers: jansson with caps, and typed look-ups that say what they expected.
 * "Not there" and null are the same: the getter leaves *out as it is and returns NIB_OK, unless `required`.
 */
#ifndef NIB_BASE_JSONX_H
#define NIB_BASE_JSONX_H

#include "base/status.h"

#include <jansson.h>

/* Text of n bytes -> a value (json_decref by the caller). Depth is capped; errors are NIB_E_MODEL with the
 * line and column. Duplicate keys are refused. */
nib_status jsonx_parse(const char *text, size_t n_byte, json_t **out, nib_error *err);
nib_status jsonx_load(const char *path, uint64_t most_bytes, json_t **out, nib_error *err);

nib_status jsonx_get_i64(const json_t *object, const char *key, bool required, int64_t *out, nib_error *err);
nib_status jsonx_get_f64(const json_t *object, const char *key, bool required, double *out, nib_error *err);
nib_status jsonx_get_bool(const json_t *object, const char *key, bool required, bool *out, nib_error *err);
nib_status jsonx_get_string(const json_t *object, const char *key, bool required, const char **out,
                            nib_error *err);

#endif
