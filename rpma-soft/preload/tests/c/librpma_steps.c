/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the C library librpma can do, step by step, between two processes. Each prints what it saw, in lines that are the same at
 * each run and on each provider. librpma_steps.server.expected and librpma_steps.client.expected are what soft-RoCE makes of it;
 * `run` compares.
 *
 *   librpma_steps server ADDR PORT      says "start: listening" when a client may be started
 *   librpma_steps client ADDR PORT      nobody may listen on PORT + 1
 *
 * A scene is a function of the client and one of the server, side by side in memory.c, messages.c and refusals.c, mostly with a
 * connection of their own. The ends take turns by messages; what nothing gives an order to is not printed.
 */
#include <stdio.h>
#include <string.h>

#include "steps.h"

static const struct {
	const char *name;
	void (*client)(struct end *);
	void (*server)(struct end *);
} scenes[] = {
	{"configurations", configurations, configurations},
	{"regions", regions, regions},
	{"memory", memory_client, memory_server},
	{"messages", messages_client, messages_server},
	{"channel", channel_client, channel_server},
	{"SRQ with a receive CQ", srq_client, srq_with_cq_server},
	{"SRQ without a receive CQ", srq_client, srq_without_cq_server},
	{"fault", fault_client, fault_server},
	{"rejected", rejected_client, rejected_server},
	{"nobody", nobody_client, nobody_server},
	/* After all that, it still works. */
	{"memory again", memory_client, memory_server},
};

static void
listens(struct end *end)
{
	struct rpma_conn_req *req = NULL;
	int fd = -1;

	must("listen", rpma_ep_listen(end->peer, end->addr, end->port, &end->ep));
	need("descriptor of the endpoint", rpma_ep_get_fd(end->ep, &fd));
	blocking(fd, false);
	answers("next request, where there is none", rpma_ep_next_conn_req(end->ep, DEFAULTS, &req));
	blocking(fd, true);
	tell("listening");
}

int
main(int argc, char **argv)
{
	const int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
		RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV;
	struct end end = {0};
	struct ibv_context *context = NULL;
	int odp = 0;
	bool server = argc == 4 && !strcmp(argv[1], "server");

	if (!server && (argc != 4 || strcmp(argv[1], "client"))) {
		fprintf(stderr, "usage: librpma_steps server|client ADDR PORT\n");
		return 2;
	}
	tell_in_time();
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING);

	end.addr = argv[2];
	end.port = argv[3];
	must("device",
		rpma_utils_get_ibv_context(end.addr, server ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	must("is it capable of on-demand paging", rpma_utils_ibv_context_is_odp_capable(context, &odp));
	must("peer", rpma_peer_new(context, &end.peer));
	end.window = pages();
	end.buffer = pages();
	must("register the window", rpma_mr_reg(end.peer, end.window, REGION, usage, &end.window_mr));
	must("register the buffer", rpma_mr_reg(end.peer, end.buffer, REGION, usage, &end.buffer_mr));
	if (server)
		listens(&end);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		scene = scenes[i].name;
		memset(end.window, 0, REGION);
		memset(end.buffer, 0, REGION);
		(server ? scenes[i].server : scenes[i].client)(&end);
	}
	scene = "end";
	if (server)
		must("shut the endpoint down", rpma_ep_shutdown(&end.ep));
	must("deregister the window", rpma_mr_dereg(&end.window_mr));
	must("deregister the buffer", rpma_mr_dereg(&end.buffer_mr));
	/* It is refused as long as anything is left that was made from it. */
	must("delete the peer", rpma_peer_delete(&end.peer));
	return 0;
}
