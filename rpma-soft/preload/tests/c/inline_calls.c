/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "verbs_steps.h"

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

/* ---- The context -------------------------------------------------------------------------------------------------------- */

void
contexts(void)
{
	struct verbs_context *extended = verbs_get_ctx(device);
	struct ibv_device_attr_ex attr = {0};
	struct ibv_port_attr port = {0};
	struct ibv_gid_entry gid = {0};

	holds("it is an extended one", device->abi_compat == __VERBS_ABI_IS_EXTENDED && extended != NULL);
	holds("it is as large as these headers have it", extended && extended->sz >= sizeof(*extended));
	holds("it has the operations that headers call",
		verbs_get_ctx_op(device, query_port) && verbs_get_ctx_op(device, query_device_ex) &&
			verbs_get_ctx_op(device, create_qp_ex) && device->ops.poll_cq && device->ops.req_notify_cq &&
			device->ops.post_send && device->ops.post_recv && device->ops.post_srq_recv);
	holds("it has descriptors and a completion vector", device->async_fd >= 0 && device->num_comp_vectors >= 1);
	is_free("context", &device->mutex);
	returns_errno("query the port", ibv_query_port(device, 1, &port));
	tell("port: %s, %s", ibv_port_state_str(port.state), port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "NOT Ethernet");
	returns_errno("query a port that is not there", ibv_query_port(device, 2, &port));
	returns_errno("query the device", ibv_query_device_ex(device, NULL, &attr));
	tell("ports: %u, %u", attr.orig_attr.phys_port_cnt, attr.phys_port_cnt_ex);
	returns_errno("query its first global identifier", ibv_query_gid_ex(device, 1, 0, &gid, 0));
}

/* ---- An identifier and what the connection manager makes for it --------------------------------------------------------- */

static char sent[64], received[64], window[64];

static void
tell_queues(const char *whose, const struct rdma_cm_id *id)
{
	tell("the %s has", whose);
	holds("  a device and a protection domain", id->verbs == device && id->pd != NULL);
	holds("  two queues of its queue pair", id->send_cq && id->send_cq == id->qp->send_cq && id->recv_cq &&
			id->recv_cq == id->qp->recv_cq);
	holds("  their channels", id->send_cq_channel && id->send_cq_channel == id->send_cq->channel && id->recv_cq_channel &&
			id->recv_cq_channel == id->recv_cq->channel);
	holds("  a queue pair in its protection domain", id->qp->pd == id->pd && id->qp->context == id->verbs);
	holds("  itself as what its queues are given", id->send_cq->cq_context == id && id->recv_cq->cq_context == id);
}

/* What one of the calls that wait for a completion gave. */
static void
tell_wc(const char *step, int n, const struct ibv_wc *wc)
{
	if (n != 1)
		need(step, n < 0 ? n : EPROTO);
	tell("%s: %s, opcode %d", step, ibv_wc_status_str(wc->status), wc->opcode);
}

void
identifiers(void)
{
	struct link link = connected(attributes(NULL, NULL, NULL), attributes(NULL, NULL, NULL));
	struct rdma_cm_id *client = link.client, *server = link.server;
	struct ibv_mr *sent_mr, *received_mr, *window_mr, *readable_mr;
	struct ibv_wc wc;

	tell_queues("client", client);
	tell_queues("server", server);
	holds("both are in one protection domain", client->pd == server->pd);
	sent_mr = made("region", rdma_reg_msgs(client, sent, sizeof(sent)));
	received_mr = made("region", rdma_reg_msgs(server, received, sizeof(received)));
	window_mr = made("region", rdma_reg_write(server, window, sizeof(window)));
	readable_mr = made("region", rdma_reg_read(server, received, sizeof(received)));
	strcpy(sent, "by rdma_post_send");
	need("receive", rdma_post_recv(server, NULL, received, sizeof(received), received_mr));
	need("send", rdma_post_send(client, NULL, sent, sizeof(sent), sent_mr, IBV_SEND_SIGNALED));
	tell_wc("rdma_get_send_comp", rdma_get_send_comp(client, &wc), &wc);
	tell_wc("rdma_get_recv_comp", rdma_get_recv_comp(server, &wc), &wc);
	holds("the message has come", wc.byte_len == sizeof(sent) && !strcmp(received, sent));
	strcpy(sent, "by rdma_post_write");
	need("write",
		rdma_post_write(client, NULL, sent, sizeof(sent), sent_mr, IBV_SEND_SIGNALED, (uintptr_t)window, window_mr->rkey));
	tell_wc("rdma_get_send_comp", rdma_get_send_comp(client, &wc), &wc);
	holds("it is written", !strcmp(window, sent));
	strcpy(received, "by rdma_post_read");
	need("read",
		rdma_post_read(client, NULL, sent, sizeof(sent), sent_mr, IBV_SEND_SIGNALED, (uintptr_t)received, readable_mr->rkey));
	tell_wc("rdma_get_send_comp", rdma_get_send_comp(client, &wc), &wc);
	holds("it is read", !strcmp(sent, received));
	returns_errno("deregister", rdma_dereg_mr(sent_mr));
	returns_errno("deregister", rdma_dereg_mr(received_mr));
	returns_errno("deregister", rdma_dereg_mr(window_mr));
	returns_errno("deregister", rdma_dereg_mr(readable_mr));
	rdma_destroy_qp(server);
	holds("without a queue pair there are no queues either",
		!server->qp && !server->send_cq && !server->recv_cq && !server->send_cq_channel && !server->recv_cq_channel);
	forget(&link);
}

