/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "steps.h"

/* ---- Messages, both ways, with a receive CQ at each end ----------------------------------------------------------------- */

/* The next receive's completion, and whether the message in its slot is this one. */
static void
receives(const struct end *end, const struct link *link, struct rpma_cq *cq, const char *message)
{
	struct ibv_wc wc = completion(link, cq);

	if (message)
		holds("it is the message expected", wc.wr_id < SLOTS && !strcmp(end->buffer + wc.wr_id * SLOT, message));
}

/* Sends text from the buffer behind the slots, where it has to stay until the other end has it. */
static void
sends(struct end *end, const struct link *link, const char *text, int request)
{
	strcpy(end->buffer + SLOTS * SLOT, text);
	must("send, signalled", rpma_send(link->conn, end->buffer_mr, SLOTS * SLOT, strlen(text) + 1, SIGNALLED, REQUEST(request)));
	completion(link, link->cq);
}

/*
 * The same without a completion. A message's answer may come before the message's own acknowledgement (soft-RoCE shows it): where
 * both would be in one CQ, or the answer is the end of the connection, nothing waits for the latter.
 */
static void
sends_quietly(struct end *end, const struct link *link, const char *text, int request)
{
	strcpy(end->buffer + SLOTS * SLOT, text);
	must("send, unsignalled", rpma_send(link->conn, end->buffer_mr, SLOTS * SLOT, strlen(text) + 1, QUIET, REQUEST(request)));
}

void
messages_client(struct end *end)
{
	struct rpma_conn_cfg *cfg = configured(16, false, NULL);
	struct link link = connected(end, cfg, 6);
	char *text = end->buffer + SLOTS * SLOT;

	need("delete the configuration", rpma_conn_cfg_delete(&cfg));
	sends(end, &link, "first, by the client", 20);
	receives(end, &link, link.rcq, "first, by the server");
	strcpy(text, "second, by the client");
	must("send with a number",
		rpma_send_with_imm(link.conn, end->buffer_mr, SLOTS * SLOT, 22, SIGNALLED, 0x01020304, REQUEST(21)));
	completion(&link, link.cq);
	strcpy(text, "written, with a number, by the client");
	must("write with a number",
		rpma_write_with_imm(link.conn, link.remote, 700, end->buffer_mr, SLOTS * SLOT, 38, SIGNALLED, 0x05060708, REQUEST(22)));
	completion(&link, link.cq);
	receives(end, &link, link.rcq, NULL);
	holds("the write before it has come", !strcmp(end->window + 800, "written, with a number, by the server"));
	receives(end, &link, link.rcq, NULL);

	/* For the second of these, the server has no receive yet. */
	must("write 0 bytes with a number", rpma_write_with_imm(link.conn, NULL, 0, NULL, 0, 0, QUIET, 0xFFFFFFFF, REQUEST(23)));
	fill(text, LARGE, 2);
	must("send 50000 bytes", rpma_send(link.conn, end->buffer_mr, SLOTS * SLOT, LARGE, SIGNALLED, REQUEST(24)));
	completion(&link, link.cq);
	receives(end, &link, link.rcq, "the last, by the server");

	part(end, &link);
	for (int i = 0; i < 2; i++)
		completion(&link, link.rcq);
	forget(&link);
}

