/* RDMA in ten minutes: one process writes from one of its regions into another, through two queue pairs that are
 * connected with each other, and then tries it with a key that no peer gave it. See ten-minutes.md.
 *
 *   cc ten-minutes.c -libverbs -o ten-minutes && gdr run --nic 127.0.0.1 ./ten-minutes */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1, GID = 0, BYTES = 64 };

static void need(int is_fine, const char *what) {
    if (!is_fine) {
        perror(what);
        exit(1);
    }
}

/* Some calls return why they failed, and leave errno as it was. */
static void none(int error, const char *what) {
    errno = error;
    need(!error, what);
}

/* Brings a queue pair from its birth to a connection with the queue pair `peer` at `gid`. */
static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    none(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "to INIT");
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
                                  .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    receive.ah_attr.is_global = 1;
    receive.ah_attr.port_num = PORT;
    receive.ah_attr.grh.dgid = gid;
    receive.ah_attr.grh.sgid_index = GID;
    receive.ah_attr.grh.hop_limit = 1;
    none(ibv_modify_qp(qp, &receive,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "to RTR: ready to receive");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                               .max_rd_atomic = 1};
    none(ibv_modify_qp(qp, &send,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "to RTS: ready to send");
}

/* Posts an RDMA WRITE of the region `from` to an address of a peer, and waits for its completion. */
static enum ibv_wc_status write_to(struct ibv_qp *qp, struct ibv_mr *from, uint64_t address, uint32_t rkey) {
    struct ibv_sge segment = {(uintptr_t)from->addr, BYTES, from->lkey};
    struct ibv_send_wr request = {.sg_list = &segment, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                  .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *refused;
    struct ibv_wc completion;
    int found;
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = rkey;
    none(ibv_post_send(qp, &request, &refused), "post");
    while ((found = ibv_poll_cq(qp->send_cq, 1, &completion)) == 0)
        continue;
    need(found > 0, "poll");
    return completion.status;
}

int main(void) {
    static char source[BYTES] = "these bytes went through a queue pair", target[BYTES];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    need(devices && devices[0], "a device");
    struct ibv_context *device = ibv_open_device(devices[0]);
    need(device != NULL, "open");
    union ibv_gid gid;
    need(!ibv_query_gid(device, PORT, GID, &gid), "the port's GID");
    struct ibv_pd *domain = ibv_alloc_pd(device);
    struct ibv_cq *completions = ibv_create_cq(device, 8, NULL, NULL, 0);
    need(domain && completions, "protection domain and completion queue");
    struct ibv_mr *from = ibv_reg_mr(domain, source, BYTES, 0);
    struct ibv_mr *to = ibv_reg_mr(domain, target, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    need(from && to, "regions");
    struct ibv_qp_init_attr kind = {.send_cq = completions, .recv_cq = completions, .qp_type = IBV_QPT_RC,
                                    .cap = {8, 8, 1, 1, 0}};
    struct ibv_qp *here = ibv_create_qp(domain, &kind), *there = ibv_create_qp(domain, &kind);
    need(here && there, "queue pairs");
    connect_to(here, there->qp_num, gid);
    connect_to(there, here->qp_num, gid);

    enum ibv_wc_status status = write_to(here, from, (uintptr_t)target, to->rkey);
    printf("with the key:  %s, and the target has \"%s\"\n", ibv_wc_status_str(status), target);
    status = write_to(here, from, (uintptr_t)target, to->rkey ^ 1);
    printf("with another:  %s\n", ibv_wc_status_str(status));
    return 0;
}
