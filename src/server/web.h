/* web.h - libmicrohttpd's functions, loaded when a server is opened. */
#ifndef NIB_SERVER_WEB_H
#define NIB_SERVER_WEB_H

#include "nib.h"

#include <microhttpd.h>

#define WEB_CALLS(X)                                                                                         \
    X(start_daemon)                                                                                          \
    X(stop_daemon)                                                                                           \
    X(quiesce_daemon)                                                                                        \
    X(create_response_from_buffer)                                                                           \
    X(create_response_from_fd)                                                                               \
    X(create_response_from_callback)                                                                         \
    X(add_response_header)                                                                                   \
    X(queue_response)                                                                                        \
    X(destroy_response)                                                                                      \
    X(suspend_connection)                                                                                    \
    X(resume_connection)                                                                                     \
    X(lookup_connection_value)                                                                               \
    X(get_connection_values)                                                                                 \
    X(get_connection_info)

/* The functions, without the prefix MHD_. */
typedef struct web_calls {
#define X(name) __typeof__(&MHD_##name) name;
    WEB_CALLS(X)
#undef X
} web_calls;

extern web_calls web;

/* Loads the library, once for the process, before the first server. NIB_E_FAILED: it is not installed. */
nib_status web_load(nib_error *err);

#endif
