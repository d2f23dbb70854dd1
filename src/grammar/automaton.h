/* automaton.h - a grammar's program as a deterministic automaton that is built lazily.
 *
 * A state is the set of all places in the program that the text so far may be at, each with its call stack.
 * Stacks are shared lists (frames) and states are sets of (place, stack), both stored once. So a state is a
 * number, and its transition for a byte is computed once and then looked up. A call at the end of its rule
 * leaves no frame, so repetition by recursion needs no stack.
 *
 * A counted repetition is a frame with two counters. `a & b` is a place whose frame has the states of two
 * automata, one in each rule, which are states like all others. A place is dropped when no text completes
 * both (a search finds out), so an answer does not run into a dead end.
 *
 * Everything is in one region of fixed size. When it is full, automaton_compact drops all states but one;
 * numbers of states are valid until then (see `epoch`). Work and ambiguity are bounded: `failure` names the
 * exceeded bound. One thread at a time. */
#ifndef NIB_GRAMMAR_AUTOMATON_H
#define NIB_GRAMMAR_AUTOMATON_H

#include "grammar/pda.h"

#include <stdbool.h>

enum {
    AUTOMATON_DEPTH = 512,      /* nested calls: about 128 nested arrays. Deeper texts do not match */
    AUTOMATON_READINGS = 1024,  /* maximum places in one state: parses of one text in an ambiguous grammar */
    AUTOMATON_SEEN = 1 << 13,   /* maximum places that are visited to compute one pda_state */
    AUTOMATON_WORK = 1 << 22,   /* maximum places that are visited for one mask: about 40 ms */
    AUTOMATON_NESTED = 16,      /* operands of & within operands of & */
    AUTOMATON_SEARCH = 1 << 10, /* pairs of states of `a & b` among which a completion is searched; if there
                                   is none among so many, one is expected to exist beyond them */
    AUTOMATON_MIN_BYTES = 1 << 20
};

/* Numbers of special states; AUTOMATON_FIRST is the first real one. */
enum { AUTOMATON_UNKNOWN, AUTOMATON_DEAD, AUTOMATON_FIRST };
#define AUTOMATON_FAILED UINT32_MAX

typedef enum automaton_failure {
    AUTOMATON_FINE,
    AUTOMATON_FULL,
    AUTOMATON_AMBIGUOUS,
    AUTOMATON_SLOW,
    AUTOMATON_NESTS
} automaton_failure;

/* What is said of a grammar that fails so: "the grammar ...". */
const char *automaton_why(automaton_failure why);

typedef struct pda_place { /* a place in the program, before a PDA_BYTE or within a PDA_BOTH, and its stack */
    uint32_t at, frame;
} pda_place;

typedef enum pda_completes {
    COMPLETES_UNKNOWN,
    COMPLETES_NEVER,
    COMPLETES_LATER,
    COMPLETES_SEARCHED
} pda_completes;

typedef struct pda_frame {
    uint32_t at;    /* a call: the place to continue at after it; else the PDA_REPEAT or PDA_BOTH */
    uint32_t below; /* the frame below */
    uint32_t x, y; /* a call: 0; a repetition: repeats that are still required + 1, and allowed (PDA_FOREVER);
                      both: the states in the two rules */
    uint32_t depth, same_hash;
    pda_completes completes; /* both, above the bottom: whether a further text completes the two */
} pda_frame;

typedef struct pda_search { /* an entry of the queue of a search */
    uint32_t frame, from;   /* from: the entry that leads to it */
} pda_search;

typedef struct pda_state {
    uint32_t first, n; /* places */
    uint32_t same_hash;
    int32_t mask;  /* index of the state's mask (grammar.c); -1: none */
    uint32_t near; /* a state with the same mask, see automaton_near; AUTOMATON_UNKNOWN */
    bool ends;     /* the text so far is complete */
} pda_state;

typedef struct automaton {
    const pda *p;
    uint64_t n_byte; /* of the region */
    uint8_t *region; /* mapped; resident as it is touched */
    pda_state *states;
    pda_place *places;
    pda_frame *frames;
    uint32_t *rows;                      /* [cap_state, n_class]: transitions by byte class */
    uint32_t *state_heads, *frame_heads; /* [n_head]: lists by hash */
    uint32_t n_state, n_place, n_frame, cap_state, cap_place, cap_frame, n_head;
    pda_place *work, *found, *seen; /* scratch of a step */
    uint32_t *seen_when, when;
    uint32_t n_work, n_found, n_seen;
    bool found_end;
    uint32_t *both_starts; /* [n_both]: the frame with the starts of the two rules; 0: not known yet */
    uint32_t wanted;       /* the PDA_BOTH whose start a step needed */
    pda_search *queue;
    uint32_t n_queue, nested;
    int64_t work_left; /* visits until `failure` becomes AUTOMATON_SLOW */
    automaton_failure failure;
    uint64_t epoch; /* changes when state numbers become invalid; above 0 */
    uint32_t start; /* the state of the empty text; AUTOMATON_FAILED */
} automaton;

/* n_byte: its memory, at least AUTOMATON_MIN_BYTES, which the caller has charged. p outlives it. NIB_E_USAGE:
 * no text matches, or too many parses of the empty text. */
nib_status automaton_open(automaton *m, const pda *p, uint64_t n_byte, nib_error *err);
void automaton_close(automaton *m); /* zeroed is fine */

/* The state after byte b. AUTOMATON_DEAD: no text continues with it. AUTOMATON_FAILED: m->failure has the
 * reason. */
uint32_t automaton_make(automaton *m, uint32_t from, uint8_t b);
static inline uint32_t automaton_step(automaton *m, uint32_t from, uint8_t b) {
    const uint32_t known = m->rows[(size_t)from * m->p->n_class + m->p->class_of[b]];
    return known != AUTOMATON_UNKNOWN ? known : automaton_make(m, from, b);
}

/* Drops all states but one, whose new number is *state, and begins a new epoch. False: no memory, and nothing
 * has changed. */
bool automaton_compact(automaton *m, uint32_t *state);
/* A state that allows the same texts of at most `far` bytes. Counters that no such text can exhaust are cut
 * to far + 1. So all states in the middle of a long string are near the same state. AUTOMATON_FAILED. */
uint32_t automaton_near(automaton *m, uint32_t state, uint32_t far);

#endif
