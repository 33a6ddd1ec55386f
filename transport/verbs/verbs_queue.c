/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs, and what their completions mean. Retries are finite: transport retries and their timeout are settings, and a receiver that is not
 * ready (which credit excludes) is asked a few times only.
 */
#include "transport/verbs/verbs.h"

#include "base/hmac.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RNR_RETRIES = 6, RNR_TIMER = 14 /* 1 ms */ };

quoit_status_t verbs_random(uint32_t *value)
{
    quoit_status_t status = random_bytes(value, sizeof *value);
    *value &= 0xffffff;
    return status;
}

/* ---------------------------------------------------------------- making and states */

quoit_status_t verbs_queue_init(verbs_link_t *link, struct ibv_qp *qp, bool writable)
{
    verbs_transport_t *transport = link->endpoint->transport;
    const verbs_candidate_t *port = &link->rail->chosen;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT,
                                     .pkey_index = (uint16_t)transport->options.pkey_index,
                                     .port_num = (uint8_t)port->port,
                                     .qp_access_flags = writable ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE : IBV_ACCESS_LOCAL_WRITE};
    int error = transport->library->modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: cannot set up a queue pair on %s port %d (P_Key index %d)",
                                           port->device, port->port, transport->options.pkey_index);
    return QUOIT_OK;
}

quoit_status_t verbs_queue_stop(verbs_link_t *link, struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attributes = {.qp_state = state};
    int error = link->endpoint->transport->library->modify_qp(qp, &attributes, IBV_QP_STATE);
    if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot stop a queue pair", link->endpoint->base.name);
    return QUOIT_OK;
}

static void address_of(const verbs_link_t *link, struct ibv_ah_attr *address)
{
    const verbs_options_t *options = &link->endpoint->transport->options;
    const verbs_candidate_t *port = &link->rail->chosen;
    address->sl = (uint8_t)options->service_level;
    address->port_num = (uint8_t)port->port;
    address->dlid = link->peer.lid;
    /* Ethernet always needs the GID; InfiniBand only between subnets. */
    address->is_global = port->ethernet || memcmp(link->peer.gid, port->gid.raw, 8) != 0;
    if (!address->is_global) return;
    memcpy(address->grh.dgid.raw, link->peer.gid, 16);
    address->grh.sgid_index = (uint8_t)port->gid_index;
    address->grh.hop_limit = 64;
    address->grh.traffic_class = (uint8_t)options->traffic_class;
}

quoit_status_t verbs_queue_connect(verbs_link_t *link, struct ibv_qp *qp, uint32_t number, uint32_t own_psn, uint32_t peer_psn)
{
    verbs_transport_t *transport = link->endpoint->transport;
    const verbs_candidate_t *port = &link->rail->chosen;
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = link->peer.mtu < port->mtu ? (enum ibv_mtu)link->peer.mtu : port->mtu,
                                  .dest_qp_num = number,
                                  .rq_psn = peer_psn,
                                  .max_dest_rd_atomic = 1,
                                  .min_rnr_timer = RNR_TIMER};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = (uint8_t)transport->options.timeout,
                               .retry_cnt = (uint8_t)transport->options.retries,
                               .rnr_retry = RNR_RETRIES,
                               .sq_psn = own_psn,
                               .max_rd_atomic = 1};
    address_of(link, &receive.ah_attr);
    int error = transport->library->modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error == 0)
        error = transport->library->modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error == 0) return QUOIT_OK;
    char text[VERBS_GID_TEXT];
    union ibv_gid gid;
    memcpy(gid.raw, link->peer.gid, sizeof gid.raw);
    return error_set_errno(QUOIT_ERR_NETWORK, error,
                           "verbs: %s: cannot connect a queue pair from %s port %d to GID %s (is that address reachable from this device's network?)",
                           link->endpoint->base.name, port->device, port->port, verbs_gid_text(&gid, text));
}

