/* fault.h - the reason for refusing a request: an HTTP status and the members of an error of OpenAI's API. */
#ifndef NIB_SERVER_FAULT_H
#define NIB_SERVER_FAULT_H

#include "nib.h"

#include <jansson.h>

typedef struct fault {
    int status;       /* of HTTP; 0: none */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the field that is wrong; "": none */
    char message[512];
    int retry_s; /* Retry-After; 0: none */
} fault;

/* Fills it and returns false, so that `return fault_set(...)` is one line. The first fault stays. */
bool fault_set(fault *f, int status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A field that is wrong: 400, "FIELD: ...". */
bool fault_field(fault *f, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* What the engine says: what means nothing is the caller's fault, the rest is not. */
bool fault_engine(fault *f, const nib_error *err);

#ifdef __clang_analyzer__
/* What the analyser cannot see from outside. */
#define fault_set(...)    ((void)fault_set(__VA_ARGS__), false)
#define fault_field(...)  ((void)fault_field(__VA_ARGS__), false)
#define fault_engine(...) ((void)fault_engine(__VA_ARGS__), false)
#endif

const char *fault_type(const fault *f); /* "invalid_request_error" */
json_t *fault_json(const fault *f);     /* {"error": {...}}; NULL: no memory */

#endif