void
messages_server(struct end *end)
{
	struct rpma_conn_cfg *cfg = configured(16, false, NULL);
	struct link link = connected(end, cfg, 4);
	char *text = end->buffer + SLOTS * SLOT;

	need("delete the configuration", rpma_conn_cfg_delete(&cfg));
	receives(end, &link, link.rcq, "first, by the client");
	sends(end, &link, "first, by the server", 20);
	receives(end, &link, link.rcq, "second, by the client");
	receives(end, &link, link.rcq, NULL);
	holds("the write before it has come", !strcmp(end->window + 700, "written, with a number, by the client"));
	strcpy(text, "written, with a number, by the server");
	must("write with a number",
		rpma_write_with_imm(link.conn, link.remote, 800, end->buffer_mr, SLOTS * SLOT, 38, SIGNALLED, 0x80000001, REQUEST(21)));
	completion(&link, link.cq);
	must("send 0 bytes, signalled", rpma_send(link.conn, NULL, 0, 0, SIGNALLED, REQUEST(22)));
	completion(&link, link.cq);

	receives(end, &link, link.rcq, NULL);
	/* A round trip, in which the message most likely comes and is sent away. */
	must("write 0 bytes", rpma_write(link.conn, NULL, 0, NULL, 0, 0, SIGNALLED, REQUEST(23)));
	completion(&link, link.cq);
	must("a receive, which the message waits for", rpma_recv(link.conn, end->buffer_mr, SLOTS * SLOT, LARGE, REQUEST(5)));
	receives(end, &link, link.rcq, NULL);
	holds("50000 bytes have come", filled(text, LARGE, 2));
	must("a receive for nothing", rpma_recv(link.conn, end->buffer_mr, 6 * SLOT, SLOT, REQUEST(6)));
	must("a receive of no memory", rpma_recv(link.conn, NULL, 0, 0, REQUEST(7)));
	sends_quietly(end, &link, "the last, by the server", 24);

	part(end, &link);
	for (int i = 0; i < 2; i++)
		completion(&link, link.rcq);
	forget(&link);
}

/* ---- A channel for both CQs --------------------------------------------------------------------------------------------- */

/* Waits on the channel, tells which CQ it was for, and takes the completion there. */
static void
channel(const struct link *link)
{
	struct rpma_cq *cq = NULL;
	bool is_rcq = false;

	need("wait on the channel", rpma_conn_wait(link->conn, 0, &cq, &is_rcq));
	tell("the channel is for the %s", cq == link->cq && !is_rcq ? "CQ" : cq == link->rcq && is_rcq ? "receive CQ" : "WRONG CQ");
	completion(link, cq);
}

static struct link
with_channel(struct end *end)
{
	struct rpma_conn_cfg *cfg = configured(16, true, NULL);
	struct link link = connected(end, cfg, 2);
	int fd = -1;

	need("delete the configuration", rpma_conn_cfg_delete(&cfg));
	answers("wait on the CQ alone", rpma_cq_wait(link.cq));
	answers("wait on the receive CQ alone", rpma_cq_wait(link.rcq));
	answers("descriptor of the CQ alone", rpma_cq_get_fd(link.cq, &fd));
	need("descriptor of the channel", rpma_conn_get_compl_fd(link.conn, &fd));
	return link;
}

void
channel_client(struct end *end)
{
	struct link link = with_channel(end);
	int fd = -1;

	must("write 10 bytes, signalled", rpma_write(link.conn, link.remote, 0, end->buffer_mr, 0, 10, SIGNALLED, REQUEST(30)));
	need("descriptor of the channel", rpma_conn_get_compl_fd(link.conn, &fd));
	readable("channel", fd);
	channel(&link);
	must("write 10 bytes with a number, unsignalled",
		rpma_write_with_imm(link.conn, link.remote, 0, end->buffer_mr, 0, 10, QUIET, 1, REQUEST(31)));
	channel(&link);
	part(end, &link);
	forget(&link);
}

void
channel_server(struct end *end)
{
	struct link link = with_channel(end);

	channel(&link);
	must("write 10 bytes, signalled", rpma_write(link.conn, link.remote, 0, end->buffer_mr, 0, 10, SIGNALLED, REQUEST(30)));
	channel(&link);
	must("send with a number, unsignalled", rpma_send_with_imm(link.conn, end->buffer_mr, 0, 10, QUIET, 2, REQUEST(31)));
	part(end, &link);
	forget(&link);
}

/* ---- Two connections on one SRQ ----------------------------------------------------------------------------------------- */

void
srq_client(struct end *end)
{
	struct rpma_conn_cfg *cfg = configured(0, false, NULL);
	struct link links[2];

	for (int i = 0; i < 2; i++)
		links[i] = connected(end, cfg, 2);
	need("delete the configuration", rpma_conn_cfg_delete(&cfg));
	for (int i = 0; i < 4; i++) {
		const struct link *link = &links[i % 2];
		char text[32];

		snprintf(text, sizeof(text), "message %d", i);
		sends_quietly(end, link, text, 40 + i);
		/* Without a receive CQ, receives complete into the CQ, too. */
		receives(end, link, link->cq, text);
	}
	for (int i = 0; i < 2; i++) {
		part(end, &links[i]);
		forget(&links[i]);
	}
}

