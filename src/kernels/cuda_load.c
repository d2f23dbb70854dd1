/* cuda_load.c - see cuda_load.h. */
#include "kernels/cuda_load.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnibble-cuda.so"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const cuda_kernels *found, *instead;
static char missing[256];

/* Opens the file `named`, or looks for the library if it is NULL. */
static void *open_library(const char *named) {
    static const char *const places[] = {"/" LIBRARY, "/../" LIBRARY, "/../lib/" LIBRARY};
    char path[PATH_MAX + sizeof "/../lib/" LIBRARY];
    if (named && *named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    char *end = n > 0 && n < PATH_MAX ? memrchr(path, '/', (size_t)n) : NULL;
    for (size_t i = 0; end && i < sizeof places / sizeof *places; i++) {
        memcpy(end, places[i], strlen(places[i]) + 1);
        if (access(path, R_OK) == 0)
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void find(void) {
    int n_device = 0;
    const char *named = getenv("NIBBLE_CUDA");
    if (named && !strcmp(named, "0")) {
        snprintf(missing, sizeof missing, "NIBBLE_CUDA=0 says not to use CUDA");
        return;
    }
    void *library = open_library(named);
    const cuda_kernels *(*table)(void) = NULL;
    if (library) {
        mem_keep_code(); /* a driver runs more code than a ledger's margin holds */
        *(void **)&table = dlsym(library, "nib_cuda_kernels");
    }
    if (!table) {
        const char *why = dlerror();
        snprintf(missing, sizeof missing, "%s cannot be used: %s", LIBRARY, why ? why : "no reason is given");
        return;
    }
    const cuda_kernels *kernels = table();
    if (kernels->version != CUDA_KERNELS_VERSION) {
        snprintf(missing, sizeof missing, "%s has version %d of its table, this program expects %d", LIBRARY,
                 kernels->version, CUDA_KERNELS_VERSION);
        return;
    }
    const int e = kernels->device_count(&n_device);
    if (e || n_device < 1)
        snprintf(missing, sizeof missing, "CUDA finds no device: %s",
                 e ? kernels->error_text(e) : "there is none");
    else
        found = kernels;
}

nib_status cuda_load(const cuda_kernels **out, nib_error *err) {
    if (instead) {
        *out = instead;
        return NIB_OK;
    }
    pthread_once(&once, find);
    if (!found)
        return nib_fail(err, NIB_E_DEVICE, "%s", missing);
    *out = found;
    return NIB_OK;
}

void cuda_load_with(const cuda_kernels *kernels) {
    instead = kernels;
}
