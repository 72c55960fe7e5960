/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "steps.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void
answers(const char *step, int rc)
{
	tell("%s: %s", step, rpma_err_2str(rc));
}

void
must(const char *step, int rc)
{
	answers(step, rc);
	if (rc)
		give_up("this was to succeed");
}

void
need(const char *step, int rc)
{
	if (rc)
		must(step, rc);
}

char *
pages(void)
{
	char *bytes = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (bytes == MAP_FAILED)
		give_up("no memory");
	return bytes;
}

char
pattern(size_t place, unsigned seed)
{
	return (char)(place * 7 + place / 256 + seed);
}

void
fill(char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = pattern(i, seed);
}

bool
filled(const char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != pattern(i, seed))
			return false;
	}
	return true;
}

/* ---- Completions -------------------------------------------------------------------------------------------------------- */

/* Completions that rdma-core's headers know since version 45. */
#define WC_FLUSH 8
#define WC_ATOMIC_WRITE 9

static const char *
opcode_name(const struct ibv_wc *wc)
{
	switch ((int)wc->opcode) {
	case IBV_WC_SEND:
		return "SEND";
	case IBV_WC_RDMA_WRITE:
		return "RDMA_WRITE";
	case IBV_WC_RDMA_READ:
		return "RDMA_READ";
	case WC_FLUSH:
		return "FLUSH";
	case WC_ATOMIC_WRITE:
		return "ATOMIC_WRITE";
	case IBV_WC_RECV:
		return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM:
		return "RECV_RDMA_WITH_IMM";
	default:
		return "ANOTHER OPCODE";
	}
}

