/* plan_values.h - typed values of a plan's JSON, which is not trusted. Every error is NIB_E_MODEL with the
 * key and what was expected. A missing or null key leaves *out unchanged, unless it is required. */
#ifndef NIB_PLAN_PLAN_VALUES_H
#define NIB_PLAN_PLAN_VALUES_H

#include "base/jsonx.h"
#include "plan/plan.h"

/* Checks that `value` is an object and that all its keys are in `known`, which ends with NULL. where: for
 * messages. */
nib_status plan_check_keys(const json_t *value, const char *where, const char *const *known, nib_error *err);
/* Gets a text of fewer than `size` bytes, copied with its NUL. */
nib_status plan_get_name(const json_t *from, const char *key, bool required, char *out, size_t size,
                         nib_error *err);
/* Gets an integer from min to max. */
nib_status plan_get_int(const json_t *from, const char *key, int64_t min, int64_t max, int64_t *out,
                        nib_error *err);
/* Gets a number of bytes. */
nib_status plan_get_bytes(const json_t *from, const char *key, bool required, uint64_t *out, nib_error *err);
/* Gets a finite number, 0 or more. */
nib_status plan_get_number(const json_t *from, const char *key, double *out, nib_error *err);

/* plan_kv.c: the JSON of the formats of keys and values, [{"layers": "0-3", "format": "f16"}, ...], or the
 * layers "all"; and back, also from the name of one format. NULL: no memory. */
json_t *plan_kv_json(const plan *p);
json_t *plan_kv_json_shares(const plan *p); /* with the tiers' shares of the bytes */
nib_status plan_kv_read(const json_t *from, plan *out, nib_error *err);

/* plan_parse_expected.c: the plan's members "predicted", "one_more_gb" and "alternatives". */
nib_status plan_read_expected(const json_t *from, plan *out, nib_error *err);

#endif
