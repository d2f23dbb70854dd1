/* expert_table.h - which experts of a mixture are in memory: a table of states and scores. It uses no thread,
 * file or clock. pager_experts.c reports every event to it and reads what it decides to read, so tests run it
 * through any order of events, and a bench replays recorded choices (bench/bench_experts.c).
 *
 * The order of a dense model's pages is known ahead; which experts a row needs is known only when the router
 * has chosen them. So memory for experts is slots of equal size (of one class: experts whose matrices have
 * the same bytes), and a slot's content changes:
 *
 *            expert_table_read            expert_table_arrived        expert_table_take
 *     EMPTY  ----------------->  ARRIVING  ------------------>  HERE  ---------------->  PINNED
 *       ^                           |                           |  ^                       |
 *       +---------------------------+ failed                    |  +-----------------------+
 *       +-------------------------------------------------------+     expert_table_end
 *                another expert of its class is read into it
 *
 * A visit takes its experts in the order of asking, or, if its sums do not need that order, in any: those
 * that are here first.
 *
 * The expert that leaves is the one with the lowest score among those that are not asked for, also if it was
 * used a moment ago: one that is seldom chosen does not displace one that is chosen often. If there are none
 * and the order matters, the one that is asked for last leaves for the one that is needed next. The score is
 * two moving averages of the share of rows that chose the expert: half of it is forgotten after 3 rows, and
 * after 48. On recorded choices of three models it keeps more hits than the least recently used order at
 * every size (docs/experts.md). Ties are decided by the order of the slots. */
#ifndef NIB_WEIGHTS_EXPERT_TABLE_H
#define NIB_WEIGHTS_EXPERT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* An expert of one block. Experts of a block have consecutive numbers. */
typedef struct expert {
    int32_t slot; /* -1: absent */
    int16_t cls;  /* its class */
    bool asked;   /* a visit needs it and has not ended its use */
    float lately, often;
} expert;

typedef enum expert_state { EXPERT_EMPTY, EXPERT_ARRIVING, EXPERT_HERE, EXPERT_PINNED } expert_state;

typedef struct expert_slot {
    expert_state state;
    int32_t expert; /* -1: EMPTY */
    int16_t cls;
} expert_slot;

typedef struct expert_table {
    expert *experts; /* [n_expert] */
    int n_expert;
    expert_slot *slots; /* [n_slot] */
    int n_slot;
    int32_t *asked; /* [n_expert]: the experts that are asked for, in the order of asking */
    int n_asked;
    bool in_order;          /* they are taken in this order */
    uint64_t n_used, n_hit; /* experts that visits asked for, and those of them that were here already */
} expert_table;

/* A choice of a visit: an expert, counted in its block, and how many of the visit's rows chose it. */
typedef struct expert_use {
    int32_t expert;
    int64_t n_row;
} expert_use;

/* A visit of the block with experts [first, first + n) has n_row rows and uses these experts, each once.
 * in_order: they are taken in this order. */
void expert_table_ask(expert_table *t, int first, int n, const expert_use *uses, int n_use, int64_t n_row,
                      bool in_order);
/* The next slot to read: its expert was absent and is asked for; what was in the slot before is absent now.
 * *before: that expert, or -1. Returns -1 if every expert that is asked for has a slot, or no slot is free.
 */
int expert_table_read(expert_table *t, int *before);
/* The expert of an ARRIVING slot has arrived, or, with good false, could not be read. */
void expert_table_arrived(expert_table *t, int slot, bool good);
/* Pins the next expert in the order of asking, if it is here, or, without an order, any that is, and returns
 * its slot; -1: none. */
int expert_table_take(expert_table *t);
/* Ends the use of a pinned expert. */
void expert_table_end(expert_table *t, int slot);
/* No expert is asked for any more: the visit has ended, also early. */
void expert_table_forget(expert_table *t);

#endif
