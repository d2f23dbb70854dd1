/* learned.h - the times of generation on this machine, run by run: a small file beside the hardware profile,
 * used by the next prediction (plan/expect.h). It changes predictions, never decisions or answers.
 *
 * $XDG_CACHE_HOME/nibble/learned/<machine>.jsonl: a line with the machine (processor, cores, instruction
 * set), then one line for each kind of run. The file is not trusted: a line that does not parse is an error,
 * and everything has bounds. */
#ifndef NIB_PROFILE_LEARNED_H
#define NIB_PROFILE_LEARNED_H

#include "base/status.h"
#include "profile/machine.h"

enum {
    LEARNED_BITS = 9,    /* widths of weights: 1...8, and 0 for floats */
    LEARNED_SECONDS = 7, /* number of latest times that are kept for each kind of run */
    MAX_LEARNED = 192    /* maximum number of kinds; the oldest one is replaced */
};

/* The work of one generated token, as the cost formula counts it. */
typedef struct learned_work {
    double bytes[2][LEARNED_BITS]; /* of weights that products read: [0] with activations of up to 8 bits, [1]
                                      of 16; by the weights' bits */
    double asym_bytes;             /* the part of all these in formats with minima */
    double n_op;                   /* number of ops */
    double cache_bytes,
        cache_macs;    /* bytes and multiply-adds of attention, in the middle of the generation */
    double disk_bytes; /* read from disk */
    double kv_bytes;   /* of keys and values that are read from disk; runs with some are not stored */
    double pack_bytes; /* the part of disk_bytes that the reader packs, in packed bytes */
    double n_wait;     /* small reads that nothing overlaps, of rows of a table */
    double read_bytes; /* bytes of one read */
} learned_work;

typedef struct learned_run {
    char content[40]; /* the model's content key */
    uint64_t device;  /* number of the disk that pages are read from; 0: none */
    int n_thread;
    char kv[8];                      /* type of the cache */
    bool packed;                     /* pages are streamed from a packed file */
    learned_work work;               /* of the latest run */
    double formula_s;                /* seconds by the cost formula at that time */
    double seconds[LEARNED_SECONDS]; /* of one token, the oldest first */
    int n_seconds;
    int64_t at; /* increases from run to run */
} learned_run;

typedef struct learned {
    learned_run *runs;
    int n;
} learned;

void learned_clear(learned *l); /* zeroed is fine */

/* The median of the seconds. */
double learned_seconds(const learned_run *r);

/* The distance of two runs: 0 if they are equal; above 1 they have little in common. */
double learned_distance(const learned_run *a, const learned_run *b);

/* Adds a new run (n_seconds is 1) to the nearest kind, or as a new kind. */
nib_status learned_add(learned *l, const learned_run *now, nib_error *err);

char *learned_path(const machine *m); /* caller frees with mem_free; NULL: no memory, or no cache folder */
/* *out is set only on success. NIB_E_NOTFOUND: no such file, or it belongs to another machine. */
nib_status learned_load(const char *path, const machine *m, learned *out, nib_error *err);
nib_status learned_parse(const char *text, size_t n_byte, const machine *m, learned *out, nib_error *err);
/* The file is whole or absent. Makes its folders. */
nib_status learned_save(const char *path, const machine *m, const learned *l, nib_error *err);
nib_status learned_print(const machine *m, const learned *l, char **text, nib_error *err); /* mem_free */

#endif
