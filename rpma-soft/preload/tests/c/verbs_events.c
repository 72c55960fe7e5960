/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "verbs_steps.h"

#include <errno.h>
#include <string.h>

/* ---- What threads wait in ----------------------------------------------------------------------------------------------- */

static int
destroy_cq(void *cq)
{
	return ibv_destroy_cq(cq);
}

static int
destroy_srq(void *srq)
{
	return ibv_destroy_srq(srq);
}

static int
destroy_qp_of(void *id)
{
	rdma_destroy_qp(id);
	return 0;
}

static int
get_cq_event(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	return ibv_get_cq_event(channel, &cq, &context);
}

static struct ibv_async_event blocked_for;

static int
get_async_event(void *context)
{
	return ibv_get_async_event(context, &blocked_for);
}

/* Waits at the queue's condition until all events that there were are acknowledged. */
static uint32_t awaited;

static int
wait_for_acknowledgement(void *object)
{
	struct ibv_cq *cq = object;

	pthread_mutex_lock(&cq->mutex);
	while (cq->comp_events_completed != awaited)
		pthread_cond_wait(&cq->cond, &cq->mutex);
	return pthread_mutex_unlock(&cq->mutex);
}

/* ---- Completion events -------------------------------------------------------------------------------------------------- */

/* Takes the event that is there, and tells whether it is of this queue. */
static void
takes(struct ibv_comp_channel *channel, struct ibv_cq *cq, void *expected_context)
{
	struct ibv_cq *told = NULL;
	void *context = NULL;

	need("take the event", ibv_get_cq_event(channel, &told, &context));
	holds("it is of this queue, with what the program gave it", told == cq && context == expected_context);
}

static void
raises(struct ibv_qp *qp, struct ibv_cq *cq)
{
	need("arm", ibv_req_notify_cq(cq, 0));
	post(qp, IBV_WR_RDMA_WRITE);
}

static void
tell_counts(const struct ibv_cq *cq)
{
	tell("acknowledged: %u of completions, %u asynchronous", cq->comp_events_completed, cq->async_events_completed);
}

void
completion_events(void)
{
	int cookie;
	struct ibv_comp_channel *channel = made("channel", ibv_create_comp_channel(device));
	struct ibv_cq *cq, *other;
	struct ibv_qp *qp;
	struct waiter waiter;
	struct link link;

	tell("queues of the channel: %d", channel->refcnt);
	cq = made("queue", ibv_create_cq(device, 64, &cookie, channel, 0));
	other = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	tell("queues of the channel: %d", channel->refcnt);
	returns_errno("destroy the channel, which has a queue", ibv_destroy_comp_channel(channel));
	holds("the queue has its channel and its device", cq->channel == channel && cq->context == device);
	tell_counts(cq);
	is_free("queue", &cq->mutex);
	link = connected(attributes(cq, cq, NULL), attributes(other, other, NULL));
	qp = link.client->qp;

	silent("channel", channel->fd);
	blocking(channel->fd, false);
	sets_errno("take an event, where there is none", get_cq_event(channel));
	blocking(channel->fd, true);
	raises(qp, cq);
	readable("channel", channel->fd);
	takes(channel, cq, &cookie);
	completes(cq);
	silent("channel", channel->fd);
	tell_counts(cq);
	ibv_ack_cq_events(cq, 1);
	tell_counts(cq);
	is_free("queue", &cq->mutex);
	ibv_ack_cq_events(cq, 0);
	tell_counts(cq);

	for (int i = 0; i < 3; i++) {
		raises(qp, cq);
		takes(channel, cq, &cookie);
		completes(cq);
	}
	awaited = 4;
	waits(&waiter, wait_for_acknowledgement, cq);
	release(&waiter);
	ibv_ack_cq_events(cq, 3);
	ended(&waiter, "an acknowledgement wakes who waits at the queue's condition");
	tell_counts(cq);

	waits(&waiter, get_cq_event, channel);
	release(&waiter);
	raises(qp, cq);
	ended(&waiter, "who asks for an event waits for it");
	completes(cq);
	raises(qp, cq);
	takes(channel, cq, &cookie);
	completes(cq);
	/* One that nobody takes. */
	raises(qp, cq);
	readable("channel", channel->fd);
	returns_errno("destroy the queue, which a queue pair uses", ibv_destroy_cq(cq));
	forget(&link);
	waits(&waiter, destroy_cq, cq);
	ibv_ack_cq_events(cq, 1);
	release(&waiter);
	/* As ibv_ack_cq_events does it. */
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed++;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
	ended(&waiter, "the queue is destroyed when both events that were taken are acknowledged");
	silent("channel", channel->fd);
	tell("queues of the channel: %d", channel->refcnt);
	returns_errno("destroy the other queue", ibv_destroy_cq(other));
	returns_errno("destroy the channel", ibv_destroy_comp_channel(channel));
}

/* ---- Asynchronous events ------------------------------------------------------------------------------------------------ */

static void
nothing_happened(void)
{
	struct ibv_async_event event;

	silent("device", device->async_fd);
	blocking(device->async_fd, false);
	sets_errno("take an asynchronous event, where there is none", ibv_get_async_event(device, &event));
	blocking(device->async_fd, true);
}

static struct ibv_async_event
takes_async(enum ibv_event_type expected, void *about)
{
	struct ibv_async_event event = {0};

	readable("device", device->async_fd);
	need("take the event", ibv_get_async_event(device, &event));
	tell("event: %s", ibv_event_type_str(event.event_type));
	/* Whatever it is about: they are all in one union. */
	holds("it is that, and of this object", event.event_type == expected && event.element.cq == about);
	return event;
}

