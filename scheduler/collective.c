/* SPDX-License-Identifier: Apache-2.0 */
/* The public operations: check the arguments, describe the call, hand it in. What happens then is in comm.c and execute.c. */
#include "base/clock.h"
#include "scheduler/comm.h"
#include "scheduler/operation_device.h"

#include <stddef.h>
#include <string.h>

/* ------------------------------------------------------------------ issuing */

/* An operation before it is handed in; everything but the error's text is cleared. */
typedef struct issue {
    const char *what;       /* name of the call, for texts */
    quoit_comm_t *comm;
    const quoit_call_t *call;
    quoit_request_t **request;
    quoit_dtype_t dtype;
    size_t width;           /* bytes of an element */
    operation_t local;      /* of a blocking call */
    operation_t *operation;
} issue_t;

static quoit_status_t check_comm(quoit_comm_t *comm, const char *what)
{
    if (!comm) return error_set(QUOIT_ERR_INVALID, "%s: the communicator is NULL", what);
    if (comm->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "%s: communicator %s belongs to the parent process; a child made by fork() creates its own", what,
                         comm->name);
    quoit_status_t status = atomic_load_explicit(&comm->status, memory_order_acquire);
    return status == QUOIT_OK ? status : error_set(status, "%s after an error: %s", what, comm->error);
}

static quoit_status_t check_call(const quoit_call_t *call, const char *what)
{
    if (!call) return QUOIT_OK;
    if (call->struct_size != sizeof *call && call->struct_size != offsetof(quoit_call_t, residual))
        return error_set(QUOIT_ERR_INVALID, "%s: quoit_call_t.struct_size is %zu, expected %zu; begin with QUOIT_CALL_INIT", what,
                         call->struct_size, sizeof *call);
    if (call->timeout_ms < 0)
        return error_set(QUOIT_ERR_INVALID, "%s: quoit_call_t.timeout_ms is %d; 0 means the communicator's", what, call->timeout_ms);
    return QUOIT_OK;
}

/* What is the same for all calls; there is no operation yet. */
static inline __attribute__((always_inline)) quoit_status_t check(issue_t *issue, quoit_comm_t *comm, const char *what, quoit_dtype_t dtype, const quoit_call_t *call,
                            quoit_request_t **request)
{
    quoit_status_t status = check_comm(comm, what);
    if (status == QUOIT_OK) status = check_call(call, what);
    if (status != QUOIT_OK) return status;
    issue->what = what;
    issue->comm = comm;
    issue->call = call;
    issue->request = request;
    issue->dtype = dtype;
    issue->width = quoit_dtype_size(dtype);
    return issue->width > 0 ? QUOIT_OK : error_set(QUOIT_ERR_INVALID, "%s: %d is no dtype", what, (int)dtype);
}

static quoit_status_t make_operation(issue_t *issue, operation_kind_t kind)
{
    quoit_comm_t *comm = issue->comm;
    quoit_request_t **request = issue->request;
    operation_t *operation = request ? operation_create() : &issue->local;
    if (!operation) return error_set(QUOIT_ERR_NO_MEMORY, "%s: a request of %zu bytes", issue->what, sizeof *operation);
    if (!request) {
        operation->parts = NULL;
        operation->parts_capacity = 0;
    }
    operation_clear(operation);
    operation->comm = comm;
    operation->engine = comm->engine;
    operation->fork_generation = comm->fork_generation;
    operation->kind = kind;
    operation->on_stack = !request;
    operation->width = issue->width;
    operation->description.dtype = (uint8_t)issue->dtype;
    operation->description.op = QUOIT_OP_COUNT;
    operation->description.root = -1;
    operation->description.wire = comm->wire > QUOIT_WIRE_NONE ? (uint8_t)comm->wire : 0;
    operation->factor[0] = 1.0;
    list_init(&operation->link);
    list_init(&operation->match_link);
    atomic_init(&operation->status, QUOIT_IN_PROGRESS);
    atomic_init(&operation->references, request ? 2 : 1);
    issue->operation = operation;
    return QUOIT_OK;
}

