/* web.c - see web.h. */
#include "server/web.h"

#include "base/status.h"

#include <dlfcn.h>
#include <string.h>

web_calls web;

static bool find_calls(void *library) {
    void *at;
#define X(name)                                                                                              \
    if (!(at = dlsym(library, "MHD_" #name)))                                                                \
        return false;                                                                                        \
    memcpy(&web.name, &at, sizeof at);
    WEB_CALLS(X)
#undef X
    return true;
}

nib_status web_load(nib_error *err) {
    static bool loaded;
    if (!loaded) {
        void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
        loaded = library && find_calls(library);
    }
    return loaded ? NIB_OK
                  : nib_fail(err, NIB_E_FAILED,
                             "serving needs the library libmicrohttpd, which is not installed (Debian: "
                             "libmicrohttpd12)");
}
