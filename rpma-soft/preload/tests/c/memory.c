/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "steps.h"

/* ---- Each for itself ---------------------------------------------------------------------------------------------------- */

void
configurations(struct end *end)
{
	struct rpma_conn_cfg *cfg = NULL;
	struct rpma_srq_cfg *srq_cfg = NULL;
	struct rpma_srq *srq = NULL, *same = NULL;
	uint32_t cq = 0, rcq = 0, sq = 0, rq = 0;
	bool shared = false;
	int timeout = 0;

	must("connection configuration", rpma_conn_cfg_new(&cfg));
	for (int changed = 0; changed < 2; changed++) {
		need("its timeout", rpma_conn_cfg_get_timeout(cfg, &timeout));
		need("its CQ", rpma_conn_cfg_get_cq_size(cfg, &cq));
		need("its receive CQ", rpma_conn_cfg_get_rcq_size(cfg, &rcq));
		need("its SQ", rpma_conn_cfg_get_sq_size(cfg, &sq));
		need("its RQ", rpma_conn_cfg_get_rq_size(cfg, &rq));
		need("its channel", rpma_conn_cfg_get_compl_channel(cfg, &shared));
		tell("timeout %d ms, CQ %" PRIu32 ", receive CQ %" PRIu32 ", SQ %" PRIu32 ", RQ %" PRIu32 ", channel %s", timeout, cq, rcq,
			sq, rq, shared ? "shared" : "not shared");
		need("another timeout", rpma_conn_cfg_set_timeout(cfg, 2345));
		need("another CQ", rpma_conn_cfg_set_cq_size(cfg, 21));
		need("another receive CQ", rpma_conn_cfg_set_rcq_size(cfg, 22));
		need("another SQ", rpma_conn_cfg_set_sq_size(cfg, 23));
		need("another RQ", rpma_conn_cfg_set_rq_size(cfg, 24));
		need("another channel", rpma_conn_cfg_set_compl_channel(cfg, true));
	}
	must("configuration of an SRQ", rpma_srq_cfg_new(&srq_cfg));
	need("its RQ", rpma_srq_cfg_get_rq_size(srq_cfg, &rq));
	need("its receive CQ", rpma_srq_cfg_get_rcq_size(srq_cfg, &rcq));
	tell("SRQ %" PRIu32 ", receive CQ %" PRIu32, rq, rcq);
	must("SRQ with a receive CQ of its own", rpma_srq_new(end->peer, srq_cfg, &srq));
	must("put it into the connection configuration", rpma_conn_cfg_set_srq(cfg, srq));
	holds("it is there", !rpma_conn_cfg_get_srq(cfg, &same) && same == srq);
	if (!end->ep) {
		struct rpma_conn_req *req = NULL;

		answers("new request, with a shared channel and this SRQ", rpma_conn_req_new(end->peer, end->addr, end->port, cfg, &req));
	}
	must("delete the SRQ", rpma_srq_delete(&srq));
	must("delete its configuration", rpma_srq_cfg_delete(&srq_cfg));
	must("delete the connection configuration", rpma_conn_cfg_delete(&cfg));
}