static quoit_status_t begin(issue_t *issue, quoit_comm_t *comm, const char *what, quoit_dtype_t dtype, const quoit_call_t *call,
                            quoit_request_t **request)
{
    quoit_status_t status = check(issue, comm, what, dtype, call, request);
    return status == QUOIT_OK ? make_operation(issue, OPERATION_COLLECTIVE) : status;
}

static quoit_status_t drop(issue_t *issue, quoit_status_t status)
{
    if (issue->request) operation_destroy(issue->operation);
    return status;
}

/* Hand it in; a blocking call waits for its end. */
static quoit_status_t hand_in(issue_t *issue)
{
    operation_t *operation = issue->operation;
    quoit_comm_t *comm = issue->comm;
    int own_limit = issue->call ? issue->call->timeout_ms : 0;
    operation->timeout_ms = own_limit ? own_limit : __atomic_load_n(&comm->timeout_ms, __ATOMIC_RELAXED);
    if (issue->call) {
        operation->factor[0] = issue->call->factor[0];
        operation->factor[1] = issue->call->factor[1];
        if (issue->call->device != QUOIT_DEVICE_HOST) {
            quoit_status_t status = operation_device_issue(operation, issue->call->device, issue->call->stream);
            if (status != QUOIT_OK) return drop(issue, status);
        }
    }
    if (issue->request) {
        bool attended = issue->call && issue->call->flags & QUOIT_CALL_ATTENDED;
        engine_submit(comm->engine, operation, !attended);
        *issue->request = (quoit_request_t *)operation;
        return QUOIT_OK;
    }
    engine_run(comm->engine, operation); /* its own deadline ends it */
    quoit_status_t status = atomic_load_explicit(&operation->status, memory_order_acquire);
    operation_device_free(operation);
    return status == QUOIT_OK ? status : error_set(status, "%s", operation->error);
}

/* ------------------------------------------------------------------ arguments */

/* A buffer of `blocks` times `count` elements. */
static quoit_status_t check_blocks(const issue_t *issue, const char *name, const void *buffer, size_t count, int blocks)
{
    size_t width = issue->width, bytes;
    if (__builtin_mul_overflow(count, width * (size_t)blocks, &bytes) || bytes > SIZE_MAX / 2) /* the product of these two cannot overflow */
        return error_set(QUOIT_ERR_INVALID, "%s: %s would have %d times %zu elements of %zu bytes: too many for any memory", issue->what, name, blocks,
                         count, width);
    if (!buffer && count > 0) return error_set(QUOIT_ERR_INVALID, "%s: %s is NULL, but %zu elements are told", issue->what, name, count);
    return QUOIT_OK;
}

static quoit_status_t check_buffer(const issue_t *issue, const char *name, const void *buffer, size_t count)
{
    return check_blocks(issue, name, buffer, count, 1);
}

static quoit_status_t check_root(const issue_t *issue, int root)
{
    const quoit_comm_t *comm = issue->comm;
    if (root >= 0 && root < comm->size) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "%s: root %d of communicator %s, which has ranks 0 to %d", issue->what, root, comm->name, comm->size - 1);
}

/* The caller's array of parts need not outlive the call: a call that blocks uses it where it is, others a copy. Both sides share one allocation. */
static quoit_status_t copy_parts(issue_t *issue, const char *name, const quoit_part_t *parts, bool second, const quoit_part_t **copy)
{
    size_t size = (size_t)issue->comm->size;
    operation_t *operation = issue->operation;
    const size_t most = SIZE_MAX / 2 / operation->width;
    if (!parts) return error_set(QUOIT_ERR_INVALID, "%s: the array of parts `%s` is NULL", issue->what, name);
    for (size_t i = 0; i < size; i++) {
        if (parts[i].count <= most && (parts[i].data || parts[i].count == 0)) continue;
        return error_set(QUOIT_ERR_INVALID, "%s: %s[%zu] has %zu elements at %p", issue->what, name, i, parts[i].count, parts[i].data);
    }
    if (operation->on_stack) {
        *copy = parts;
        return QUOIT_OK;
    }
    if (!operation_make_parts(operation, 2 * size)) return error_set(QUOIT_ERR_NO_MEMORY, "%s: parts of %zu ranks", issue->what, size);
    quoit_part_t *own = operation->parts + (second ? size : 0);
    memcpy(own, parts, size * sizeof *own);
    *copy = own;
    return QUOIT_OK;
}