struct ibv_wc
next_wc(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int rc;

	while ((rc = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		need("wait for a completion", rpma_cq_wait(cq));
	need("take a completion", rc);
	return wc;
}

/* An operation's completion tells no length but a read's, and a failed one tells no opcode either. */
static void
tell_wc_as(const char *cq_name, const struct ibv_wc *wc, const char *opcode, const char *connection)
{
	char length[32] = "", number[32] = "";

	if (wc->status != IBV_WC_SUCCESS) {
		tell("%s: request %d of %s: %s", cq_name, (int)wc->wr_id, connection, ibv_wc_status_str(wc->status));
		return;
	}
	if (wc->opcode == IBV_WC_RECV || wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM || !strcmp(opcode, "RDMA_READ"))
		snprintf(length, sizeof(length), ", %" PRIu32 " bytes", wc->byte_len);
	if (wc->opcode & IBV_WC_RECV)
		snprintf(number, sizeof(number), wc->wc_flags & IBV_WC_WITH_IMM ? ", number 0x%08" PRIx32 : ", no number",
			ntohl(wc->imm_data));
	tell("%s: request %d of %s: %s, %s%s%s", cq_name, (int)wc->wr_id, connection, ibv_wc_status_str(wc->status), opcode, length,
		number);
}

void
tell_wc(const char *cq_name, const struct ibv_wc *wc, const char *connection)
{
	tell_wc_as(cq_name, wc, opcode_name(wc), connection);
}

const char *
whose(const struct ibv_wc *wc, const struct link *link)
{
	return wc->qp_num == link->qp_num ? "this connection" : "ANOTHER CONNECTION";
}

struct ibv_wc
completion(const struct link *link, struct rpma_cq *cq)
{
	struct ibv_wc wc = next_wc(cq);

	tell_wc(cq == link->cq ? "CQ" : "receive CQ", &wc, whose(&wc, link));
	return wc;
}

static bool
is_native(const struct link *link, const char *operation, int native, int emulated, const char *either)
{
	struct ibv_wc wc = next_wc(link->cq);
	bool known = (int)wc.opcode == native || (int)wc.opcode == emulated;

	tell_wc_as("CQ", &wc, known ? either : opcode_name(&wc), whose(&wc, link));
	fprintf(stderr, "%s: %s is made by %s\n", scene, operation, opcode_name(&wc));
	return (int)wc.opcode == native;
}

bool
flush_is_native(const struct link *link)
{
	return is_native(link, "flush", WC_FLUSH, IBV_WC_RDMA_READ, "FLUSH or RDMA_READ");
}

bool
atomic_write_is_native(const struct link *link)
{
	return is_native(link, "atomic write", WC_ATOMIC_WRITE, IBV_WC_RDMA_WRITE, "ATOMIC_WRITE or RDMA_WRITE");
}

/* ---- Connections -------------------------------------------------------------------------------------------------------- */

struct rpma_conn_cfg *
configured(uint32_t rcq_size, bool shared, struct rpma_srq *srq)
{
	struct rpma_conn_cfg *cfg = NULL;

	need("connection configuration", rpma_conn_cfg_new(&cfg));
	need("its timeout", rpma_conn_cfg_set_timeout(cfg, 5000));
	need("its CQ", rpma_conn_cfg_set_cq_size(cfg, 32));
	need("its SQ", rpma_conn_cfg_set_sq_size(cfg, 16));
	need("its RQ", rpma_conn_cfg_set_rq_size(cfg, 16));
	need("its receive CQ", rpma_conn_cfg_set_rcq_size(cfg, rcq_size));
	need("its channel", rpma_conn_cfg_set_compl_channel(cfg, shared));
	if (srq)
		need("its SRQ", rpma_conn_cfg_set_srq(cfg, srq));
	return cfg;
}

void
next_event(struct rpma_conn *conn)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	need("next event", rpma_conn_next_event(conn, &event));
	tell("event: %s", rpma_utils_conn_event_2str(event));
}

struct hello
hello(const struct end *end)
{
	struct rpma_peer_cfg *cfg = NULL;
	struct hello hello = {0};

	need("descriptor of the window", rpma_mr_get_descriptor(end->window_mr, hello.window));
	need("configuration of the peer", rpma_peer_cfg_new(&cfg));
	need("its direct write", rpma_peer_cfg_set_direct_write_to_pmem(cfg, end->ep != NULL));
	need("its descriptor", rpma_peer_cfg_get_descriptor(cfg, hello.peer_cfg));
	need("delete it", rpma_peer_cfg_delete(&cfg));
	strcpy(hello.text, end->ep ? "from the server" : "from the client");
	return hello;
}

void
tell_private_data(const char *of, int rc, const struct rpma_conn_private_data *data)
{
	const char *bytes = data->ptr;
	struct hello hello;
	bool zeros = true;

	need("private data", rc);
	if (bytes == NULL || data->len < sizeof(hello))
		give_up("there is too little private data");
	memcpy(&hello, bytes, sizeof(hello));
	hello.text[sizeof(hello.text) - 1] = 0;
	for (size_t i = sizeof(hello); i < data->len; i++)
		zeros = zeros && bytes[i] == 0;
	tell("private data of the %s: %d bytes, \"%s\", %s", of, data->len, hello.text, zeros ? "then zeros" : "then NOT zeros");
}

/* Takes what the other end has told of its window. */
static void
meet(struct link *link)
{
	struct rpma_conn_private_data data = {0};
	struct rpma_peer_cfg *cfg = NULL;
	struct hello hello;
	bool direct = false;
	size_t size = 0;
	int flush_type = 0;

	tell_private_data("connection", rpma_conn_get_private_data(link->conn, &data), &data);
	memcpy(&hello, data.ptr, sizeof(hello));
	need("the other window, by its descriptor", rpma_mr_remote_from_descriptor(hello.window, sizeof(hello.window), &link->remote));
	need("size of the other window", rpma_mr_remote_get_size(link->remote, &size));
	need("flush type of the other window", rpma_mr_remote_get_flush_type(link->remote, &flush_type));
	tell("the other window: %zu bytes, flush type %d", size, flush_type);
	need("the other configuration, by its descriptor",
		rpma_peer_cfg_from_descriptor(hello.peer_cfg, sizeof(hello.peer_cfg), &cfg));
	need("the other configuration's direct write", rpma_peer_cfg_get_direct_write_to_pmem(cfg, &direct));
	tell("the other end has direct write to persistent memory: %s", direct ? "yes" : "no");
	need("apply the other configuration", rpma_conn_apply_remote_peer_cfg(link->conn, cfg));
	need("delete the other configuration", rpma_peer_cfg_delete(&cfg));
}

struct link
connected(struct end *end, const struct rpma_conn_cfg *cfg, int receives)
{
	struct hello ours = hello(end);
	struct rpma_conn_private_data data = {0};
	struct rpma_conn_req *req = NULL;
	struct link link = {0};
	int fd = -1;

	if (end->ep) {
		need("descriptor of the endpoint", rpma_ep_get_fd(end->ep, &fd));
		readable("endpoint", fd);
		must("next request", rpma_ep_next_conn_req(end->ep, cfg, &req));
		tell_private_data("request", rpma_conn_req_get_private_data(req, &data), &data);
	} else {
		must("new request", rpma_conn_req_new(end->peer, end->addr, end->port, cfg, &req));
	}
	for (int i = 1; i <= receives; i++)
		need("receive on the request", rpma_conn_req_recv(req, end->buffer_mr, (size_t)i * SLOT, SLOT, REQUEST(i)));
	data.ptr = &ours;
	data.len = sizeof(ours);
	must("connect", rpma_conn_req_connect(&req, &data, &link.conn));
	holds("the request is used up", req == NULL);
	need("descriptor of the events", rpma_conn_get_event_fd(link.conn, &fd));
	readable("events", fd);
	next_event(link.conn);
	need("CQ", rpma_conn_get_cq(link.conn, &link.cq));
	need("receive CQ", rpma_conn_get_rcq(link.conn, &link.rcq));
	tell("receive CQ: %s", link.rcq ? "one of its own" : "none");
	need("number of the queue pair", rpma_conn_get_qp_num(link.conn, &link.qp_num));
	meet(&link);
	return link;
}

void
forget(struct link *link)
{
	need("forget the other window", rpma_mr_remote_delete(&link->remote));
	must("delete the connection", rpma_conn_delete(&link->conn));
}

void
part(const struct end *end, struct link *link)
{
	if (end->ep)
		next_event(link->conn);
	must("disconnect", rpma_conn_disconnect(link->conn));
	if (!end->ep)
		next_event(link->conn);
}
