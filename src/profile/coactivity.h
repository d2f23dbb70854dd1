/* coactivity.h - the parts of a model that are active together: pointwise mutual information over tokens, and
 * greedy clusters of it (MCAP, paper 3.3), for parts that are paged together.
 * The caller defines a part and whether it is active for a token: a sub-layer, a group of a feed-forward
 * layer's neurons, an expert. PMI(a, b) = ln(p(a and b) / (p(a) p(b))). If every part is active at every
 * token, as in a dense model, it is 0 everywhere and carries no information; the order of use is known
 * (weights/pager.h). It carries information when activity depends on the data. */
#ifndef NIB_PROFILE_COACTIVITY_H
#define NIB_PROFILE_COACTIVITY_H

#include "base/status.h"

enum { MAX_COACTIVITY = 4096 }; /* parts */

typedef struct coactivity {
    int n; /* parts */
    int64_t n_token;
    uint32_t *both; /* [n * n]: number of tokens for which both parts are active; on the diagonal, one part */
} coactivity;

nib_status coactivity_open(coactivity *c, int n, nib_error *err); /* 1 <= n <= MAX_COACTIVITY */
void coactivity_close(coactivity *c);                             /* zeroed is fine */
uint64_t coactivity_bytes(int n);                                 /* memory for n parts */

/* Adds one token: active[n], 0 or 1. */
void coactivity_add(coactivity *c, const uint8_t *active);

double coactivity_share(const coactivity *c, int a); /* of tokens at which a is active; 0 before the first */
/* PMI in nats; 0 if a or b was never active, -infinity if both were active but never together. */
double coactivity_pmi(const coactivity *c, int a, int b);

/* Mutual information of two parts' activity in nats, mean over all pairs; parts that are always or never
 * active contribute 0. */
double coactivity_information(const coactivity *c);

typedef struct coactivity_rule {
    double min_pmi;   /* nats; 0.5 in the paper's code */
    double min_share; /* minimum of p(a and b) / min(p(a), p(b)); 0.3 */
    int max;          /* maximum parts of one cluster; 256 */
} coactivity_rule;

/* Greedy clustering: takes pairs by falling PMI, and merges two clusters if every pair across them satisfies
 * the rule. cluster[n]: number of each part's cluster, from 0 in the order of their first parts. *n_cluster:
 * number of clusters; a part without a partner is a cluster of its own. NIB_E_NOMEM. */
nib_status coactivity_cluster(const coactivity *c, const coactivity_rule *rule, int *cluster, int *n_cluster,
                              nib_error *err);

#endif