static size_t total_of(const quoit_part_t *parts, int size)
{
    size_t total = 0;
    for (int i = 0; i < size; i++) total += parts[i].count;
    return total;
}

static size_t largest_part(const quoit_part_t *parts, int size)
{
    size_t largest = 0;
    for (int i = 0; i < size; i++)
        if (parts[i].count > largest) largest = parts[i].count;
    return largest;
}

static plan_side_t whole(const void *buffer, size_t count) { return (plan_side_t){.base = (char *)buffer, .count = count}; }
static plan_side_t strided(const void *buffer, size_t count) { return (plan_side_t){.base = (char *)buffer, .count = count, .stride = count}; }
static plan_side_t parted(const quoit_part_t *parts) { return (plan_side_t){.parts = parts}; }

/* Choose the algorithm and hand it in. count: what all ranks must agree on, UINT64_MAX where they need not. */
static quoit_status_t finish(issue_t *issue, plan_collective_t collective, int root, size_t count, size_t bytes)
{
    operation_t *operation = issue->operation;
    quoit_comm_t *comm = issue->comm;
    operation->description.collective = (uint8_t)collective;
    operation->description.root = root;
    operation->description.count = count;
    quoit_status_t status =
        plan_select(comm->topology, &comm->job->tuning, collective, bytes, &operation->algorithm, &operation->small);
    if (status != QUOIT_OK) return drop(issue, status);
    quoit_dtype_t dtype = (quoit_dtype_t)operation->description.dtype;
    quoit_op_t op = (quoit_op_t)operation->description.op;
    if (operation->reduces && (comm->wire > QUOIT_WIRE_NONE || op == QUOIT_AVG)) {
        operation->wire = plan_wire(comm->topology, collective, operation->algorithm, dtype, op, comm->wire);
        operation->share = plan_share(comm->topology, operation->algorithm, dtype, op, operation->wire);
    }
    return hand_in(issue);
}

/* The caller wants to know what encoding took away: nothing yet. */
static quoit_status_t set_residual(issue_t *issue, size_t count)
{
    const quoit_call_t *call = issue->call;
    operation_t *operation = issue->operation;
    if (!call || call->struct_size <= offsetof(quoit_call_t, residual) || !call->residual) return QUOIT_OK;
    if (operation->description.dtype != QUOIT_F32 || operation->description.op != QUOIT_SUM)
        return error_set(QUOIT_ERR_UNSUPPORTED, "not supported: %s of %s, %s with a residual, which is for sums of float32",
                         issue->what, quoit_dtype_name((quoit_dtype_t)operation->description.dtype), quoit_op_name((quoit_op_t)operation->description.op));
    memset(call->residual, 0, count * sizeof *call->residual);
    operation->residual = call->residual;
    return QUOIT_OK;
}