static struct ibv_qp *make_queue(verbs_link_t *link, uint32_t sends, uint32_t recvs, uint32_t inlined)
{
    verbs_transport_t *transport = link->endpoint->transport;
    struct ibv_qp_init_attr attributes = {.qp_context = link,
                                          .send_cq = link->cq->cq,
                                          .recv_cq = link->cq->cq,
                                          .qp_type = IBV_QPT_RC,
                                          .cap = {.max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 1, .max_recv_sge = 1,
                                                  .max_inline_data = inlined}};
    struct ibv_qp *qp = transport->library->create_qp(link->rail->pd, &attributes);
    if (qp == NULL && inlined > 0) { /* a device that has no inline sends */
        attributes.cap.max_inline_data = 0;
        qp = transport->library->create_qp(link->rail->pd, &attributes);
    }
    if (qp == NULL)
        error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: %s: cannot make a queue pair of %u sends and %u receives on %s", link->endpoint->base.name,
                        sends, recvs, link->rail->chosen.device);
    else if (inlined > 0)
        link->stream.inlined = attributes.cap.max_inline_data;
    return qp;
}

quoit_status_t verbs_queues_create(verbs_link_t *link)
{
    const verbs_transport_t *transport = link->endpoint->transport;
    uint32_t depth = link->depth = verbs_stream_depth(transport->options.depth, transport->numbers - 1);
    link->grave = calloc(1, sizeof *link->grave);
    if (link->grave == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: %s: no memory for queue pairs", link->endpoint->base.name);
    quoit_status_t status = verbs_cq_join(link);
    if (status != QUOIT_OK) return status;
    link->stream.qp = make_queue(link, depth, depth, 220);
    if (link->stream.qp == NULL) return QUOIT_ERR_SYSTEM;
    link->direct.qp = make_queue(link, VERBS_DIRECT_SENDS, VERBS_DIRECT_RECVS, 0);
    if (link->direct.qp == NULL) return QUOIT_ERR_SYSTEM;
    status = verbs_random(&link->stream.psn);
    if (status == QUOIT_OK) status = verbs_random(&link->direct.psn);
    if (status == QUOIT_OK) status = verbs_queue_init(link, link->stream.qp, false);
    if (status == QUOIT_OK) status = verbs_queue_init(link, link->direct.qp, true);
    if (status == QUOIT_OK) status = verbs_stream_prepare(link);
    if (status == QUOIT_OK) status = verbs_direct_prepare(link);
    return status;
}

int verbs_queue_rest(verbs_link_t *link, struct ibv_qp **qp)
{
    const verbs_library_t *library = link->endpoint->transport->library;
    if (*qp == NULL || verbs_queue_stop(link, *qp, IBV_QPS_RESET) == QUOIT_OK) return 0;
    int error = library->destroy_qp(*qp);
    if (error != 0) error = library->destroy_qp(*qp); /* an interrupted call succeeds the second time */
    if (error == 0) *qp = NULL;
    return error;
}

/* What the reaper is given of it: NULL when there is none, or nothing more to be done. */
static struct ibv_qp *put_to_rest(verbs_link_t *link, struct ibv_qp *qp)
{
    int error = verbs_queue_rest(link, &qp);
    if (error != 0) log_warn("verbs", "%s: a queue pair can neither be stopped nor destroyed: %s", link->endpoint->base.name, strerror(error));
    return error == 0 ? qp : NULL;
}

void verbs_queues_bury(verbs_link_t *link)
{
    verbs_grave_t *grave = link->grave;
    free(link->stream.arrived);
    link->stream.arrived = NULL;
    link->stream.arrived_count = 0;
    if (grave == NULL) return;
    *grave = (verbs_grave_t){.queue = {put_to_rest(link, link->direct.qp), put_to_rest(link, link->stream.qp)},
                             .mr = link->stream.mr,
                             .memory = link->stream.memory,
                             .owner = link->cq};
    list_init(&grave->link);
    link->direct.qp = link->stream.qp = NULL;
    link->stream.mr = NULL;
    link->stream.memory = NULL;
    link->cq = NULL;
    link->grave = NULL;
    verbs_reaper_give(link->endpoint->transport->reaper, grave);
}

void verbs_queues_collect(verbs_transport_t *transport)
{
    for (verbs_grave_t *grave; (grave = verbs_reaper_take(transport->reaper)) != NULL;) {
        verbs_cq_leave(transport, grave->owner);
        free(grave);
    }
}

/* ---------------------------------------------------------------- completions */

const char *verbs_completion_meaning(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS: return "success";
    case IBV_WC_LOC_LEN_ERR: return "a message was longer than the buffer posted for it";
    case IBV_WC_LOC_QP_OP_ERR: return "the local queue pair refused the operation";
    case IBV_WC_LOC_PROT_ERR: return "local memory is not registered for it (was it unmapped during the transfer?)";
    case IBV_WC_WR_FLUSH_ERR: return "the queue pair had failed before";
    case IBV_WC_BAD_RESP_ERR: return "the peer's device answered with something unexpected";
    case IBV_WC_LOC_ACCESS_ERR: return "the peer wrote where it may not";
    case IBV_WC_REM_INV_REQ_ERR: return "the peer's device rejected the request";
    case IBV_WC_REM_ACCESS_ERR: return "the peer's memory is not open to it (any more)";
    case IBV_WC_REM_OP_ERR: return "the peer's device failed to do it";
    case IBV_WC_RETRY_EXC_ERR: return "the peer's device does not answer: its process died, its host is down, or the link to it is cut";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "the peer had no buffer ready";
    case IBV_WC_REM_ABORT_ERR: return "the peer's device aborted it";
    case IBV_WC_FATAL_ERR: return "the device failed";
    case IBV_WC_RESP_TIMEOUT_ERR: return "the peer's device did not answer in time";
    default: return "an error of the device";
    }
}

