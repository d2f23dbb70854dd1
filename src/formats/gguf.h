/* gguf.h - the constants of the GGUF format, shared by its reader and its writer. */
#ifndef NIB_FORMATS_GGUF_H
#define NIB_FORMATS_GGUF_H

#include <stdint.h>

/* GGUF_VALUE(id, number in the file, bytes of one value, name); 0 bytes: the length is in the file */
#define GGUF_VALUES(GGUF_VALUE)                                                                              \
    GGUF_VALUE(U8, 0, 1, "u8")                                                                               \
    GGUF_VALUE(I8, 1, 1, "i8")                                                                               \
    GGUF_VALUE(U16, 2, 2, "u16")                                                                             \
    GGUF_VALUE(I16, 3, 2, "i16")                                                                             \
    GGUF_VALUE(U32, 4, 4, "u32")                                                                             \
    GGUF_VALUE(I32, 5, 4, "i32")                                                                             \
    GGUF_VALUE(F32, 6, 4, "f32")                                                                             \
    GGUF_VALUE(BOOL, 7, 1, "bool")                                                                           \
    GGUF_VALUE(STRING, 8, 0, "string")                                                                       \
    GGUF_VALUE(ARRAY, 9, 0, "array")                                                                         \
    GGUF_VALUE(U64, 10, 8, "u64")                                                                            \
    GGUF_VALUE(I64, 11, 8, "i64")                                                                            \
    GGUF_VALUE(F64, 12, 8, "f64")

typedef enum gguf_value {
#define GGUF_X(id, number, bytes, name) GGUF_##id = number,
    GGUF_VALUES(GGUF_X)
#undef GGUF_X
        GGUF_VALUE_COUNT
} gguf_value;

static const uint8_t gguf_value_bytes[GGUF_VALUE_COUNT] = {
#define GGUF_X(id, number, bytes, name) [number] = bytes,
    GGUF_VALUES(GGUF_X)
#undef GGUF_X
};

#define GGUF_MAGIC         "GGUF"
#define GGUF_VERSION       3u
#define GGUF_ALIGNMENT     32u /* when general.alignment does not say otherwise */
#define GGUF_MAX_ALIGNMENT (1u << 20)

#endif
