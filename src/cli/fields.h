/* fields.h - reads fields of the library's JSON documents: a missing or null field is NULL or 0. */
#ifndef NIB_CLI_FIELDS_H
#define NIB_CLI_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

static inline const char *field_text(const json_t *of, const char *key) {
    return json_string_value(json_object_get(of, key));
}
static inline long long field_int(const json_t *of, const char *key) {
    return (long long)json_integer_value(json_object_get(of, key));
}
static inline uint64_t field_bytes(const json_t *of, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(of, key));
}
static inline double field_real(const json_t *of, const char *key) {
    return json_number_value(json_object_get(of, key));
}
static inline bool field_is_set(const json_t *of, const char *key) {
    return json_is_true(json_object_get(of, key));
}
/* Number i of a list. */
static inline double field_real_at(const json_t *list, size_t i) {
    return json_number_value(json_array_get(list, i));
}

#endif
