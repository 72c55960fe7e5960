/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What C programs find in the structures of verbs and the connection manager, beyond what librpma looks at: acknowledged events,
 * asynchronous events, and what headers compile in. verbs_steps.expected is what soft-RoCE makes of it; `run-verbs` compares.
 *
 *   verbs_steps ADDR PORT         what is the same on soft-RoCE
 *   verbs_steps ADDR PORT door    then what is about the software provider alone
 */
#include "verbs_steps.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RESOLVE_MS 5000

struct ibv_context *device;
struct ibv_pd *domain;

static struct sockaddr_in address;
static struct rdma_event_channel *client_events, *server_events;

static const struct {
	const char *name;
	void (*play)(void);
	bool door;
} scenes[] = {
	{"context", contexts, false},
	{"identifier", identifiers, false},
	{"builders", builders, false},
	{"completion events", completion_events, false},
	{"asynchronous events", async_events, false},
	{"overflow", overflow, false},
	{"overflow and queue pair", overflow_and_queue_pair, true},
	{"not supported", unsupported, true},
};

/* ---- Telling ------------------------------------------------------------------------------------------------------------ */

void
tell_errno(const char *step, int error)
{
	tell("%s: %s", step, error ? strerror(error) : "done");
}

void
returns_errno(const char *step, int rc)
{
	tell_errno(step, rc);
}

void
sets_errno(const char *step, int rc)
{
	tell_errno(step, rc ? errno : 0);
}

void
need(const char *step, int rc)
{
	if (rc) {
		tell_errno(step, rc < 0 ? errno : rc);
		give_up("this was to succeed");
	}
}

void *
made(const char *what, void *object)
{
	need(what, object ? 0 : -1);
	return object;
}

void
silent(const char *what, int fd)
{
	struct pollfd looked_at = {.fd = fd, .events = POLLIN};

	tell("the descriptor of the %s: %s", what, poll(&looked_at, 1, 0) == 0 ? "nothing to read" : "NOT silent");
}

void
is_free(const char *whose, pthread_mutex_t *mutex)
{
	bool locked = pthread_mutex_trylock(mutex) == 0;

	tell("the mutex of the %s: %s", whose, locked && pthread_mutex_unlock(mutex) == 0 ? "free" : "NOT free");
}

/* ---- Connections -------------------------------------------------------------------------------------------------------- */

/* Takes the next event of the connection manager, and returns its identifier. */
static struct rdma_cm_id *
next_cm_event(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	need("next event of the connection manager", rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		tell("%s, NOT %s", rdma_event_str(event->event), rdma_event_str(expected));
		give_up("this was to connect");
	}
	id = event->id;
	need("acknowledge it", rdma_ack_cm_event(event));
	return id;
}

struct ibv_qp_init_attr
attributes(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.srq = srq,
		.cap = {.max_send_wr = 64, .max_recv_wr = srq ? 0 : 16, .max_send_sge = 2, .max_recv_sge = srq ? 0 : 1},
		.qp_type = IBV_QPT_RC,
	};

	return attr;
}

/* Makes the client's queue pair, with builders if there are operations for them. */
static int
create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr attr, uint64_t operations)
{
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = attr.send_cq,
		.recv_cq = attr.recv_cq,
		.cap = attr.cap,
		.qp_type = attr.qp_type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = id->pd,
		.send_ops_flags = operations,
	};

	return operations ? rdma_create_qp_ex(id, &extended) : rdma_create_qp(id, NULL, &attr);
}

struct link
connected(struct ibv_qp_init_attr client, struct ibv_qp_init_attr server)
{
	return connected_with_builders(client, 0, server);
}

