/* fault.h - the reason for refusing a request: an HTTP status and the members of an error of OpenAI's API. */
#ifndef NIB_SERVER_FAULT_H
#define NIB_SERVER_FAULT_H

#include "nib.h"

#include <jansson.h>

typedef struct fault {
    int status;       /* HTTP status; 0: no fault */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the wrong field; "": none */
    char message[512];
    int retry_s; /* Retry-After; 0: none */
} fault;

/* Fills *f and returns false, so that `return fault_set(...)` is one line. A second fault is ignored. */
bool fault_set(fault *f, int status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a wrong field: status 400, message "FIELD: ...". */
bool fault_field(fault *f, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for an error of the engine: a usage error is the client's fault (4xx), others the server's (5xx).
 */
bool fault_engine(fault *f, const nib_error *err);

#ifdef __clang_analyzer__
/* The analyser does not see that these return false. */
#define fault_set(...)    ((void)fault_set(__VA_ARGS__), false)
#define fault_field(...)  ((void)fault_field(__VA_ARGS__), false)
#define fault_engine(...) ((void)fault_engine(__VA_ARGS__), false)
#endif

const char *fault_type(const fault *f); /* "invalid_request_error" */
json_t *fault_json(const fault *f);     /* {"error": {...}}; NULL: no memory */

#endif
