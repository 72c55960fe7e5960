/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the scenes of librpma_steps have in common: telling what happens, completions, and connections.
 *
 * What does something prints a line of what came of it. A line never has in it what differs between two runs: addresses, keys,
 * times, numbers of queue pairs.
 */
#ifndef STEPS_H
#define STEPS_H

#include <librpma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tell.h"

/* Each of an end's two regions. With soft-RoCE's packets of 1024 bytes, a large transfer is many of them. */
#define REGION 65536
#define LARGE 50000
/* The buffer begins with a slot for each receive. */
#define SLOT 64
#define SLOTS 16

#define MR_DESCRIPTOR 21
#define PEER_CFG 1

#define DEFAULTS ((const struct rpma_conn_cfg *)NULL)
#define QUIET RPMA_F_COMPLETION_ON_ERROR
#define SIGNALLED RPMA_F_COMPLETION_ALWAYS
/* The number that a request is known by when it completes. */
#define REQUEST(n) ((void *)(uintptr_t)(n))

/* One of the two processes. */
struct end {
	const char *addr;
	const char *port;
	struct rpma_peer *peer;
	/* Of the server alone. */
	struct rpma_ep *ep;
	/* What the other end may read and write. */
	char *window;
	struct rpma_mr_local *window_mr;
	/* Where this end's own operations come from and go to, and messages arrive. */
	char *buffer;
	struct rpma_mr_local *buffer_mr;
};

/* A connection, as one of its ends has it. */
struct link {
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	/* NULL if there is none. */
	struct rpma_cq *rcq;
	/* The other end's window. */
	struct rpma_mr_remote *remote;
	uint32_t qp_num;
};

/* What each end tells the other with its private data. */
struct hello {
	uint8_t window[MR_DESCRIPTOR];
	uint8_t peer_cfg[PEER_CFG];
	char text[16];
};

/* ---- Telling -------------------------------------------------------------------------------------------------------------- */

/* Tells what a call answered. */
void answers(const char *step, int rc);

/* The same for a call that the rest is built on. */
void must(const char *step, int rc);

/* The same for what is so small a step that it is told only if it fails. */
void need(const char *step, int rc);

/* REGION bytes of memory. */
char *pages(void);

/* Bytes that differ from one place to the next, and from one seed to another. */
char pattern(size_t place, unsigned seed);
void fill(char *bytes, size_t len, unsigned seed);
bool filled(const char *bytes, size_t len, unsigned seed);

/* ---- Completions ---------------------------------------------------------------------------------------------------------- */

/* The next completion, whatever it is. A wake-up without one is legal, so it is not told. */
struct ibv_wc next_wc(struct rpma_cq *cq);

void tell_wc(const char *cq_name, const struct ibv_wc *wc, const char *connection);

/* The name of a completion's connection, which should be this one. */
const char *whose(const struct ibv_wc *wc, const struct link *link);

/* Takes the next completion of a connection, and tells it. */
struct ibv_wc completion(const struct link *link, struct rpma_cq *cq);

/*
 * The same for what is made natively, or by an operation that stands for it, by what the library and the device can. The line is
 * the same; which it was is said on standard error. True if it was native.
 */
bool flush_is_native(const struct link *link);
bool atomic_write_is_native(const struct link *link);

/* ---- Connections ---------------------------------------------------------------------------------------------------------- */

struct hello hello(const struct end *end);

/* Private data, or the failure to get it. It comes in a field of a fixed length, with zeros behind what was sent. */
void tell_private_data(const char *of, int rc, const struct rpma_conn_private_data *data);

struct rpma_conn_cfg *configured(uint32_t rcq_size, bool shared, struct rpma_srq *srq);

void next_event(struct rpma_conn *conn);

/* Connects the two ends, and has receives 1, 2, … ready on this one before anything can arrive. */
struct link connected(struct end *end, const struct rpma_conn_cfg *cfg, int receives);

/* The client disconnects: the server sees it and answers, and then the client sees that. */
void part(const struct end *end, struct link *link);

void forget(struct link *link);

/* ---- The scenes ----------------------------------------------------------------------------------------------------------- */

/* memory.c */
void configurations(struct end *end);
void regions(struct end *end);
void memory_client(struct end *end);
void memory_server(struct end *end);

/* messages.c */
void messages_client(struct end *end);
void messages_server(struct end *end);
void channel_client(struct end *end);
void channel_server(struct end *end);
void srq_client(struct end *end);
void srq_with_cq_server(struct end *end);
void srq_without_cq_server(struct end *end);

/* refusals.c */
void fault_client(struct end *end);
void fault_server(struct end *end);
void rejected_client(struct end *end);
void rejected_server(struct end *end);
void nobody_client(struct end *end);
void nobody_server(struct end *end);

#endif
