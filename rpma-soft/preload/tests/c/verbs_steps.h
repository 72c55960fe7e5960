/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the scenes of verbs_steps have in common: connections, whose two ends are in this process, requests, and threads that wait.
 */
#ifndef VERBS_STEPS_H
#define VERBS_STEPS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tell.h"

/* The device that the address is on, by way of the listener's identifier. */
extern struct ibv_context *device;
extern struct ibv_pd *domain;

/* ---- Telling -------------------------------------------------------------------------------------------------------------- */

/* An errno in words. */
void tell_errno(const char *step, int error);

/* What a call answered that returns an errno, and one that returns -1 and sets it. */
void returns_errno(const char *step, int rc);
void sets_errno(const char *step, int rc);

/* The same for a step that is told only if it fails: 0, -1 with an errno, or an errno. Then the rest makes no sense. */
void need(const char *step, int rc);
void *made(const char *what, void *object);

/* That there is nothing to read. */
void silent(const char *what, int fd);

/* Whether a mutex can be locked, and unlocked again. */
void is_free(const char *whose, pthread_mutex_t *mutex);

/* ---- Connections ---------------------------------------------------------------------------------------------------------- */

struct link {
	struct rdma_cm_id *client;
	struct rdma_cm_id *server;
};

/* Attributes of a queue pair; queues that are NULL are made by the connection manager. */
struct ibv_qp_init_attr attributes(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, struct ibv_srq *srq);

struct link connected(struct ibv_qp_init_attr client, struct ibv_qp_init_attr server);

/* The same, with builders for these operations at the client. */
struct link connected_with_builders(struct ibv_qp_init_attr client, uint64_t operations, struct ibv_qp_init_attr server);

/* Destroys what is left of it. */
void forget(struct link *link);

/* Posts a signalled request without data. */
void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode);

/* Takes the next completion, which has to be a success. */
void completes(struct ibv_cq *cq);

/* ---- Threads that wait ---------------------------------------------------------------------------------------------------- */

struct waiter {
	pthread_t thread;
	atomic_int tid;
	int (*call)(void *);
	void *object;
	int rc;
	/* What the call waits for was about to happen, before it returned. */
	atomic_bool released;
	bool waited;
};

/* Has a thread make a call that waits; returns when it sleeps. */
void waits(struct waiter *waiter, int (*call)(void *), void *object);

/* What it waits for happens now. */
void release(struct waiter *waiter);

/* Waits for its end, and tells that it had waited. */
void ended(struct waiter *waiter, const char *claim);

/* ---- The scenes ----------------------------------------------------------------------------------------------------------- */

/* inline_calls.c */
void contexts(void);
void identifiers(void);
void builders(void);
void unsupported(void);

/* verbs_events.c */
void completion_events(void);
void async_events(void);
void overflow(void);
void overflow_and_queue_pair(void);

#endif
