/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "steps.h"

/* ---- What the other end does not allow ---------------------------------------------------------------------------------- */

/* Where in its window the server has the descriptors of a region that may only be written, and of one that is no more. */
#define WRITE_ONLY 1000
#define GONE 1100

static struct rpma_mr_remote *
read_descriptor(struct end *end, const struct link *link, size_t offset)
{
	struct rpma_mr_remote *remote = NULL;

	must("read a descriptor", rpma_read(link->conn, end->buffer_mr, 0, link->remote, offset, MR_DESCRIPTOR, SIGNALLED, REQUEST(50)));
	completion(link, link->cq);
	need("decode it", rpma_mr_remote_from_descriptor(end->buffer, MR_DESCRIPTOR, &remote));
	return remote;
}

void
fault_client(struct end *end)
{
	static const char *const faults[4] = {"write beyond the window", "read from a region for writes",
		"write to a region that is no more", "read into a region for sends"};

	for (int fault = 0; fault < 4; fault++) {
		struct link link = connected(end, DEFAULTS, 0);
		struct rpma_mr_remote *other = read_descriptor(end, &link, fault == 2 ? GONE : WRITE_ONLY);
		struct rpma_mr_local *send_only = NULL;
		int rc = 0;

		/* What would be seen, if it came. */
		memset(end->buffer, 'x', SLOT);
		must("register for sends", rpma_mr_reg(end->peer, end->buffer, REGION, RPMA_MR_USAGE_SEND, &send_only));
		switch (fault) {
		case 0:
			rc = rpma_write(link.conn, link.remote, REGION - 4, end->buffer_mr, 0, 8, QUIET, REQUEST(51));
			break;
		case 1:
			rc = rpma_read(link.conn, end->buffer_mr, 0, other, 0, 8, QUIET, REQUEST(51));
			break;
		case 2:
			rc = rpma_write(link.conn, other, 0, end->buffer_mr, 0, 8, QUIET, REQUEST(51));
			break;
		case 3:
			rc = rpma_read(link.conn, send_only, 0, link.remote, 0, 8, QUIET, REQUEST(51));
			break;
		}
		must(faults[fault], rc);
		completion(&link, link.cq);
		must("write 1 byte", rpma_write(link.conn, link.remote, 0, end->buffer_mr, 0, 1, SIGNALLED, REQUEST(52)));
		completion(&link, link.cq);
		must("write 1 byte, unsignalled", rpma_write(link.conn, link.remote, 0, end->buffer_mr, 0, 1, QUIET, REQUEST(53)));
		completion(&link, link.cq);
		if (fault % 2)
			part(end, &link);
		need("delete the other region", rpma_mr_remote_delete(&other));
		forget(&link);
		must("deregister", rpma_mr_dereg(&send_only));
	}
}

void
fault_server(struct end *end)
{
	struct rpma_mr_local *write_only = NULL, *gone = NULL;
	char *bytes = pages();

	must("register for writes", rpma_mr_reg(end->peer, bytes, REGION, RPMA_MR_USAGE_WRITE_DST, &write_only));
	must("register", rpma_mr_reg(end->peer, bytes, REGION, RPMA_MR_USAGE_WRITE_DST, &gone));
	need("descriptor", rpma_mr_get_descriptor(write_only, end->window + WRITE_ONLY));
	need("descriptor", rpma_mr_get_descriptor(gone, end->window + GONE));
	must("deregister", rpma_mr_dereg(&gone));
	for (int fault = 0; fault < 4; fault++) {
		struct link link = connected(end, DEFAULTS, 2);

		/* Half of the clients just delete the connection. */
		part(end, &link);
		for (int i = 0; i < 2; i++)
			completion(&link, link.cq);
		holds("nothing was written",
			!memchr(end->window, 'x', 1) && !memchr(end->window + REGION - 4, 'x', 4) && !memchr(bytes, 'x', REGION));
		forget(&link);
	}
	must("deregister", rpma_mr_dereg(&write_only));
	munmap(bytes, REGION);
}

/* ---- No connection ------------------------------------------------------------------------------------------------------ */

/* A request to this port, which comes to nothing. */
static void
refused(struct end *end, const char *port)
{
	struct hello ours = hello(end);
	struct rpma_conn_private_data data = {&ours, sizeof(ours)};
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	must("new request", rpma_conn_req_new(end->peer, end->addr, port, DEFAULTS, &req));
	must("connect", rpma_conn_req_connect(&req, &data, &conn));
	next_event(conn);
	need("private data of the connection", rpma_conn_get_private_data(conn, &data));
	tell("private data of the connection: %d bytes", data.len);
	answers("disconnect", rpma_conn_disconnect(conn));
	must("delete the connection", rpma_conn_delete(&conn));
}

void
rejected_client(struct end *end)
{
	for (int i = 0; i < 3; i++)
		refused(end, end->port);
}

void
rejected_server(struct end *end)
{
	for (int i = 0; i < 3; i++) {
		struct rpma_conn_req *req = NULL;
		struct rpma_conn_private_data data = {0};

		must("next request", rpma_ep_next_conn_req(end->ep, DEFAULTS, &req));
		tell_private_data("request", rpma_conn_req_get_private_data(req, &data), &data);
		must("delete the request", rpma_conn_req_delete(&req));
	}
}

void
nobody_client(struct end *end)
{
	char port[16];
	struct rpma_conn_req *req = NULL;

	snprintf(port, sizeof(port), "%d", atoi(end->port) + 1);
	refused(end, port);
	must("new request", rpma_conn_req_new(end->peer, end->addr, end->port, DEFAULTS, &req));
	must("delete it, before it is sent", rpma_conn_req_delete(&req));
}

void
nobody_server(struct end *end)
{
	(void)end;
}