quoit_status_t verbs_completion_status(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return QUOIT_ERR_NETWORK;
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_LEN_ERR: return QUOIT_ERR_PROTOCOL;
    default: return QUOIT_ERR_SYSTEM;
    }
}

static void stream_failed(verbs_link_t *link, const struct ibv_wc *completion)
{
    const verbs_options_t *options = &link->endpoint->transport->options;
    if (link->broken != QUOIT_OK) return;
    verbs_link_break(link, error_set(verbs_completion_status(completion->status),
                                     "verbs: %s (%s): %s failed: %s (completion status %d, vendor %u; retries %d, QUOIT_VERBS_TIMEOUT %d)",
                                     link->endpoint->base.name, link->endpoint->base.description,
                                     verbs_work_kind(completion->wr_id) == VERBS_STREAM_RECV ? "a receive" : "a send",
                                     verbs_completion_meaning(completion->status), completion->status, completion->vendor_err,
                                     options->retries, options->timeout));
}

static void direct_failed(verbs_direct_t *direct, enum ibv_wc_status status)
{
    if (direct->stopping || !verbs_path_is_live(direct)) return;
    if (direct->error == IBV_WC_SUCCESS || direct->error == IBV_WC_WR_FLUSH_ERR) direct->error = status;
}

void verbs_queue_completed(verbs_endpoint_t *endpoint, const struct ibv_wc *completion)
{
    int kind = verbs_work_kind(completion->wr_id), number = verbs_work_link(completion->wr_id);
    uint32_t index = verbs_work_index(completion->wr_id);
    bool good = completion->status == IBV_WC_SUCCESS;
    bool is_direct = kind == VERBS_DIRECT_RECV || kind == VERBS_DIRECT_WRITE;
    verbs_link_t *link = &endpoint->link_of[number];
    if (number >= endpoint->links || link->left) return;
    if (is_direct && verbs_work_epoch(completion->wr_id) != (link->direct.epoch & 0xffff)) return; /* of a path that is no more */
    if (!good && is_direct)
        direct_failed(&link->direct, completion->status);
    else if (!good)
        stream_failed(link, completion);
    else if (kind == VERBS_STREAM_RECV)
        verbs_stream_received(link, index, completion->byte_len, be32toh(completion->imm_data));
    else if (kind == VERBS_STREAM_SEND)
        verbs_stream_sent(link, index);
    else if (kind == VERBS_DIRECT_RECV)
        verbs_direct_end_came(link, be32toh(completion->imm_data));
    else
        verbs_direct_written(link, index);
}