static quoit_status_t set_op(issue_t *issue, quoit_op_t op)
{
    if ((unsigned)op >= QUOIT_OP_COUNT) return error_set(QUOIT_ERR_INVALID, "%s: %d is no op", issue->what, (int)op);
    quoit_status_t status = quoit_op_check((quoit_dtype_t)issue->operation->description.dtype, op);
    if (status != QUOIT_OK) return error_prefix(status, "%s", issue->what);
    issue->operation->description.op = (uint8_t)op;
    issue->operation->reduces = true;
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ uniform collectives */

quoit_status_t quoit_allreduce(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype, quoit_op_t op,
                               const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "allreduce", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = set_op(&issue, op);
    if (status == QUOIT_OK) status = check_buffer(&issue, "send", send, count);
    if (status == QUOIT_OK) status = check_buffer(&issue, "recv", recv, count);
    if (status == QUOIT_OK) status = set_residual(&issue, count);
    if (status != QUOIT_OK) return drop(&issue, status);
    issue.operation->send = whole(send, count);
    issue.operation->recv = whole(recv, count);
    return finish(&issue, COLLECTIVE_ALLREDUCE, -1, count, count * issue.operation->width);
}

quoit_status_t quoit_reduce(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype, quoit_op_t op, int root,
                            const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "reduce", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = set_op(&issue, op);
    if (status == QUOIT_OK) status = check_root(&issue, root);
    if (status == QUOIT_OK) status = check_buffer(&issue, "send", send, count);
    if (status == QUOIT_OK && comm->rank == root) status = check_buffer(&issue, "recv", recv, count);
    if (status != QUOIT_OK) return drop(&issue, status);
    issue.operation->send = whole(send, count);
    issue.operation->recv = whole(comm->rank == root ? recv : NULL, count);
    return finish(&issue, COLLECTIVE_REDUCE, root, count, count * issue.operation->width);
}

quoit_status_t quoit_broadcast(quoit_comm_t *comm, void *buffer, size_t count, quoit_dtype_t dtype, int root, const quoit_call_t *call,
                               quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "broadcast", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = check_root(&issue, root);
    if (status == QUOIT_OK) status = check_buffer(&issue, "buffer", buffer, count);
    if (status != QUOIT_OK) return drop(&issue, status);
    issue.operation->send = issue.operation->recv = whole(buffer, count);
    return finish(&issue, COLLECTIVE_BROADCAST, root, count, count * issue.operation->width);
}

quoit_status_t quoit_barrier(quoit_comm_t *comm, const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "barrier", QUOIT_U8, call, request);
    if (status != QUOIT_OK) return status;
    issue.operation->description.op = QUOIT_BOR; /* of nothing */
    return finish(&issue, COLLECTIVE_BARRIER, -1, 0, 0);
}

/* ------------------------------------------------------------------ collectives of blocks */

/* The plain and the v-form differ in how the blocks are described; the rest is here. */
static quoit_status_t allgather(issue_t *issue, const void *send, plan_side_t recv, size_t own_count, size_t largest, uint64_t agreed)
{
    quoit_status_t status = check_buffer(issue, "send", send, own_count);
    if (status != QUOIT_OK) return drop(issue, status);
    issue->operation->send = whole(send, own_count);
    issue->operation->recv = recv;
    return finish(issue, COLLECTIVE_ALLGATHER, -1, agreed, largest * issue->operation->width);
}

quoit_status_t quoit_allgather(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                               const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "allgather", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = check_blocks(&issue, "recv", recv, count, comm->size);
    if (status != QUOIT_OK) return drop(&issue, status);
    return allgather(&issue, send, strided(recv, count), count, count, count);
}

