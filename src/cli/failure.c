/* failure.c - the JSON document of a command that failed or was interrupted. */
#include "cli/cli.h"

#include "base/jsonx.h"

#include <ctype.h>
#include <string.h>

static nib_error failure; /* the latest error that was printed */
static json_t *so_far;    /* an object */

void cli_failed(nib_status status, const char *message) {
    failure.status = status;
    snprintf(failure.message, sizeof failure.message, "%s", message);
}

int cli_failure_code(void) {
    return nib_status_exit_code(failure.status);
}

void cli_made(json_t *part) {
    json_decref(so_far);
    so_far = part;
}

/* The status of a command that ended with this code and printed no error. */
static nib_status status_of(int exit_code) {
#define NIB_X(name, number, code, text)                                                                      \
    if ((code) == exit_code)                                                                                 \
        return NIB_E_##name;
    NIB_STATUS_MAP(NIB_X)
#undef NIB_X
    return NIB_E_FAILED;
}

/* The constant's name in lower case: "nofit". */
static json_t *status_json(nib_status status) {
    static const char *const names[] = {
#define NIB_X(name, number, code, text) [number] = #name,
        NIB_STATUS_MAP(NIB_X)
#undef NIB_X
    };
    char name[32];
    snprintf(name, sizeof name, "%s", names[status]);
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return json_string(name);
}

void cli_print_failure(int exit_code, const cli_args *args) {
    if (exit_code == nib_status_exit_code(NIB_E_CANCELLED))
        cli_failed(NIB_E_CANCELLED, cli_ending() ? "ended by a signal" : "interrupted");
    else if (failure.status == NIB_OK)
        cli_failed(status_of(exit_code), nib_status_text(status_of(exit_code)));
    json_t *document = json_pack("{s:{s:o, s:o}}", "error", "status", status_json(failure.status), "message",
                                 jsonx_string(failure.message, strlen(failure.message)));
    if (document && so_far)
        json_object_update(document, so_far);
    cli_made(NULL);
    cli_write_json(document, args);
}
