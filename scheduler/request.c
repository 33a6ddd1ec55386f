/* SPDX-License-Identifier: Apache-2.0 */
/* The public requests. */
#include "base/clock.h"
#include "scheduler/comm.h"

static operation_t *operation_of(quoit_request_t *request) { return (operation_t *)request; }

static quoit_status_t check(quoit_request_t *request)
{
    if (!request) return error_set(QUOIT_ERR_INVALID, "the request is NULL");
    return QUOIT_OK;
}

static quoit_status_t outcome(operation_t *operation)
{
    quoit_status_t status = atomic_load_explicit(&operation->status, memory_order_acquire);
    return status >= 0 ? status : error_set(status, "%s", operation->error);
}

/* A child of fork() has the request but neither its engine's threads nor its memory. The communicator may be gone once it is done. */
static quoit_status_t check_fork(operation_t *operation)
{
    if (operation->fork_generation == engine_fork_generation()) return QUOIT_OK;
    return error_set(QUOIT_ERR_FORKED, "the request belongs to the parent process");
}

/* IN_PROGRESS when there is something to drive; else what the call answers. */
static quoit_status_t look(quoit_request_t *request)
{
    quoit_status_t status = check(request);
    if (status != QUOIT_OK) return status;
    status = outcome(operation_of(request));
    if (status != QUOIT_IN_PROGRESS) return status;
    status = check_fork(operation_of(request));
    return status == QUOIT_OK ? QUOIT_IN_PROGRESS : status;
}

quoit_status_t quoit_request_test(quoit_request_t *request)
{
    quoit_status_t status = look(request);
    if (status != QUOIT_IN_PROGRESS) return status;
    operation_t *operation = operation_of(request);
    engine_t *engine = operation->engine;
    if (engine_try_enter(engine)) {
        engine_poll(engine);
        engine_leave(engine);
    }
    return outcome(operation);
}

quoit_status_t quoit_request_wait(quoit_request_t *request, int slice_ms)
{
    quoit_status_t status = look(request);
    if (status != QUOIT_IN_PROGRESS) return status;
    operation_t *operation = operation_of(request);
    engine_wait(operation->engine, operation, clock_deadline(slice_ms));
    return outcome(operation);
}

const char *quoit_request_error(quoit_request_t *request)
{
    if (!request) return "";
    operation_t *operation = operation_of(request);
    return atomic_load_explicit(&operation->status, memory_order_acquire) < 0 ? operation->error : "";
}

quoit_status_t quoit_request_source(quoit_request_t *request, int *source, size_t *count)
{
    quoit_status_t status = check(request);
    if (status != QUOIT_OK) return status;
    operation_t *operation = operation_of(request);
    if (operation->kind != OPERATION_RECV) return error_set(QUOIT_ERR_INVALID, "quoit_request_source: the request is no recv");
    if (atomic_load_explicit(&operation->status, memory_order_acquire) != QUOIT_OK)
        return error_set(QUOIT_ERR_INVALID, "quoit_request_source: the recv has not ended well (yet)");
    if (source) *source = operation->source;
    if (count) *count = operation->bytes / operation->width;
    return QUOIT_OK;
}

void quoit_request_free(quoit_request_t *request)
{
    if (request) operation_release(operation_of(request));
}