quoit_status_t quoit_allgatherv(quoit_comm_t *comm, const void *send, const quoit_part_t *recv, quoit_dtype_t dtype,
                                const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    const quoit_part_t *parts = NULL;
    quoit_status_t status = begin(&issue, comm, "allgatherv", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = copy_parts(&issue, "recv", recv, false, &parts);
    if (status != QUOIT_OK) return drop(&issue, status);
    return allgather(&issue, send, parted(parts), parts[comm->rank].count, largest_part(parts, comm->size), total_of(parts, comm->size));
}

static quoit_status_t reduce_scatter(issue_t *issue, plan_side_t send, void *recv, size_t own_count, size_t largest, uint64_t agreed,
                                     quoit_op_t op)
{
    quoit_status_t status = set_op(issue, op);
    if (status == QUOIT_OK) status = check_buffer(issue, "recv", recv, own_count);
    if (status != QUOIT_OK) return drop(issue, status);
    issue->operation->send = send;
    issue->operation->recv = whole(recv, own_count);
    return finish(issue, COLLECTIVE_REDUCE_SCATTER, -1, agreed, largest * issue->operation->width);
}

quoit_status_t quoit_reduce_scatter(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype, quoit_op_t op,
                                    const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "reduce_scatter", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = check_blocks(&issue, "send", send, count, comm->size);
    if (status != QUOIT_OK) return drop(&issue, status);
    return reduce_scatter(&issue, strided(send, count), recv, count, count, count, op);
}

quoit_status_t quoit_reduce_scatterv(quoit_comm_t *comm, const quoit_part_t *send, void *recv, quoit_dtype_t dtype, quoit_op_t op,
                                     const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    const quoit_part_t *parts = NULL;
    quoit_status_t status = begin(&issue, comm, "reduce_scatterv", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = copy_parts(&issue, "send", send, false, &parts);
    if (status != QUOIT_OK) return drop(&issue, status);
    return reduce_scatter(&issue, parted(parts), recv, parts[comm->rank].count, largest_part(parts, comm->size), total_of(parts, comm->size), op);
}

quoit_status_t quoit_alltoall(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                              const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "alltoall", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = check_blocks(&issue, "send", send, count, comm->size);
    if (status == QUOIT_OK) status = check_blocks(&issue, "recv", recv, count, comm->size);
    if (status == QUOIT_OK && send == recv && count > 0)
        status = error_set(QUOIT_ERR_INVALID, "alltoall: send and recv are the same buffer; it does not work in place");
    if (status != QUOIT_OK) return drop(&issue, status);
    issue.operation->send = strided(send, count);
    issue.operation->recv = strided(recv, count);
    return finish(&issue, COLLECTIVE_ALLTOALL, -1, count, count * issue.operation->width);
}

quoit_status_t quoit_alltoallv(quoit_comm_t *comm, const quoit_part_t *send, const quoit_part_t *recv, quoit_dtype_t dtype,
                               const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    const quoit_part_t *send_parts = NULL, *recv_parts = NULL;
    quoit_status_t status = begin(&issue, comm, "alltoallv", dtype, call, request);
    if (status != QUOIT_OK) return status;
    status = copy_parts(&issue, "send", send, false, &send_parts);
    if (status == QUOIT_OK) status = copy_parts(&issue, "recv", recv, true, &recv_parts);
    if (status == QUOIT_OK && send_parts[comm->rank].count != recv_parts[comm->rank].count)
        status = error_set(QUOIT_ERR_MISMATCH, "alltoallv: rank %d sends itself %zu elements but receives %zu from itself", comm->rank,
                           send_parts[comm->rank].count, recv_parts[comm->rank].count);
    if (status != QUOIT_OK) return drop(&issue, status);
    issue.operation->send = parted(send_parts);
    issue.operation->recv = parted(recv_parts);
    return finish(&issue, COLLECTIVE_ALLTOALL, -1, UINT64_MAX, 0);
}

static quoit_status_t gather(issue_t *issue, const void *send, size_t count, plan_side_t recv, int root, uint64_t agreed)
{
    quoit_status_t status = check_root(issue, root);
    if (status == QUOIT_OK) status = check_buffer(issue, "send", send, count);
    if (status != QUOIT_OK) return drop(issue, status);
    issue->operation->send = whole(send, count);
    issue->operation->recv = recv;
    return finish(issue, COLLECTIVE_GATHER, root, agreed, 0);
}

quoit_status_t quoit_gather(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype, int root,
                            const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "gather", dtype, call, request);
    if (status != QUOIT_OK) return status;
    bool is_root = comm->rank == root;
    if (is_root) status = check_blocks(&issue, "recv", recv, count, comm->size);
    if (status != QUOIT_OK) return drop(&issue, status);
    return gather(&issue, send, count, is_root ? strided(recv, count) : (plan_side_t){0}, root, count);
}

quoit_status_t quoit_gatherv(quoit_comm_t *comm, const void *send, size_t count, const quoit_part_t *recv, quoit_dtype_t dtype, int root,
                             const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    const quoit_part_t *parts = NULL;
    quoit_status_t status = begin(&issue, comm, "gatherv", dtype, call, request);
    if (status != QUOIT_OK) return status;
    bool is_root = comm->rank == root;
    if (is_root) status = copy_parts(&issue, "recv", recv, false, &parts);
    if (status == QUOIT_OK && is_root && parts[root].count != count)
        status = error_set(QUOIT_ERR_MISMATCH, "gatherv: root %d sends %zu elements but has room for %zu from itself", root, count,
                           parts[root].count);
    if (status != QUOIT_OK) return drop(&issue, status);
    return gather(&issue, send, count, is_root ? parted(parts) : (plan_side_t){0}, root, UINT64_MAX);
}

static quoit_status_t scatter(issue_t *issue, plan_side_t send, void *recv, size_t count, int root, uint64_t agreed)
{
    quoit_status_t status = check_root(issue, root);
    if (status == QUOIT_OK) status = check_buffer(issue, "recv", recv, count);
    if (status != QUOIT_OK) return drop(issue, status);
    issue->operation->send = send;
    issue->operation->recv = whole(recv, count);
    return finish(issue, COLLECTIVE_SCATTER, root, agreed, 0);
}

quoit_status_t quoit_scatter(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype, int root,
                             const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = begin(&issue, comm, "scatter", dtype, call, request);
    if (status != QUOIT_OK) return status;
    bool is_root = comm->rank == root;
    if (is_root) status = check_blocks(&issue, "send", send, count, comm->size);
    if (status != QUOIT_OK) return drop(&issue, status);
    return scatter(&issue, is_root ? strided(send, count) : (plan_side_t){0}, recv, count, root, count);
}

quoit_status_t quoit_scatterv(quoit_comm_t *comm, const quoit_part_t *send, void *recv, size_t count, quoit_dtype_t dtype, int root,
                              const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    const quoit_part_t *parts = NULL;
    quoit_status_t status = begin(&issue, comm, "scatterv", dtype, call, request);
    if (status != QUOIT_OK) return status;
    bool is_root = comm->rank == root;
    if (is_root) status = copy_parts(&issue, "send", send, false, &parts);
    if (status == QUOIT_OK && is_root && parts[root].count != count)
        status = error_set(QUOIT_ERR_MISMATCH, "scatterv: root %d receives %zu elements but sends itself %zu", root, count,
                           parts[root].count);
    if (status != QUOIT_OK) return drop(&issue, status);
    return scatter(&issue, is_root ? parted(parts) : (plan_side_t){0}, recv, count, root, UINT64_MAX);
}

/* ------------------------------------------------------------------ point to point */

static inline __attribute__((always_inline)) quoit_status_t check_peer(const issue_t *issue, int peer, bool any)
{
    const quoit_comm_t *comm = issue->comm;
    if ((peer >= 0 && peer < comm->size) || (any && peer == QUOIT_ANY_SOURCE)) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "%s: rank %d of communicator %s, which has ranks 0 to %d", issue->what, peer, comm->name, comm->size - 1);
}

