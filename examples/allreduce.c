/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library in one page: the ranks meet, sum a vector, once blocking and once while they do something else, and part.
 *
 *     cc allreduce.c $(pkg-config --cflags --libs quoit) -o allreduce
 *     export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
 *     RANK=0 ./allreduce & RANK=1 ./allreduce
 */
#include <quoit/quoit.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000, TIMEOUT_MS = 20000 };

static int number(const char *variable, int fallback)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : fallback;
}

/* The text says which rank, what, why, and what to do: print it, nothing else is known here. */
static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, quoit_last_error());
    return EXIT_FAILURE;
}

static int sum(quoit_comm_t *comm)
{
    float value[COUNT], result[COUNT];
    for (int i = 0; i < COUNT; i++) value[i] = (float)quoit_comm_rank(comm);

    /* In place, and the call returns when the result is there. */
    if (quoit_allreduce(comm, value, value, COUNT, QUOIT_F32, QUOIT_SUM, NULL, NULL) != QUOIT_OK) return failed("allreduce");

    /* With a request the call returns at once; until the wait both buffers belong to the library. */
    quoit_request_t *request = NULL;
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = TIMEOUT_MS;
    if (quoit_allreduce(comm, value, result, COUNT, QUOIT_F32, QUOIT_MAX, &call, &request) != QUOIT_OK) return failed("allreduce");
    quoit_status_t status = quoit_request_wait(request, -1);
    if (status != QUOIT_OK) fprintf(stderr, "allreduce: %s\n", quoit_request_error(request));
    quoit_request_free(request);
    if (status != QUOIT_OK) return EXIT_FAILURE;

    printf("rank %d of %d, on %d host%s: the ranks' numbers add up to %g\n", quoit_comm_rank(comm), quoit_comm_size(comm), quoit_comm_hosts(comm),
           quoit_comm_hosts(comm) == 1 ? "" : "s", (double)result[COUNT - 1]);
    return EXIT_SUCCESS;
}

int main(void)
{
    int rank = number("RANK", 0), size = number("WORLD_SIZE", 1);
    quoit_store_t *store = NULL;
    quoit_comm_t *comm = NULL;
    if (quoit_store_open("env://", rank, size, TIMEOUT_MS, &store) != QUOIT_OK) return failed("store");
    if (quoit_comm_create(store, rank, size, NULL, &comm) != QUOIT_OK) {
        int outcome = failed("communicator");
        quoit_store_close(store);
        return outcome;
    }
    quoit_store_close(store); /* it has done its work */
    int outcome = sum(comm);
    quoit_comm_destroy(comm);
    return outcome;
}
