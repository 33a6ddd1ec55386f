/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake device's network: one Unix datagram socket a process, named after its address, and one thread that takes packets and keeps
 * the timers. A queue pair has one message under way: its packets, then the answer. A message without an answer is sent again until the
 * retries are used up; that is what a dead process, a cut network and a queue pair in the wrong state look like.
 */
#include "fake_internal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { REQUEST = 1, ANSWER, PACKETS_AT_ONCE = 32, BLOCKED_US = 100, IDLE_MS = 10 };

typedef struct packet {
    uint32_t type, to, from, from_address, psn, opcode, immediate, remote_key, status;
    uint32_t total, offset, length;
    uint64_t remote;
} packet_t;

static struct {
    pid_t pid;
    int socket, wake;
    unsigned users;
    pthread_t thread;
    atomic_bool stop;
    bool blocked; /* a socket was full: look again soon */
} network = {.socket = -1, .wake = -1};

static pthread_mutex_t network_lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t fake_network_address(void) { return (uint32_t)getpid() & 0xffffff; }

static socklen_t name_of(uint32_t address, struct sockaddr_un *name)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "quoit-fake-verbs-%u", address);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* ---------------------------------------------------------------- packets out */

/* False: the other socket is full. A packet that nobody takes is lost, and that is no error. */
static bool transmit(const fake_qp_t *qp, const packet_t *packet, const void *payload)
{
    fake_device_t *device = fake_device_of(qp);
    struct sockaddr_un name;
    struct iovec parts[2] = {{(void *)(uintptr_t)packet, sizeof *packet}, {(void *)(uintptr_t)payload, packet->length}};
    struct msghdr message = {.msg_name = &name, .msg_namelen = name_of(qp->peer_address, &name), .msg_iov = parts, .msg_iovlen = packet->length > 0 ? 2 : 1};
    fake_device_packet(device);
    if (fake.cut || device->cut || network.socket < 0) return true;
    ssize_t sent = sendmsg(network.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    bool full = sent < 0 && (errno == EAGAIN || errno == ENOBUFS);
    if (full) network.blocked = true;
    return !full;
}

static void complete_send(fake_qp_t *qp, enum ibv_wc_status status)
{
    fake_work_t *work = &qp->sends[qp->send_first];
    bool write = work->opcode == IBV_WR_RDMA_WRITE || work->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct ibv_wc completion = {.wr_id = work->id, .status = status, .opcode = write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND, .qp_num = qp->base.qp_num};
    bool told = work->signalled || status != IBV_WC_SUCCESS;
    qp->send_first = (qp->send_first + 1) % qp->cap.max_send_wr;
    qp->send_count--;
    qp->psn = (qp->psn + 1) & 0xffffff;
    qp->started = qp->waits = false;
    if (status == IBV_WC_SUCCESS) fake_count(write ? "writes" : "sends", 1);
    if (status == IBV_WC_SUCCESS) fake_device_of(qp)->bytes += work->length;
    if (told) fake_cq_push(qp->base.send_cq, &completion);
    if (status != IBV_WC_SUCCESS) fake_qp_fail(qp);
}

/* The order to let the n-th piece of work fail. */
static bool work_fails(fake_qp_t *qp, const fake_work_t *work)
{
    if (fake.failing_work.n == 0 || (work->opcode != fake.failing_work.first && work->opcode != fake.failing_work.second)) return false;
    if (--fake.failing_work.n > 0) return false;
    complete_send(qp, (enum ibv_wc_status)fake.failing_work.status);
    return true;
}

/* Where the work's bytes lie now; NULL: they are not registered. */
static const unsigned char *bytes_of(const fake_qp_t *qp, const fake_work_t *work)
{
    if (work->address == 0) return work->copy;
    const fake_mr_t *mr = fake_mr_find(work->key);
    return mr != NULL && mr->base.pd == qp->base.pd ? fake_mr_place(mr, work->address, work->length) : NULL;
}

/* Local memory is looked at when it is read, as a device does. */
static bool begin_send(fake_qp_t *qp, fake_work_t *work)
{
    qp->started = true;
    qp->offset = 0;
    qp->tries_left = qp->retries;
    qp->rnr_left = qp->rnr_retries;
    if (work_fails(qp, work)) return false;
    if (bytes_of(qp, work) != NULL) return true;
    complete_send(qp, IBV_WC_LOC_PROT_ERR);
    return false;
}

static void send_packets(fake_qp_t *qp)
{
    fake_work_t *work = &qp->sends[qp->send_first];
    const unsigned char *bytes = bytes_of(qp, work);
    if (bytes == NULL) { /* unregistered since it was begun */
        complete_send(qp, IBV_WC_LOC_PROT_ERR);
        return;
    }
    do {
        uint32_t left = work->length - qp->offset;
        packet_t packet = {.type = REQUEST, .to = qp->peer_qpn, .from = qp->base.qp_num, .from_address = fake_network_address(), .psn = qp->psn,
                           .opcode = work->opcode, .immediate = work->immediate, .remote_key = work->remote_key, .remote = work->remote,
                           .total = work->length, .offset = qp->offset, .length = left < FAKE_PAYLOAD ? left : FAKE_PAYLOAD};
        if (!transmit(qp, &packet, bytes + qp->offset)) return;
        qp->offset += packet.length;
    } while (qp->offset < work->length);
    qp->waits = true;
    qp->resend_at = clock_deadline(FAKE_TIMEOUT_MS);
}

static void send_answer(fake_qp_t *qp)
{
    packet_t packet = {.type = ANSWER, .to = qp->peer_qpn, .from = qp->base.qp_num, .from_address = fake_network_address(),
                       .psn = qp->answer.psn, .status = qp->answer.status};
    if (transmit(qp, &packet, NULL)) qp->answer.wanted = false;
}

static void send_again(fake_qp_t *qp)
{
    if (qp->tries_left-- == 0) {
        complete_send(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    qp->offset = 0;
    qp->waits = false;
}

void fake_network_serve(fake_qp_t *qp)
{
    if (qp->answer.wanted) send_answer(qp);
    while (qp->state == IBV_QPS_RTS && qp->send_count > 0) {
        if (qp->waits && clock_now() >= qp->resend_at) send_again(qp);
        if (qp->state != IBV_QPS_RTS || qp->send_count == 0 || qp->waits) return;
        if (qp->started && clock_now() < qp->resend_at) return; /* the receiver was not ready */
        if (!qp->started && !begin_send(qp, &qp->sends[qp->send_first])) continue;
        qp->resend_at = 0;
        send_packets(qp);
        return;
    }
}

/* ---------------------------------------------------------------- packets in */

static fake_qp_t *find_qp(uint32_t number)
{
    for (list_t *link = fake.qps.next; link != &fake.qps; link = link->next)
        if (container_of(link, fake_qp_t, link)->base.qp_num == number) return container_of(link, fake_qp_t, link);
    return NULL;
}

static void answer(fake_qp_t *qp, uint32_t psn, enum ibv_wc_status status)
{
    qp->answer = (fake_answer_t){.wanted = true, .status = (uint8_t)status, .psn = psn};
    send_answer(qp);
}

static void take_recv(fake_qp_t *qp, const packet_t *packet, enum ibv_wc_status status)
{
    bool write = packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct ibv_wc completion = {.wr_id = qp->recvs[qp->recv_first].id, .status = status, .byte_len = packet->total, .qp_num = qp->base.qp_num,
                                .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .imm_data = packet->immediate, .wc_flags = IBV_WC_WITH_IMM};
    qp->recv_first = (qp->recv_first + 1) % qp->cap.max_recv_wr;
    qp->recv_count--;
    fake_cq_push(qp->base.recv_cq, &completion);
}

/* Where a packet's payload goes; NULL: it was refused. */
static unsigned char *place_of(fake_qp_t *qp, const packet_t *packet)
{
    static unsigned char nowhere[1];
    if (packet->opcode == IBV_WR_SEND || packet->opcode == IBV_WR_SEND_WITH_IMM) {
        if (packet->total <= qp->recvs[qp->recv_first].length) return packet->total > 0 ? qp->recvs[qp->recv_first].data + packet->offset : nowhere;
        answer(qp, packet->psn, IBV_WC_REM_INV_REQ_ERR);
        take_recv(qp, packet, IBV_WC_LOC_LEN_ERR);
        fake_qp_fail(qp);
        return NULL;
    }
    const fake_mr_t *mr = fake_mr_find(packet->remote_key);
    bool open = mr != NULL && mr->base.pd == qp->base.pd && (mr->access & IBV_ACCESS_REMOTE_WRITE);
    unsigned char *place = open ? fake_mr_place(mr, packet->remote, packet->total) : NULL;
    if (place != NULL) return place + packet->offset;
    fake_count("refused", 1);
    answer(qp, packet->psn, IBV_WC_REM_ACCESS_ERR);
    fake_qp_fail(qp);
    return NULL;
}

static void request_came(fake_qp_t *qp, const packet_t *packet, const unsigned char *payload)
{
    bool needs_recv = packet->opcode != IBV_WR_RDMA_WRITE, last = packet->offset + packet->length == packet->total;
    if (qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS) return;
    if (packet->from != qp->peer_qpn || packet->from_address != qp->peer_address) return;
    if (packet->psn == ((qp->expected - 1) & 0xffffff)) { /* done already; the answer was lost, or late */
        if (last) answer(qp, packet->psn, IBV_WC_SUCCESS);
        return;
    }
    if (packet->psn != qp->expected) return;
    if (packet->offset == 0) qp->received = 0;
    if (packet->offset != qp->received) return;
    if (needs_recv && qp->recv_count == 0) {
        fake_count("rnr", 1);
        if (last) answer(qp, packet->psn, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    unsigned char *place = place_of(qp, packet);
    if (place == NULL) return;
    memcpy(place, payload, packet->length);
    qp->received += packet->length;
    if (!last) return;
    qp->expected = (qp->expected + 1) & 0xffffff;
    qp->received = 0;
    if (needs_recv) take_recv(qp, packet, IBV_WC_SUCCESS);
    answer(qp, packet->psn, IBV_WC_SUCCESS);
}

static void answer_came(fake_qp_t *qp, const packet_t *packet)
{
    if (qp->state != IBV_QPS_RTS || qp->send_count == 0 || !qp->started || packet->psn != qp->psn || packet->from != qp->peer_qpn) return;
    if (packet->status != IBV_WC_RNR_RETRY_EXC_ERR) {
        complete_send(qp, (enum ibv_wc_status)packet->status);
    } else if (qp->rnr_left-- == 0) {
        complete_send(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    } else {
        qp->waits = false;
        qp->offset = 0;
        qp->resend_at = clock_deadline(FAKE_RNR_MS);
    }
    fake_network_serve(qp);
}

static bool take_packet(void)
{
    static unsigned char payload[FAKE_PAYLOAD];
    packet_t packet;
    struct iovec parts[2] = {{&packet, sizeof packet}, {payload, sizeof payload}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t got = recvmsg(network.socket, &message, MSG_DONTWAIT);
    if (got < (ssize_t)sizeof packet) return false;
    unsigned delay = atomic_load(&fake.delay);
    if (delay > 0) usleep((useconds_t)rand() % delay);
    pthread_mutex_lock(&fake.lock);
    fake_qp_t *qp = fake.cut ? NULL : find_qp(packet.to);
    if (qp != NULL && fake_device_of(qp)->cut) qp = NULL;
    if (qp != NULL && packet.type == REQUEST) request_came(qp, &packet, payload);
    else if (qp != NULL) answer_came(qp, &packet);
    pthread_mutex_unlock(&fake.lock);
    return true;
}

/* ---------------------------------------------------------------- the thread */

static void *run(void *unused)
{
    (void)unused;
    while (!atomic_load(&network.stop)) {
        pthread_mutex_lock(&fake.lock);
        network.blocked = false;
        bool timing = false;
        for (list_t *link = fake.qps.next; link != &fake.qps; link = link->next) {
            fake_qp_t *qp = container_of(link, fake_qp_t, link);
            fake_network_serve(qp);
            timing = timing || (qp->state == IBV_QPS_RTS && qp->send_count > 0 && !qp->waits);
        }
        bool soon = network.blocked || timing;
        pthread_mutex_unlock(&fake.lock);
        struct pollfd watched[2] = {{network.socket, POLLIN, 0}, {network.wake, POLLIN, 0}};
        struct timespec limit = {.tv_nsec = soon ? BLOCKED_US * 1000 : IDLE_MS * 1000000};
        ppoll(watched, 2, &limit, NULL);
        uint64_t rings;
        if (watched[1].revents && read(network.wake, &rings, sizeof rings) < 0) continue;
        for (int i = 0; i < PACKETS_AT_ONCE && take_packet(); i++) {}
    }
    return NULL;
}

void fake_network_wake(void)
{
    const uint64_t one = 1;
    if (network.wake >= 0 && write(network.wake, &one, sizeof one) < 0) return;
}

int fake_network_start(void)
{
    struct sockaddr_un name;
    int error = 0;
    pthread_mutex_lock(&network_lock);
    if (network.users++ > 0) goto unlock;
    network.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    network.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    atomic_store(&network.stop, false);
    if (network.socket < 0 || network.wake < 0 ||
        bind(network.socket, (struct sockaddr *)&name, name_of(fake_network_address(), &name)) != 0)
        error = errno;
    else
        error = pthread_create(&network.thread, NULL, run, NULL);
    if (error == 0) goto unlock;
    network.users--;
    if (network.socket >= 0) close(network.socket);
    if (network.wake >= 0) close(network.wake);
    network.socket = network.wake = -1;
unlock:
    pthread_mutex_unlock(&network_lock);
    return error;
}

void fake_network_stop(void)
{
    pthread_mutex_lock(&network_lock);
    if (--network.users == 0) {
        atomic_store(&network.stop, true);
        fake_network_wake();
        pthread_join(network.thread, NULL);
        pthread_mutex_lock(&fake.lock);
        close(network.socket);
        close(network.wake);
        network.socket = network.wake = -1;
        pthread_mutex_unlock(&fake.lock);
    }
    pthread_mutex_unlock(&network_lock);
}