/* Made twice, so that nothing asks which of the two it is. */
static inline __attribute__((always_inline)) quoit_status_t message(quoit_comm_t *comm, operation_kind_t kind, void *buffer, size_t count, quoit_dtype_t dtype, int peer,
                              uint32_t tag, const quoit_call_t *call, quoit_request_t **request)
{
    issue_t issue;
    quoit_status_t status = check(&issue, comm, kind == OPERATION_SEND ? "send" : "recv", dtype, call, request);
    if (status == QUOIT_OK) status = check_peer(&issue, peer, kind == OPERATION_RECV);
    if (status == QUOIT_OK) status = check_buffer(&issue, "buffer", buffer, count);
    if (status != QUOIT_OK) return status;
    bool on_host = !call || call->device == QUOIT_DEVICE_HOST;
    if (kind == OPERATION_SEND && !request && on_host && match_send_at_once(comm, peer, tag, buffer, count, dtype)) return QUOIT_OK;
    status = make_operation(&issue, kind);
    if (status != QUOIT_OK) return status;
    operation_t *operation = issue.operation;
    operation->send = operation->recv = whole(buffer, count);
    operation->peer = operation->source = peer;
    operation->tag = tag;
    operation->bytes = count * operation->width;
    return hand_in(&issue);
}

quoit_status_t quoit_send(quoit_comm_t *comm, const void *buffer, size_t count, quoit_dtype_t dtype, int destination, uint32_t tag,
                          const quoit_call_t *call, quoit_request_t **request)
{
    return message(comm, OPERATION_SEND, (void *)buffer, count, dtype, destination, tag, call, request);
}

quoit_status_t quoit_recv(quoit_comm_t *comm, void *buffer, size_t count, quoit_dtype_t dtype, int source, uint32_t tag,
                          const quoit_call_t *call, quoit_request_t **request)
{
    return message(comm, OPERATION_RECV, buffer, count, dtype, source, tag, call, request);
}