/* ---- Builders of requests ----------------------------------------------------------------------------------------------- */

/* Takes the next completion, which is of this request. */
static struct ibv_wc
completion_of(struct ibv_cq *cq, uint64_t request)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	need("poll", n < 0 ? -n : 0);
	tell("request %d: %s, opcode %d", (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.opcode);
	holds("  it is the one expected", wc.wr_id == request);
	return wc;
}

static void
begin(struct ibv_qp_ex *qp, uint64_t request)
{
	qp->wr_id = request;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

void
builders(void)
{
	const uint64_t operations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
		IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	struct ibv_cq *cq = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct ibv_cq *server_cq = made("queue", ibv_create_cq(device, 64, NULL, NULL, 0));
	struct link link = connected_with_builders(attributes(cq, cq, NULL), operations, attributes(server_cq, server_cq, NULL));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(link.client->qp);
	/* Not a constant, which has another function register. */
	volatile int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	static uint64_t here[8], there[8];
	struct ibv_mr *here_mr = made("region", ibv_reg_mr(link.client->pd, here, sizeof(here), IBV_ACCESS_LOCAL_WRITE));
	struct ibv_mr *there_mr = made("region", ibv_reg_mr(link.server->pd, there, sizeof(there), access));
	struct ibv_sge pieces[2] = {
		{.addr = (uintptr_t)&here[0], .length = 8, .lkey = here_mr->lkey},
		{.addr = (uintptr_t)&here[2], .length = 8, .lkey = here_mr->lkey},
	};
	struct ibv_sge room = {.addr = (uintptr_t)&there[4], .length = 16, .lkey = there_mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 7, .sg_list = &room, .num_sge = 1}, *bad;
	struct ibv_wc wc;

	holds("the queue pair has them", qp != NULL);
	holds("one that was made without has not", ibv_qp_to_qp_ex(link.server->qp) == NULL);
	need("receive", ibv_post_recv(link.server->qp, &receive, &bad));
	here[0] = 41;
	here[2] = 43;
	ibv_wr_start(qp);
	begin(qp, 1);
	ibv_wr_rdma_write(qp, there_mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(qp, here_mr->lkey, (uintptr_t)here, 8);
	begin(qp, 2);
	ibv_wr_send_imm(qp, htonl(0x01020304));
	ibv_wr_set_sge_list(qp, 2, pieces);
	returns_errno("post a write, and a send with a number", ibv_wr_complete(qp));
	completion_of(cq, 1);
	completion_of(cq, 2);
	wc = completion_of(server_cq, 7);
	holds("it has the number", wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0x01020304);
	holds("it has both pieces", wc.byte_len == 16 && there[4] == 41 && there[5] == 43);
	holds("it is written", there[0] == 41);

	ibv_wr_start(qp);
	begin(qp, 3);
	ibv_wr_rdma_write(qp, there_mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(qp, here_mr->lkey, (uintptr_t)&here[1], 8);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	begin(qp, 4);
	ibv_wr_atomic_fetch_add(qp, there_mr->rkey, (uintptr_t)there, 1);
	ibv_wr_set_sge(qp, here_mr->lkey, (uintptr_t)&here[3], 8);
	begin(qp, 5);
	ibv_wr_rdma_read(qp, there_mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(qp, here_mr->lkey, (uintptr_t)&here[4], 8);
	returns_errno("post an atomic addition and a read, after a write that is not posted", ibv_wr_complete(qp));
	completion_of(cq, 4);
	completion_of(cq, 5);
	holds("the addition tells what was there, and the read what is there now", here[3] == 41 && here[4] == 42);
	returns_errno("deregister", ibv_dereg_mr(here_mr));
	returns_errno("deregister", ibv_dereg_mr(there_mr));
	forget(&link);
	returns_errno("destroy the queue", ibv_destroy_cq(cq));
	returns_errno("destroy the other queue", ibv_destroy_cq(server_cq));
}

/* ---- What the software provider has not --------------------------------------------------------------------------------- */

static void
makes_nothing(const char *call, const void *object)
{
	tell_errno(call, object ? 0 : errno);
}

void
unsupported(void)
{
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_cq *cq = made("queue", ibv_create_cq(device, 8, NULL, NULL, 0));
	struct ibv_srq *srq = made("shared receive queue", ibv_create_srq(domain, &srq_attr));
	struct ibv_qp_init_attr qp_attr = attributes(cq, cq, NULL);
	struct ibv_qp *qp = made("queue pair", ibv_create_qp(domain, &qp_attr));
	struct ibv_modify_cq_attr cq_attr = {0};
	struct ibv_qp_rate_limit_attr rate = {0};
	struct ibv_values_ex values = {0};
	uint32_t number;

	makes_nothing("ibv_open_xrcd", ibv_open_xrcd(device, &(struct ibv_xrcd_init_attr){0}));
	makes_nothing("ibv_alloc_mw", ibv_alloc_mw(domain, IBV_MW_TYPE_1));
	makes_nothing("ibv_alloc_dm", ibv_alloc_dm(device, &(struct ibv_alloc_dm_attr){.length = 64}));
	makes_nothing("ibv_alloc_null_mr", ibv_alloc_null_mr(domain));
	makes_nothing("ibv_create_cq_ex", ibv_create_cq_ex(device, &(struct ibv_cq_init_attr_ex){.cqe = 1}));
	makes_nothing("ibv_create_srq_ex",
		ibv_create_srq_ex(device,
			&(struct ibv_srq_init_attr_ex){
				.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
				.srq_type = IBV_SRQT_XRC,
				.pd = domain,
			}));
	makes_nothing("ibv_alloc_td", ibv_alloc_td(device, &(struct ibv_td_init_attr){0}));
	makes_nothing("ibv_alloc_parent_domain",
		ibv_alloc_parent_domain(device, &(struct ibv_parent_domain_init_attr){.pd = domain}));
	makes_nothing("ibv_open_qp", ibv_open_qp(device, &(struct ibv_qp_open_attr){0}));
	makes_nothing("ibv_create_wq", ibv_create_wq(device, &(struct ibv_wq_init_attr){.pd = domain, .cq = cq}));
	makes_nothing("ibv_create_rwq_ind_table", ibv_create_rwq_ind_table(device, &(struct ibv_rwq_ind_table_init_attr){0}));
	makes_nothing("ibv_create_flow", ibv_create_flow(qp, &(struct ibv_flow_attr){0}));
	makes_nothing("ibv_create_flow_action_esp", ibv_create_flow_action_esp(device, &(struct ibv_flow_action_esp_attr){0}));
	makes_nothing("ibv_create_counters", ibv_create_counters(device, &(struct ibv_counters_init_attr){0}));
	returns_errno("ibv_modify_cq", ibv_modify_cq(cq, &cq_attr));
	returns_errno("ibv_modify_qp_rate_limit", ibv_modify_qp_rate_limit(qp, &rate));
	returns_errno("ibv_get_srq_num", ibv_get_srq_num(srq, &number));
	returns_errno("ibv_query_rt_values_ex", ibv_query_rt_values_ex(device, &values));
	qp_attr.qp_type = IBV_QPT_UD;
	makes_nothing("ibv_create_qp, for datagrams", ibv_create_qp(domain, &qp_attr));
	qp_attr.qp_type = IBV_QPT_UC;
	makes_nothing("ibv_create_qp, unreliable", ibv_create_qp(domain, &qp_attr));
	returns_errno("destroy the queue pair", ibv_destroy_qp(qp));
	returns_errno("destroy the shared receive queue", ibv_destroy_srq(srq));
	returns_errno("destroy the queue", ibv_destroy_cq(cq));
}
