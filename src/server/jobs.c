/* jobs.c - handles the jobs of a server outside the batch: results, embeddings, failures, and clients that
 * have left. All functions except jobs_drop run on the computing thread. */
#include "server/jobs.h"

#include "base/thread.h"
#include "server/embed.h"
#include "server/job.h"

#include <poll.h>
#include <stdio.h>

enum { PING_S = 10, WATCHED = 64 };

static void fail(job *j, const nib_error *err) {
    fault_engine(&j->why, err);
    for (size_t i = 0; i < j->n_answer; i++)
        if (!j->answers[i].done)
            nib_batch_cancel(j->model->batch, j->answers[i].id);
}

static answer *find(const served *m, int64_t id) {
    for (job *j = m->s->jobs; j; j = j->next)
        for (size_t i = 0; i < j->n_answer && j->model == m; i++)
            if (j->answers[i].id == id)
                return &j->answers[i];
    return NULL;
}

const double server_times[N_TIME - 1] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};

static void count_first(server_counts *c, double seconds) {
    size_t i = 0;
    while (i < N_TIME - 1 && seconds > server_times[i])
        i++;
    c->first_token[i]++;
}

static void count(server *s, const answer *a) {
    server_counts *c = &s->counts;
    const nib_result *r = &a->result;
    c->n_cancelled += a->how.status == NIB_E_CANCELLED;
    c->n_failed += a->how.status != NIB_OK && a->how.status != NIB_E_CANCELLED;
    c->prompt_tokens += (uint64_t)r->prompt_n;
    c->cached_tokens += r->prompt_n > 0 ? (uint64_t)((int64_t)a->n_prompt - r->prompt_n) : 0;
    c->prompt_s += r->prompt_s;
    if (r->n_token > 0)
        count_first(c, r->prompt_s);
    c->predicted_tokens += r->n_token;
    c->predicted_s += r->predicted_s;
}

/* Closes an answer. True: the job has nothing left to compute and was removed from the list. */
static bool close_answer(server *s, answer *a) {
    job *j = a->of;
    a->done = true;
    j->n_left--;
    s->n_answer--;
    count(s, a);
    if (a->how.status != NIB_OK && a->how.status != NIB_E_CANCELLED)
        fail(j, &a->how);
    if (j->at && (j->n_left == 0 || j->call.stream))
        exchange_resume(j->at);
    if (j->n_left > 0)
        return false;
    job **at = &s->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    return true;
}

void jobs_take(served *m) {
    server *s = m->s;
    int64_t id;
    nib_result result;
    nib_error how;
    while (nib_batch_take(m->batch, &id, &result, &how)) {
        pthread_mutex_lock(&s->lock);
        answer *a = find(m, id);
        a->result = result;
        a->how = how;
        job *j = a->of;
        const bool last = close_answer(s, a);
        pthread_mutex_unlock(&s->lock);
        if (last)
            job_release(j);
    }
}

/* The embedding that has waited longest. */
static job *next_embedding(server *s) {
    job *found = NULL;
    for (job *j = s->jobs; j; j = j->next)
        if (j->embedding && !j->answers[0].done)
            found = j;
    return found;
}

bool jobs_embed(server *s) {
    nib_error err = {0};
    pthread_mutex_lock(&s->lock);
    job *j = next_embedding(s);
    const bool wanted = j && j->at;
    pthread_mutex_unlock(&s->lock);
    if (!j)
        return false;
    err.status = wanted ? embedding_compute(j, &err) : NIB_E_CANCELLED;
    pthread_mutex_lock(&s->lock);
    j->answers[0].how = err;
    close_answer(s, &j->answers[0]);
    pthread_mutex_unlock(&s->lock);
    job_release(j);
    return true;
}

void jobs_fail(served *m, const nib_error *err) {
    server *s = m->s;
    pthread_mutex_lock(&s->lock);
    for (job *j = s->jobs; j; j = j->next)
        if (j->model == m && !j->embedding)
            fail(j, err);
    m->failed = time_now();
    snprintf(m->failed_why, sizeof m->failed_why, "%s", err->message);
    pthread_mutex_unlock(&s->lock);
}

static void drop(job *j) {
    exchange_resume(j->at);
    job_cancel(j);
}

void jobs_drop(server *s) {
    pthread_mutex_lock(&s->lock);
    for (job *j = s->jobs; j; j = j->next)
        drop(j);
    pthread_mutex_unlock(&s->lock);
}

static void watch(struct pollfd *fds, job **jobs, nfds_t n) {
    const double now = time_now();
    if (n && poll(fds, n, 0) < 0)
        return;
    for (nfds_t i = 0; i < n; i++) {
        job *j = jobs[i];
        if (fds[i].revents) { /* the client has closed the connection, or does not read */
            drop(j);
        } else if (j->call.stream && j->how->ping && now - j->written_at > PING_S) {
            j->how->ping(j, &j->out);
            j->written_at = now;
            exchange_resume(j->at);
        }
    }
}

void jobs_watch(server *s) {
    struct pollfd fds[WATCHED];
    job *jobs[WATCHED];
    nfds_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (job *j = s->jobs; j; j = j->next) {
        if (!j->at || !j->at->suspended)
            continue;
        fds[n] = (struct pollfd){.fd = j->at->fd, .events = POLLRDHUP};
        jobs[n++] = j;
        if (n == WATCHED) {
            watch(fds, jobs, n);
            n = 0;
        }
    }
    watch(fds, jobs, n);
    pthread_mutex_unlock(&s->lock);
}
