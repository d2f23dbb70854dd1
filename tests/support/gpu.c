/* gpu.c - see gpu.h. */
#include "support/gpu.h"

#include "support/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

const cuda_kernels *cuda;
cuda_stream stream;
static char missing[256] = "the device has no such kernels";

bool gpu_open(int argc, char **argv) {
    cuda_device_info device;
    nib_error err;
    if (cuda_load(&cuda, &err) != NIB_OK) {
        snprintf(missing, sizeof missing, "%.250s", err.message);
        return false;
    }
    if (cuda->device_open(0, &device) || cuda->stream_new(&stream)) {
        snprintf(missing, sizeof missing, "the device cannot be opened");
        return false;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return true;
}

static void without_gpu(void **state) {
    (void)state;
    skip_because(missing);
}

int gpu_missing(void) {
    const struct CMUnitTest none[] = {cmocka_unit_test(without_gpu)};
    return cmocka_run_group_tests(none, NULL, NULL);
}

void cuda_ok(int error, const char *what) {
    if (error)
        fail_msg("%s: %s", what, cuda->error_text(error));
}

void *device_new(size_t bytes) {
    void *p = NULL;
    OK(cuda->alloc(&p, bytes + 256));
    return p;
}

void *device_copy(const void *data, size_t bytes) {
    void *p = device_new(bytes);
    OK(cuda->to_device(p, data, bytes, stream));
    OK(cuda->stream_sync(stream));
    return p;
}

void read_back(void *host, const void *p, size_t bytes) {
    OK(cuda->to_host(host, p, bytes, stream));
    OK(cuda->stream_sync(stream));
}

view matrix_there(const matrix *m) {
    uint64_t bytes;
    view w = m->view;
    assert_true(pack_bytes(&w.format, w.n, w.k, &bytes));
    w.data = device_copy(m->view.data, bytes);
    OK(cuda->gtile(&w, true, stream));
    OK(cuda->stream_sync(stream));
    return w;
}

void drop(const void *p) {
    OK(cuda->release((void *)(uintptr_t)p));
}