struct link
connected_with_builders(struct ibv_qp_init_attr client, uint64_t operations, struct ibv_qp_init_attr server)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct link link;

	need("identifier", rdma_create_id(client_events, &link.client, NULL, RDMA_PS_TCP));
	need("resolve the address", rdma_resolve_addr(link.client, NULL, (struct sockaddr *)&address, RESOLVE_MS));
	next_cm_event(client_events, RDMA_CM_EVENT_ADDR_RESOLVED);
	need("resolve the route", rdma_resolve_route(link.client, RESOLVE_MS));
	next_cm_event(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	need("the client's queue pair", create_qp(link.client, client, operations));
	need("connect", rdma_connect(link.client, &param));
	link.server = next_cm_event(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
	need("the server's queue pair", rdma_create_qp(link.server, NULL, &server));
	need("accept", rdma_accept(link.server, &param));
	next_cm_event(client_events, RDMA_CM_EVENT_ESTABLISHED);
	next_cm_event(server_events, RDMA_CM_EVENT_ESTABLISHED);
	return link;
}

void
forget(struct link *link)
{
	/* The server's queue pair first: one whose peer is gone might say so. */
	if (link->server->qp)
		rdma_destroy_qp(link->server);
	if (link->client->qp)
		rdma_destroy_qp(link->client);
	need("destroy the server's identifier", rdma_destroy_id(link->server));
	need("destroy the client's identifier", rdma_destroy_id(link->client));
}

void
post(struct ibv_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = {.opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;

	need("post", ibv_post_send(qp, &wr, &bad));
}

void
completes(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		sched_yield();
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		tell("a completion: %s", n < 0 ? strerror(-n) : ibv_wc_status_str(wc.status));
		give_up("this was to succeed");
	}
}

/* ---- Threads that wait -------------------------------------------------------------------------------------------------- */

static void *
run_waiter(void *argument)
{
	struct waiter *waiter = argument;

	atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
	waiter->rc = waiter->call(waiter->object);
	waiter->waited = atomic_load(&waiter->released);
	return NULL;
}

/* Whether a thread sleeps, or is no more: the state behind the name in /proc/self/task/TID/stat (proc(5)). */
static bool
sleeps_or_ended(int tid)
{
	char path[64], line[512], *name_end;
	size_t length;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	stat = fopen(path, "r");
	if (!stat)
		return true;
	length = fread(line, 1, sizeof(line) - 1, stat);
	fclose(stat);
	line[length] = 0;
	name_end = strrchr(line, ')');
	return !name_end || name_end[1] == 0 || name_end[2] == 'S' || name_end[2] == 'Z';
}

void
waits(struct waiter *waiter, int (*call)(void *), void *object)
{
	waiter->call = call;
	waiter->object = object;
	waiter->waited = false;
	atomic_store(&waiter->tid, 0);
	atomic_store(&waiter->released, false);
	need("thread", pthread_create(&waiter->thread, NULL, run_waiter, waiter));
	while (atomic_load(&waiter->tid) == 0 || !sleeps_or_ended(atomic_load(&waiter->tid)))
		sched_yield();
}

void
release(struct waiter *waiter)
{
	atomic_store(&waiter->released, true);
}

void
ended(struct waiter *waiter, const char *claim)
{
	need("join", pthread_join(waiter->thread, NULL));
	need(claim, waiter->rc);
	holds(claim, waiter->waited);
}

/* ---- main --------------------------------------------------------------------------------------------------------------- */

int
main(int argc, char **argv)
{
	struct rdma_cm_id *listener;
	bool door = argc == 4 && !strcmp(argv[3], "door");

	if ((argc != 3 && !door) || !inet_aton(argv[1], &address.sin_addr)) {
		fprintf(stderr, "usage: verbs_steps ADDR PORT [door]\n");
		return 2;
	}
	tell_in_time();
	address.sin_family = AF_INET;
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	client_events = made("event channel", rdma_create_event_channel());
	server_events = made("event channel", rdma_create_event_channel());
	need("identifier", rdma_create_id(server_events, &listener, NULL, RDMA_PS_TCP));
	need("bind", rdma_bind_addr(listener, (struct sockaddr *)&address));
	need("listen", rdma_listen(listener, 4));
	device = listener->verbs;
	holds("the listener has a device", device != NULL);
	domain = made("protection domain", ibv_alloc_pd(device));
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		if (door || !scenes[i].door) {
			scene = scenes[i].name;
			scenes[i].play();
		}
	}
	scene = "end";
	/* It is refused as long as anything is left that was made from it. */
	returns_errno("free the protection domain", ibv_dealloc_pd(domain));
	sets_errno("destroy the listener", rdma_destroy_id(listener));
	rdma_destroy_event_channel(client_events);
	rdma_destroy_event_channel(server_events);
	return 0;
}
