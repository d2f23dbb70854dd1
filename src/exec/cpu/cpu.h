/* cpu.h - the processor as a back end: its parts. For its own files and their tests. */
#ifndef NIB_EXEC_CPU_CPU_H
#define NIB_EXEC_CPU_CPU_H

#include "exec/backend.h"
#include "exec/cpu/interpreter.h"
#include "exec/cpu/from_disk.h"

typedef struct cpu {
    backend base;
    backend_setup setup;
    executor exec;
    workspace ws;
    choices choices;
    ahead ahead;
    shortlist best;
    from_disk on_disk;
    /* of the current pass */
    backend_pass pass;
    int64_t
        head_row;  /* first row in the stream of those whose logits are needed; -1: they were not gathered */
    bool has_best; /* the last run of the head gave the best token of each row, and no logits */
    uint64_t n_best_row,
        n_best_panel; /* rows whose best token was found, and panels that were computed exactly for them */
} cpu;

static inline cpu *cpu_of(backend *b) {
    return (cpu *)(void *)b;
}

#endif