/* Takes what four messages complete, wherever, and answers each on its connection. */
static void
echo(struct end *end, const struct link *links, struct rpma_cq *const *cqs, const char *const *cq_names)
{
	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = next_wc(cqs[i % 2]);
		bool first = wc.qp_num == links[0].qp_num, second = wc.qp_num == links[1].qp_num;

		tell_wc(cq_names[i % 2], &wc,
			first ? "the first connection" : second ? "the second connection" : "ANOTHER CONNECTION");
		if (!(first || second) || wc.wr_id >= SLOTS)
			give_up("there is nothing to answer");
		sends_quietly(end, first ? &links[0] : &links[1], end->buffer + wc.wr_id * SLOT, 40 + i);
	}
}

/* An SRQ with receives 1 to 6. */
static struct rpma_srq *
srq_of(struct end *end, uint32_t rcq_size)
{
	struct rpma_srq_cfg *cfg = NULL;
	struct rpma_srq *srq = NULL;

	need("configuration of an SRQ", rpma_srq_cfg_new(&cfg));
	need("its RQ", rpma_srq_cfg_set_rq_size(cfg, 8));
	need("its receive CQ", rpma_srq_cfg_set_rcq_size(cfg, rcq_size));
	must("SRQ", rpma_srq_new(end->peer, cfg, &srq));
	need("delete the configuration", rpma_srq_cfg_delete(&cfg));
	for (int i = 1; i <= 6; i++)
		must("receive on the SRQ", rpma_srq_recv(srq, end->buffer_mr, (size_t)i * SLOT, SLOT, REQUEST(i)));
	return srq;
}

static void
srq_ends(struct end *end, struct link *links, struct rpma_srq *srq)
{
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		part(end, &links[i]);
		/* What is left in the SRQ is no connection's, and does not complete. */
		answers("take a completion, where there is none", rpma_cq_get_wc(links[i].cq, 1, &wc, NULL));
		forget(&links[i]);
	}
	must("delete the SRQ", rpma_srq_delete(&srq));
}

void
srq_with_cq_server(struct end *end)
{
	struct rpma_srq *srq = srq_of(end, 8);
	/* The SRQ's receive CQ takes the place of the one that is asked for here. */
	struct rpma_conn_cfg *cfg = configured(16, false, srq);
	struct rpma_cq *rcq = NULL;
	struct link links[2];

	need("its receive CQ", rpma_srq_get_rcq(srq, &rcq));
	tell("its receive CQ: %s", rcq ? "one of its own" : "none");
	for (int i = 0; i < 2; i++)
		links[i] = connected(end, cfg, 0);
	need("delete the configuration", rpma_conn_cfg_delete(&cfg));
	answers("a receive on a connection with an SRQ", rpma_recv(links[0].conn, end->buffer_mr, 7 * SLOT, SLOT, REQUEST(7)));
	echo(end, links, (struct rpma_cq *[2]){rcq, rcq}, (const char *[2]){"receive CQ of the SRQ", "receive CQ of the SRQ"});
	srq_ends(end, links, srq);
}

void
srq_without_cq_server(struct end *end)
{
	struct rpma_srq *srq = srq_of(end, 0);
	struct rpma_conn_cfg *with = configured(16, false, srq), *without = configured(0, false, srq);
	struct rpma_cq *rcq = NULL;
	struct link links[2];

	need("its receive CQ", rpma_srq_get_rcq(srq, &rcq));
	tell("its receive CQ: %s", rcq ? "one of its own" : "none");
	links[0] = connected(end, with, 0);
	links[1] = connected(end, without, 0);
	need("delete a configuration", rpma_conn_cfg_delete(&with));
	need("delete a configuration", rpma_conn_cfg_delete(&without));
	echo(end, links, (struct rpma_cq *[2]){links[0].rcq, links[1].cq}, (const char *[2]){"receive CQ", "CQ"});
	srq_ends(end, links, srq);
}
