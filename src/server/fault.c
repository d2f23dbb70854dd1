/* fault.c - see fault.h. */
#include "server/fault.h"

#include "base/escape.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>

/* In parentheses, because the header has macros of these names for the analyser. */
bool(fault_set)(fault *f, int status, const char *code, const char *format, ...) {
    char text[sizeof f->message];
    va_list args;
    if (f->status)
        return false;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->status = status;
    f->code = code;
    escape_line(f->message, sizeof f->message, text);
    return false;
}

bool(fault_field)(fault *f, const char *field, const char *format, ...) {
    char text[sizeof f->message];
    va_list args;
    if (f->status)
        return false;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(f->param, sizeof f->param, "%s", field);
    return fault_set(f, 400, NULL, "%s: %s", field, text);
}

bool(fault_engine)(fault *f, const nib_error *err) {
    if (err->status == NIB_E_USAGE)
        return fault_set(f, 400, NULL, "%s", err->message);
    if (err->status == NIB_E_NOFIT || err->status == NIB_E_NOMEM) {
        f->retry_s = f->status ? f->retry_s : 1;
        return fault_set(f, 503, "out_of_memory", "%s", err->message);
    }
    return fault_set(f, 500, NULL, "%s", err->message);
}

const char *fault_type(const fault *f) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {429, "rate_limit_error"},     {500, "server_error"},     {503, "unavailable_error"},
                 {507, "unavailable_error"}};
    for (size_t i = 0; i < NUM_COUNT(types); i++)
        if (types[i].status == f->status)
            return types[i].type;
    return "invalid_request_error";
}

static json_t *text_or_null(const char *text) {
    return text && *text ? json_string(text) : json_null();
}

json_t *fault_json(const fault *f) {
    return json_pack("{s:{s:s, s:s, s:o, s:o}}", "error", "message", f->message, "type", fault_type(f),
                     "param", text_or_null(f->param), "code", text_or_null(f->code));
}