/* A message, for which there is a receive in the shared queue. */
static void
takes_a_receive(struct link *link, struct ibv_cq *client_cq, struct ibv_cq *server_cq)
{
	post(link->client->qp, IBV_WR_SEND);
	completes(client_cq);
	completes(server_cq);
}

static void
set_limit(struct ibv_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr attr = {.srq_limit = limit};

	need("limit", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
}

void
async_events(void)
{
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	struct ibv_srq *srq = made("shared receive queue", ibv_create_srq(domain, &srq_attr));
	struct ibv_cq *client_cq = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct ibv_cq *server_cq = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct ibv_recv_wr receive = {0}, *bad;
	struct ibv_async_event event;
	struct waiter waiter;
	struct link link = connected(attributes(client_cq, client_cq, NULL), attributes(server_cq, server_cq, srq));
	struct ibv_qp *qp = link.server->qp;

	for (int i = 0; i < 4; i++)
		need("receive", ibv_post_srq_recv(srq, &receive, &bad));
	is_free("shared receive queue", &srq->mutex);
	is_free("queue pair", &qp->mutex);
	nothing_happened();

	set_limit(srq, 4);
	takes_a_receive(&link, client_cq, server_cq);
	event = takes_async(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	nothing_happened();
	tell("acknowledged: %u", srq->events_completed);
	ibv_ack_async_event(&event);
	tell("acknowledged: %u", srq->events_completed);
	is_free("shared receive queue", &srq->mutex);

	waits(&waiter, get_async_event, device);
	set_limit(srq, 3);
	release(&waiter);
	takes_a_receive(&link, client_cq, server_cq);
	ended(&waiter, "who asks for an asynchronous event waits for it");
	holds("it is of the shared receive queue",
		blocked_for.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && blocked_for.element.srq == srq);

	need("error state", ibv_modify_qp(qp, &error, IBV_QP_STATE));
	event = takes_async(IBV_EVENT_QP_LAST_WQE_REACHED, qp);
	tell("acknowledged: %u", qp->events_completed);
	waits(&waiter, destroy_qp_of, link.server);
	release(&waiter);
	ibv_ack_async_event(&event);
	ended(&waiter, "the queue pair is destroyed when its event is acknowledged");
	forget(&link);

	waits(&waiter, destroy_srq, srq);
	release(&waiter);
	ibv_ack_async_event(&blocked_for);
	ended(&waiter, "the shared receive queue is destroyed when its event is acknowledged");

	srq = made("shared receive queue", ibv_create_srq(domain, &srq_attr));
	link = connected(attributes(client_cq, client_cq, NULL), attributes(server_cq, server_cq, srq));
	need("error state", ibv_modify_qp(link.server->qp, &error, IBV_QP_STATE));
	readable("device", device->async_fd);
	forget(&link);
	tell("the queue pair, whose event nobody took, is destroyed");
	nothing_happened();
	returns_errno("destroy the shared receive queue", ibv_destroy_srq(srq));
	returns_errno("destroy the client's queue", ibv_destroy_cq(client_cq));
	returns_errno("destroy the server's queue", ibv_destroy_cq(server_cq));
}

/* ---- A queue that is too small ------------------------------------------------------------------------------------------ */

/* Has one completion more than the queue has room for. */
static struct link
overflows(struct ibv_cq *cq, struct ibv_cq *other)
{
	struct link link = connected(attributes(cq, other, NULL), attributes(other, other, NULL));

	for (int i = 0; i <= cq->cqe; i++)
		post(link.client->qp, IBV_WR_RDMA_WRITE);
	return link;
}

void
overflow(void)
{
	struct ibv_cq *cq = made("queue", ibv_create_cq(device, 1, NULL, NULL, 0));
	struct ibv_cq *other = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct link link = overflows(cq, other);
	struct ibv_async_event event = takes_async(IBV_EVENT_CQ_ERR, cq);
	struct waiter waiter;

	tell_counts(cq);
	/* What the queue pair may have to say goes with it. */
	forget(&link);
	waits(&waiter, destroy_cq, cq);
	release(&waiter);
	ibv_ack_async_event(&event);
	ended(&waiter, "the queue is destroyed when its event is acknowledged");

	cq = made("queue", ibv_create_cq(device, 1, NULL, NULL, 0));
	link = overflows(cq, other);
	event = takes_async(IBV_EVENT_CQ_ERR, cq);
	ibv_ack_async_event(&event);
	tell_counts(cq);
	is_free("queue", &cq->mutex);
	forget(&link);
	returns_errno("destroy the queue", ibv_destroy_cq(cq));
	returns_errno("destroy the other queue", ibv_destroy_cq(other));
	nothing_happened();
}

void
overflow_and_queue_pair(void)
{
	struct ibv_cq *cq = made("queue", ibv_create_cq(device, 1, NULL, NULL, 0));
	struct ibv_cq *other = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct link link = overflows(cq, other);
	struct ibv_qp *qp = link.client->qp;
	struct ibv_async_event event = takes_async(IBV_EVENT_CQ_ERR, cq), fatal;

	ibv_ack_async_event(&event);
	fatal = takes_async(IBV_EVENT_QP_FATAL, qp);
	tell("acknowledged: %u", qp->events_completed);
	ibv_ack_async_event(&fatal);
	tell("acknowledged: %u", qp->events_completed);
	forget(&link);
	returns_errno("destroy the queue", ibv_destroy_cq(cq));
	returns_errno("destroy the other queue", ibv_destroy_cq(other));
	/* An event that is about no object, as a program may have from elsewhere, is acknowledged by doing nothing. */
	event = (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE, .element.port_num = 1};
	ibv_ack_async_event(&event);
	nothing_happened();
}
