/* cpu.h - the processor as a back end: its parts. For its own files and their tests. */
#ifndef NIB_EXEC_CPU_CPU_H
#define NIB_EXEC_CPU_CPU_H

#include "exec/backend.h"
#include "exec/cpu/interpreter.h"

typedef struct cpu {
    backend base;
    backend_setup setup;
    executor exec;
    workspace ws;
    choices choices;
    shortlist best;
    /* of the pass that is computed */
    backend_pass pass;
    int64_t
        head_row; /* rows of the stream whose logits are wanted begin there; -1: they are where they were */
} cpu;

static inline cpu *cpu_of(backend *b) {
    return (cpu *)(void *)b;
}

#endif