void
regions(struct end *end)
{
	struct ibv_context *elsewhere = NULL;
	char *bytes = pages();
	struct rpma_mr_local *mr = NULL;
	void *start = NULL;
	size_t size = 0, descriptor = 0;

	/* An address for documentation (RFC 5737), which no host has. */
	answers("device of an address that is not here",
		rpma_utils_get_ibv_context("192.0.2.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &elsewhere));
	for (int usage = RPMA_MR_USAGE_READ_SRC; usage <= RPMA_MR_USAGE_RECV; usage <<= 1) {
		/* A device with native flush knows that this memory is not persistent, and refuses; another does not. */
		if (usage == RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)
			continue;
		tell("register 1000 bytes at an odd address for usage %d: %s", usage,
			rpma_err_2str(rpma_mr_reg(end->peer, bytes + 1, 1000, usage, &mr)));
		need("its start", rpma_mr_get_ptr(mr, &start));
		need("its size", rpma_mr_get_size(mr, &size));
		need("its descriptor's size", rpma_mr_get_descriptor_size(mr, &descriptor));
		holds("it is that", start == bytes + 1 && size == 1000 && descriptor == MR_DESCRIPTOR);
		must("deregister", rpma_mr_dereg(&mr));
	}
	munmap(bytes, REGION);
}

/* ---- Memory: the client does all, and the server's processor nothing ---------------------------------------------------- */

void
memory_client(struct end *end)
{
	struct link link = connected(end, DEFAULTS, 0);
	char *bytes = end->buffer;
	struct ibv_wc wcs[4];
	enum rpma_conn_event event;
	struct rpma_cq *cq;
	bool native_flush, native_write;
	int fd = -1, compl_fd = -1, n = 0;

	answers("wait on a shared channel", rpma_conn_wait(link.conn, 0, &cq, NULL));
	answers("its descriptor", rpma_conn_get_compl_fd(link.conn, &compl_fd));
	need("descriptor of the events", rpma_conn_get_event_fd(link.conn, &fd));
	blocking(fd, false);
	answers("next event, where there is none", rpma_conn_next_event(link.conn, &event));
	blocking(fd, true);
	need("descriptor of the CQ", rpma_cq_get_fd(link.cq, &fd));
	blocking(fd, false);
	answers("wait for a completion, where there is none", rpma_cq_wait(link.cq));
	blocking(fd, true);
	answers("take a completion, where there is none", rpma_cq_get_wc(link.cq, 1, wcs, NULL));

	strcpy(bytes, "written by the client");
	must("write 22 bytes, unsignalled", rpma_write(link.conn, link.remote, 101, end->buffer_mr, 0, 22, QUIET, REQUEST(1)));
	must("flush them to visibility",
		rpma_flush(link.conn, link.remote, 101, 22, RPMA_FLUSH_TYPE_VISIBILITY, SIGNALLED, REQUEST(2)));
	readable("CQ", fd);
	native_flush = flush_is_native(&link);
	must("read them back", rpma_read(link.conn, end->buffer_mr, 2001, link.remote, 101, 22, SIGNALLED, REQUEST(3)));
	completion(&link, link.cq);
	holds("they are what was written", !strcmp(bytes + 2001, bytes));
	must("write 8 bytes atomically", rpma_atomic_write(link.conn, link.remote, 256, "8 bytes!", SIGNALLED, REQUEST(4)));
	native_write = atomic_write_is_native(&link);
	holds("flush and atomic write are both native, or both not", native_flush == native_write);
	must("read them back", rpma_read(link.conn, end->buffer_mr, 2000, link.remote, 256, 8, SIGNALLED, REQUEST(5)));
	completion(&link, link.cq);
	holds("they are what was written", !memcmp(bytes + 2000, "8 bytes!", 8));
	must("read what the server had there", rpma_read(link.conn, end->buffer_mr, 3000, link.remote, 512, 22, SIGNALLED, REQUEST(6)));
	completion(&link, link.cq);
	holds("it is that", !strcmp(bytes + 3000, "written by the server"));
	answers("flush to persistence", rpma_flush(link.conn, link.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, SIGNALLED, REQUEST(7)));

	must("write 0 bytes", rpma_write(link.conn, NULL, 0, NULL, 0, 0, SIGNALLED, REQUEST(8)));
	completion(&link, link.cq);
	must("read 0 bytes", rpma_read(link.conn, NULL, 0, NULL, 0, 0, SIGNALLED, REQUEST(9)));
	completion(&link, link.cq);

	for (int i = 0; i < 4; i++)
		must("write one byte",
			rpma_write(link.conn, link.remote, 600 + (size_t)i, end->buffer_mr, (size_t)i, 1, SIGNALLED, REQUEST(10 + i)));
	while (n < 4) {
		int got = 0, rc = rpma_cq_get_wc(link.cq, 4 - n, wcs + n, &got);

		if (rc == RPMA_E_NO_COMPLETION)
			rc = rpma_cq_wait(link.cq);
		need("take several completions", rc);
		n += got;
	}
	for (int i = 0; i < 4; i++)
		tell_wc("CQ, several at once", &wcs[i], whose(&wcs[i], &link));

	fill(bytes, LARGE, 1);
	must("write 50000 bytes, unsignalled", rpma_write(link.conn, link.remote, 10000, end->buffer_mr, 0, LARGE, QUIET, REQUEST(14)));
	must("flush them to visibility",
		rpma_flush(link.conn, link.remote, 10000, LARGE, RPMA_FLUSH_TYPE_VISIBILITY, SIGNALLED, REQUEST(15)));
	flush_is_native(&link);
	memset(bytes, 0, LARGE);
	must("read them back", rpma_read(link.conn, end->buffer_mr, 1, link.remote, 10000, LARGE, SIGNALLED, REQUEST(16)));
	completion(&link, link.cq);
	holds("they are what was written", filled(bytes + 1, LARGE, 1));
	must("write the window's last byte",
		rpma_write(link.conn, link.remote, REGION - 1, end->buffer_mr, 1, 1, SIGNALLED, REQUEST(17)));
	completion(&link, link.cq);
	answers("take a completion, where there is none", rpma_cq_get_wc(link.cq, 1, wcs, NULL));
	part(end, &link);
	forget(&link);
}

void
memory_server(struct end *end)
{
	struct link link;

	strcpy(end->window + 512, "written by the server");
	link = connected(end, DEFAULTS, 0);
	part(end, &link);
	holds("22 bytes have come", !memcmp(end->window + 100, "\0written by the client\0", 24));
	holds("8 bytes have come", !memcmp(end->window + 255, "\0" "8 bytes!", 10));
	holds("4 single bytes have come", !memcmp(end->window + 599, "\0writ", 6));
	holds("50000 bytes have come", filled(end->window + 10000, LARGE, 1));
	holds("those around them have not changed", end->window[9999] == 0 && end->window[10000 + LARGE] == 0);
	holds("the last byte has come", end->window[REGION - 1] == pattern(0, 1));
	answers("disconnect again", rpma_conn_disconnect(link.conn));
	forget(&link);
}
