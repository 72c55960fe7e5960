/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One end of a connection, on the C library librpma, for the suite's tests of interoperation. The other end is a test in interop.rs;
 * what both do, step by step, is written there.
 *
 *   interop client ADDR PORT PERSISTENT VISIBILITY   PERSISTENT, VISIBILITY: yes, or no if a flush of that type must be refused
 *   interop server ADDR PORT DIRECT_WRITE            DIRECT_WRITE: yes or no, what its peer configuration says
 *   interop encode ADDR                              writes descriptors of its own regions, and what made them
 *   interop decode                                   reads descriptors in hexadecimal, writes what they say
 *
 * It exits with 0 if everything was as it should be, and else says on standard error what was not.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define MR_DESCRIPTOR 21

static void
fail(int line, const char *what, int rc)
{
	fprintf(stderr, "interop.c:%d: %s: %d (%s)\n", line, what, rc, rpma_err_2str(rc));
	exit(1);
}

/* The call succeeds. */
#define OK(call) \
	do { \
		int rc_ = (call); \
		if (rc_) \
			fail(__LINE__, #call, rc_); \
	} while (0)

/* The condition holds. */
#define HOLDS(condition) \
	do { \
		if (!(condition)) \
			fail(__LINE__, "does not hold: " #condition, 0); \
	} while (0)

static int
yes(const char *word)
{
	HOLDS(!strcmp(word, "yes") || !strcmp(word, "no"));
	return !strcmp(word, "yes");
}

static void *
page(void)
{
	void *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(memory != MAP_FAILED);
	return memory;
}

/* Waits for the completion of this operation, which is successful. What else completes meanwhile is kept for when it is asked for. */
static struct ibv_wc
completion(struct rpma_conn *conn, uintptr_t context)
{
	static struct ibv_wc kept[8];
	static size_t n_kept;
	struct rpma_cq *cq = NULL;
	struct ibv_wc wc;
	int rc;

	for (size_t i = 0; i < n_kept; i++) {
		if (kept[i].wr_id == context) {
			wc = kept[i];
			kept[i] = kept[--n_kept];
			return wc;
		}
	}
	OK(rpma_conn_get_cq(conn, &cq));
	for (;;) {
		while ((rc = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
			OK(rpma_cq_wait(cq));
		OK(rc);
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "request %" PRIu64 ", where %" PRIuPTR " was expected: %s\n", (uint64_t)wc.wr_id, context,
				ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.wr_id == context)
			return wc;
		HOLDS(n_kept < sizeof(kept) / sizeof(kept[0]));
		kept[n_kept++] = wc;
	}
}

static void
event(struct rpma_conn *conn, enum rpma_conn_event expected)
{
	enum rpma_conn_event event;

	OK(rpma_conn_next_event(conn, &event));
	if (event != expected) {
		fprintf(stderr, "event %s, where %s was expected\n", rpma_utils_conn_event_2str(event),
			rpma_utils_conn_event_2str(expected));
		exit(1);
	}
}

/* What both ends send. */
struct hello {
	uint8_t region[MR_DESCRIPTOR];
	uint8_t peer_cfg[2];
};

/* Takes the other end's descriptor and configuration from its private data. */
static struct rpma_mr_remote *
meet(struct rpma_conn *conn, int direct_write)
{
	struct rpma_conn_private_data pdata = {0};
	struct rpma_peer_cfg *pcfg = NULL;
	struct rpma_mr_remote *remote = NULL;
	struct hello hello;
	bool direct = false;

	OK(rpma_conn_get_private_data(conn, &pdata));
	HOLDS(pdata.ptr != NULL && pdata.len >= sizeof(hello));
	memcpy(&hello, pdata.ptr, sizeof(hello));
	OK(rpma_mr_remote_from_descriptor(hello.region, sizeof(hello.region), &remote));
	OK(rpma_peer_cfg_from_descriptor(hello.peer_cfg, sizeof(hello.peer_cfg), &pcfg));
	OK(rpma_peer_cfg_get_direct_write_to_pmem(pcfg, &direct));
	HOLDS(direct == direct_write);
	OK(rpma_conn_apply_remote_peer_cfg(conn, pcfg));
	OK(rpma_peer_cfg_delete(&pcfg));
	return remote;
}

static void
flush(struct rpma_conn *conn, struct rpma_mr_remote *remote, enum rpma_flush_type type, int allowed)
{
	int rc = rpma_flush(conn, remote, 0, 64, type, RPMA_F_COMPLETION_ALWAYS, (void *)70);

	if (!allowed) {
		HOLDS(rc == RPMA_E_NOSUPP);
		return;
	}
	OK(rc);
	completion(conn, 70);
}

static void
client(const char *addr, const char *port, int persistent, int visibility)
{
	struct ibv_context *context = NULL;
	struct rpma_peer *peer = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;
	struct rpma_mr_local *local = NULL;
	struct rpma_mr_remote *remote = NULL;
	struct rpma_conn_private_data pdata = {"a client in C", sizeof("a client in C")};
	char *memory = page();
	struct ibv_wc wc;
	size_t size = 0;

	OK(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	OK(rpma_peer_new(context, &peer));
	OK(rpma_mr_reg(peer, memory, PAGE, RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
		&local));
	OK(rpma_conn_req_new(peer, addr, port, NULL, &req));
	OK(rpma_conn_req_recv(req, local, 2048, 64, (void *)1));
	OK(rpma_conn_req_connect(&req, &pdata, &conn));
	event(conn, RPMA_CONN_ESTABLISHED);
	remote = meet(conn, 1);
	OK(rpma_mr_remote_get_size(remote, &size));
	HOLDS(size == PAGE);

	/* 1: writes, flushes, and writes atomically */
	strcpy(memory, "written by C");
	OK(rpma_write(conn, remote, 100, local, 0, 13, RPMA_F_COMPLETION_ON_ERROR, NULL));
	flush(conn, remote, RPMA_FLUSH_TYPE_VISIBILITY, visibility);
	flush(conn, remote, RPMA_FLUSH_TYPE_PERSISTENT, persistent);
	OK(rpma_atomic_write(conn, remote, 256, "8 from C", RPMA_F_COMPLETION_ALWAYS, (void *)2));
	completion(conn, 2);
	/* 2: reads what the server has put there */
	OK(rpma_read(conn, local, 512, remote, 512, 16, RPMA_F_COMPLETION_ALWAYS, (void *)3));
	completion(conn, 3);
	HOLDS(!memcmp(memory + 512, "written by Rust", 16));
	/* 3: a write with a number, and a message with one */
	OK(rpma_write_with_imm(conn, remote, 300, local, 0, 7, RPMA_F_COMPLETION_ALWAYS, 0x01020304, (void *)4));
	completion(conn, 4);
	strcpy(memory + 1024, "message from C");
	OK(rpma_send_with_imm(conn, local, 1024, 15, RPMA_F_COMPLETION_ALWAYS, 0x0A0B0C0D, (void *)5));
	completion(conn, 5);
	/* 4: the answer, into the receive from before the connection */
	wc = completion(conn, 1);
	HOLDS(wc.opcode == IBV_WC_RECV && wc.byte_len == 18 && (wc.wc_flags & IBV_WC_WITH_IMM));
	HOLDS(ntohl(wc.imm_data) == 0x11223344);
	HOLDS(!memcmp(memory + 2048, "message from Rust", 18));

	OK(rpma_conn_disconnect(conn));
	event(conn, RPMA_CONN_CLOSED);
	OK(rpma_mr_remote_delete(&remote));
	OK(rpma_conn_delete(&conn));
	OK(rpma_mr_dereg(&local));
	OK(rpma_peer_delete(&peer));
}

static void
server(const char *addr, const char *port, int direct_write)
{
	struct ibv_context *context = NULL;
	struct rpma_peer *peer = NULL;
	struct rpma_peer_cfg *pcfg = NULL;
	struct rpma_ep *ep = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;
	struct rpma_mr_local *target = NULL, *messages = NULL;
	struct rpma_conn_private_data pdata;
	struct hello hello;
	char *memory = page(), *buffer = page();
	struct ibv_wc wc;
	size_t size = 0;

	OK(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	OK(rpma_peer_new(context, &peer));
	/* The C library gives no remote-read for a flush on a device that has it: it is asked for, so that the flush can be emulated. */
	OK(rpma_mr_reg(peer, memory, PAGE, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
		&target));
	OK(rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &messages));
	OK(rpma_mr_get_descriptor_size(target, &size));
	HOLDS(size == MR_DESCRIPTOR);
	OK(rpma_mr_get_descriptor(target, hello.region));
	OK(rpma_peer_cfg_new(&pcfg));
	OK(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, direct_write));
	OK(rpma_peer_cfg_get_descriptor_size(pcfg, &size));
	HOLDS(size == 1);
	OK(rpma_peer_cfg_get_descriptor(pcfg, hello.peer_cfg));
	OK(rpma_peer_cfg_delete(&pcfg));
	strcpy(memory + 512, "written by C too");

	OK(rpma_ep_listen(peer, addr, port, &ep));
	puts("listening");
	fflush(stdout);
	OK(rpma_ep_next_conn_req(ep, NULL, &req));
	OK(rpma_conn_req_get_private_data(req, &pdata));
	HOLDS(pdata.len >= 17 && !memcmp(pdata.ptr, "a client in Rust", 17));
	OK(rpma_conn_req_recv(req, messages, 0, 64, (void *)1));
	OK(rpma_conn_req_recv(req, messages, 64, 64, (void *)2));
	pdata.ptr = &hello;
	pdata.len = MR_DESCRIPTOR + 1;
	OK(rpma_conn_req_connect(&req, &pdata, &conn));
	event(conn, RPMA_CONN_ESTABLISHED);

	/* The write with a number says that all before it is there. */
	wc = completion(conn, 1);
	HOLDS(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 7 && ntohl(wc.imm_data) == 0x01020304);
	HOLDS(!memcmp(memory + 100, "written by Rust", 16));
	HOLDS(!memcmp(memory + 256, "8 bytes!", 8));
	HOLDS(!memcmp(memory + 300, "written", 7) && memory[307] == 0);
	wc = completion(conn, 2);
	HOLDS(wc.opcode == IBV_WC_RECV && wc.byte_len == 18 && ntohl(wc.imm_data) == 0x0A0B0C0D);
	HOLDS(!memcmp(buffer + 64, "message from Rust", 18));
	strcpy(buffer + 1024, "message from C");
	OK(rpma_send_with_imm(conn, messages, 1024, 15, RPMA_F_COMPLETION_ALWAYS, 0x11223344, (void *)3));
	completion(conn, 3);

	event(conn, RPMA_CONN_CLOSED);
	OK(rpma_conn_disconnect(conn));
	OK(rpma_conn_delete(&conn));
	OK(rpma_ep_shutdown(&ep));
	OK(rpma_mr_dereg(&target));
	OK(rpma_mr_dereg(&messages));
	OK(rpma_peer_delete(&peer));
}

/* A line for each region: address, length and usage that it was made with, and its descriptor. */
static void
encode(const char *addr)
{
	/* No persistence: a device that knows what persistent memory is refuses it for this memory. */
	static const int usages[] = {1, 2, 4, 8, 16, 64, 128, 1 | 8 | 16, 4 | 64, 0xDF};
	struct ibv_context *context = NULL;
	struct rpma_peer *peer = NULL;
	struct rpma_peer_cfg *pcfg = NULL;
	uint8_t byte;

	OK(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	OK(rpma_peer_new(context, &peer));
	for (size_t i = 0; i < sizeof(usages) / sizeof(usages[0]); i++) {
		struct rpma_mr_local *mr = NULL;
		uint8_t descriptor[MR_DESCRIPTOR];
		char *memory = page();
		size_t size = 1 + 300 * i;

		OK(rpma_mr_reg(peer, memory + i, size, usages[i], &mr));
		OK(rpma_mr_get_descriptor(mr, descriptor));
		printf("%" PRIuPTR " %zu %d ", (uintptr_t)(memory + i), size, usages[i]);
		for (size_t j = 0; j < sizeof(descriptor); j++)
			printf("%02x", descriptor[j]);
		printf("\n");
		OK(rpma_mr_dereg(&mr));
	}
	for (int direct = 0; direct < 2; direct++) {
		OK(rpma_peer_cfg_new(&pcfg));
		OK(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, direct));
		OK(rpma_peer_cfg_get_descriptor(pcfg, &byte));
		printf("peer_cfg %d %02x\n", direct, byte);
		OK(rpma_peer_cfg_delete(&pcfg));
	}
	OK(rpma_peer_delete(&peer));
}

/* For each line of hexadecimal digits: the code of decoding it as a region, and size and flush type if that is 0. */
static void
decode(void)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin)) {
		struct rpma_mr_remote *remote = NULL;
		uint8_t bytes[128];
		size_t len = 0, size = 0;
		unsigned byte;
		int flush_type = 0, rc;

		while (sscanf(line + 2 * len, "%2x", &byte) == 1)
			bytes[len++] = (uint8_t)byte;
		rc = rpma_mr_remote_from_descriptor(bytes, len, &remote);
		if (rc == 0) {
			OK(rpma_mr_remote_get_size(remote, &size));
			OK(rpma_mr_remote_get_flush_type(remote, &flush_type));
			OK(rpma_mr_remote_delete(&remote));
		}
		printf("%d %zu %d\n", rc, size, flush_type);
	}
}

int
main(int argc, char **argv)
{
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING);
	HOLDS(argc >= 2);
	if (!strcmp(argv[1], "client") && argc == 6)
		client(argv[2], argv[3], yes(argv[4]), yes(argv[5]));
	else if (!strcmp(argv[1], "server") && argc == 5)
		server(argv[2], argv[3], yes(argv[4]));
	else if (!strcmp(argv[1], "encode") && argc == 3)
		encode(argv[2]);
	else if (!strcmp(argv[1], "decode") && argc == 2)
		decode();
	else
		fail(__LINE__, "bad arguments", RPMA_E_INVAL);
	return 0;
}
