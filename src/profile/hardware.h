/* hardware.h - the rates of this machine, measured once (a few seconds) and stored as a small JSON file under
 * $XDG_CACHE_HOME/nibble/hardware/, one for each processor, number of cores and instruction set.
 *
 * Each rate has its spread: the best pass is the machine's rate; median and worst show the disturbance. Plans
 * use these rates (plan/rates.h). */
#ifndef NIB_PROFILE_HARDWARE_H
#define NIB_PROFILE_HARDWARE_H

#include "base/status.h"
#include "profile/machine.h"
#include "base/rate.h"

enum { HARDWARE_MEMORY = 12, HARDWARE_DISK = 16, HARDWARE_KERNELS = 10, HARDWARE_ATTEND = 3 };

typedef struct hardware_memory {
    int n_thread;
    rate read; /* bytes a second */
} hardware_memory;

typedef struct hardware_disk {
    int depth;      /* reads in flight */
    uint64_t block; /* bytes of one read */
    rate read;      /* bytes a second */
} hardware_disk;

/* Products of weights of `bits` (0: f16) with 8-bit activations, by one thread for each core, except
 * one_thread. */
typedef struct hardware_kernel {
    int bits;
    bool asym;       /* with a minimum beside each group's scale */
    rate one_row;    /* bytes of weights a second, with one row of activations */
    rate one_thread; /* the same by one thread: more than its share of one_row if memory is the limit; 0:
                        unknown */
    rate two_rows;   /* the same with two rows: what 16-bit activations take */
    rate many_rows;  /* multiply-adds a second, with 512 rows */
} hardware_kernel;

/* Attention of rows of many sequences over keys and values of `bits` (16: f16), with a head of queries for
 * each head of keys. */
typedef struct hardware_attend {
    int bits;
    rate one_thread, all_threads; /* bytes of keys and values a second */
} hardware_attend;

typedef struct hardware {
    hardware_memory memory[HARDWARE_MEMORY];
    int n_memory;
    hardware_disk disk[HARDWARE_DISK];
    int n_disk;       /* 0: no file could be written */
    char folder[256]; /* folder on the measured disk */
    bool ring;        /* reads by io_uring */
    bool direct;      /* reads bypass the page cache */
    hardware_kernel kernels[HARDWARE_KERNELS];
    int n_kernel;
    int n_thread; /* threads of `kernels`, and of `attend` */
    hardware_attend attend[HARDWARE_ATTEND];
    int n_attend;     /* 0: not measured, as in older profiles */
    rate pack;        /* bytes a second that one thread packs from a file's order */
    double link;      /* bytes a second from RAM to the first GPU; 0: there is none */
    double gpu_read;  /* bytes a second that the GPU reads of its memory; 0: unknown */
    double gpu_macs;  /* multiply-adds a second of the GPU's products with 512 rows; 0: unknown */
    double barrier_s; /* seconds of one barrier of all threads */
    double seconds;   /* duration of the measurement */
} hardware;

char *hardware_path(const machine *m); /* caller frees with mem_free; NULL: no memory, or no cache folder */
nib_status hardware_print(const machine *m, const hardware *h, char **text, nib_error *err); /* mem_free */
nib_status hardware_save(const char *path, const machine *m, const hardware *h, nib_error *err);
/* m NULL: of any machine. NIB_E_NOTFOUND: no such file, or it belongs to another machine. */
nib_status hardware_load(const char *path, const machine *m, hardware *out, nib_error *err);

#endif
