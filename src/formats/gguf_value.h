/* gguf_value.h - reads one typed value of a GGUF header into a metadata table. */
#ifndef NIB_FORMATS_GGUF_VALUE_H
#define NIB_FORMATS_GGUF_VALUE_H

#include "formats/cursor.h"
#include "formats/gguf.h"
#include "formats/meta.h"

/* Reads the type and the value after `key` (which is for messages). *keep is false for an array of arrays,
 * which is checked and skipped. *large: as in meta_table_add. The table owns the value's storage.
 * NIB_E_MODEL: the value is malformed or cut off. */
nib_status gguf_value_read(cursor *at, const char *key, meta_table *table, meta_value *out, bool *large,
                           bool *keep, nib_error *err);

#endif
