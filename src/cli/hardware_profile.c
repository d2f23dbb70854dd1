/* hardware_profile.c - nibble profile --hardware, and what nibble hw shows of it. */
#include "cli/hardware_profile.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define SECONDS 4.2

/* -o FILE, else where this machine's is kept. */
static char *path_of(const cli_args *args, const machine *m) {
    return args->output ? mem_strdup(args->output) : hardware_path(m);
}

static int measure(const cli_args *args, const char *path, const machine *m, hardware *h) {
    const canceller cancel = {cli_cancel, NULL};
    const logger log = {cli_log, (void *)args};
    const hardware_options o = {.folder = args->scratch,
                                .seconds = SECONDS,
                                .progress = cli_progress,
                                .user = (void *)args,
                                .cancel = &cancel,
                                .log = &log};
    nib_error err;
    if (hardware_measure(m, &o, h, &err))
        return cli_fail(&err);
    if (!h->n_disk && !args->output) /* the next time perhaps the disk too */
        return 0;
    const nib_status kept = path ? hardware_save(path, m, h, &err) : NIB_OK;
    return cli_goes_on(args, args->output, kept, &err) ? 0 : cli_fail(&err);
}

int hardware_profile_get(const cli_args *args, bool again, machine *m, hardware *h) {
    nib_error err;
    machine_look(m);
    char *path = path_of(args, m);
    int code = 0;
    const nib_status kept = again || !path ? NIB_E_NOTFOUND : hardware_load(path, m, h, &err);
    if (kept != NIB_OK) {
        if (kept != NIB_E_NOTFOUND)
            cli_note(args, "nibble: the profile is measured anew: %s", err.message);
        code = measure(args, path, m, h);
    }
    mem_free(path);
    return code;
}

static void print_rate(const char *what, const rate *r, double unit, const char *name) {
    printf("%-14s %8.2f %s (median %.2f, worst %.2f)\n", what, r->best / unit, name, r->median / unit,
           r->worst / unit);
}

void hardware_profile_print(const hardware *h) {
    char what[48], size[32];
    for (int i = 0; i < h->n_memory; i++) {
        snprintf(what, sizeof what, "memory, %d", h->memory[i].n_thread);
        print_rate(what, &h->memory[i].read, 1e9, "GB/s");
    }
    for (int i = 0; i < h->n_disk; i++) {
        const hardware_disk *d = &h->disk[i];
        snprintf(what, sizeof what, "disk, %d x %.0fK", d->depth, (double)d->block / 1024);
        print_rate(what, &d->read, 1e9, "GB/s");
    }
    for (int i = 0; i < h->n_kernel; i++) {
        const hardware_kernel *k = &h->kernels[i];
        snprintf(what, sizeof what, "%d bits%s", k->bits, k->asym ? ", minima" : "");
        printf("%-14s %8.2f GB/s of weights with one row, %.2f with two; %.0f G multiply-adds/s with many\n",
               what, k->one_row.best / 1e9, k->two_rows.best / 1e9, k->many_rows.best / 1e9);
    }
    print_rate("packing", &h->pack, 1e9, "GB/s of one thread");
    printf("%-14s %8.2f us until %d threads have met\n", "barrier", h->barrier_s * 1e6, h->n_thread);
    snprintf(size, sizeof size, "%.1f", h->seconds);
    if (h->n_disk)
        printf("measured in %s s; disk: %s%s%s\n", size, h->folder, h->ring ? ", io_uring" : "",
               h->direct ? ", O_DIRECT" : ", through the page cache");
    else
        printf("measured in %s s, without the disk\n", size);
}

int hardware_profile_run(const cli_args *args) {
    machine m;
    hardware h;
    nib_error err;
    char *text;
    const int code = hardware_profile_get(args, true, &m, &h);
    if (code)
        return code;
    if (!args->json) {
        hardware_profile_print(&h);
        return 0;
    }
    if (hardware_print(&m, &h, &text, &err))
        return cli_fail(&err);
    const bool wrote = cli_write(text, strlen(text));
    mem_free(text);
    return wrote ? 0 : 1;
}
