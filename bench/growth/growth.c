/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See growth.h. Terms: a *round* is a message that must have arrived before the next one is sent; the simulator counts them as time,
 * with one second a message and none a byte. All ranks have the same two buffers, of which nobody looks at the content: a thousand
 * hosts with sixteen ranks fit into memory so.
 */
#include "bench/growth/growth.h"

#include "base/settings.h"
#include "scheduler/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 4096, MOST_RANKS = 1 << 16, PART = 64 /* bytes: what a chunk gives each host, so that all parts are equal */ };

typedef struct world {
    const topology_t *topology;
    plan_t **plan;             /* [ranks] owned */
    plan_binding_t *binding;   /* [ranks] */
    char *send, *recv;
    uint64_t *sent, *received; /* [hosts] */
} world_t;

/* ------------------------------------------------------------------ layouts */

static bool read_number(const char **text, long most, long *value)
{
    char *end;
    errno = 0;
    *value = strtol(*text, &end, 10);
    if (**text < '0' || **text > '9' || errno || *value < 1 || *value > most) return false;
    *text = end;
    return true;
}

static int read_layout(const char *text, int *hosts, int ranks_of[MOST_HOSTS])
{
    long first, second;
    int total = 0;
    if (!read_number(&text, MOST_RANKS, &first)) return 0;
    if (*text == 'x') {
        text++;
        if (!read_number(&text, MOST_RANKS, &second) || *text || first > MOST_HOSTS || first * second > MOST_RANKS) return 0;
        for (*hosts = 0; *hosts < first; ++*hosts) ranks_of[*hosts] = (int)second;
        return (int)(first * second);
    }
    for (*hosts = 0;;) {
        ranks_of[(*hosts)++] = (int)first;
        total += (int)first;
        if (!*text) return total <= MOST_RANKS ? total : 0;
        if (*text++ != '+' || *hosts == MOST_HOSTS || !read_number(&text, MOST_RANKS, &first)) return 0;
    }
}

quoit_status_t growth_parse(const char *text, topology_t **topology)
{
    int ranks_of[MOST_HOSTS], hosts, ranks = read_layout(text, &hosts, ranks_of);
    if (ranks == 0)
        return error_set(QUOIT_ERR_INVALID, "%s: expected ranks on each host such as 4+3, or 2x4 for 2 hosts with 4 ranks (at most %d hosts, %d ranks)",
                         text, MOST_HOSTS, MOST_RANKS);
    int *host_of = malloc((size_t)ranks * sizeof *host_of);
    if (!host_of) return error_set(QUOIT_ERR_NO_MEMORY, "out of memory for %d ranks", ranks);
    for (int host = 0, rank = 0; host < hosts; host++)
        for (int member = 0; member < ranks_of[host]; member++) host_of[rank++] = host;
    quoit_status_t status = topology_create(ranks, host_of, NULL, topology);
    free(host_of);
    return status;
}

tuning_t growth_tuning(void)
{
    tuning_t tuning = {.slot_size = (uint64_t)setting_int(SETTING_SLOT_SIZE),
                       .net_chunk_size = (uint64_t)setting_int(SETTING_NET_CHUNK_SIZE),
                       .small_limit = (uint64_t)setting_int(SETTING_ALLREDUCE_SMALL),
                       .eager_limit = (uint64_t)setting_int(SETTING_EAGER_LIMIT),
                       .net_depth = (int32_t)setting_int(SETTING_NET_DEPTH),
                       .allreduce = -1};
    return tuning;
}

/* ------------------------------------------------------------------ all ranks */

static void world_close(world_t *world)
{
    for (int rank = 0; world->plan && rank < world->topology->ranks; rank++) plan_destroy(world->plan[rank]);
    free(world->plan);
    free(world->binding);
    free(world->send);
    free(world->recv);
    free(world->sent);
    free(world->received);
}

static quoit_status_t world_open(world_t *world, const tuning_t *tuning, plan_request_t request, size_t count)
{
    size_t ranks = (size_t)world->topology->ranks, hosts = (size_t)world->topology->hosts;
    world->plan = calloc(ranks, sizeof(plan_t *));
    world->binding = calloc(ranks, sizeof *world->binding);
    world->send = calloc(count, sizeof(float));
    world->recv = calloc(count, sizeof(float));
    world->sent = calloc(hosts, sizeof *world->sent);
    world->received = calloc(hosts, sizeof *world->received);
    if (!world->plan || !world->binding || !world->send || !world->recv || !world->sent || !world->received)
        return error_set(QUOIT_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    for (int rank = 0; rank < world->topology->ranks; rank++) {
        request.rank = rank;
        quoit_status_t status = plan_create(world->topology, tuning, &request, &world->plan[rank]);
        if (status != QUOIT_OK) return status;
        plan_binding_t *binding = &world->binding[rank];
        *binding = (plan_binding_t){.plan = world->plan[rank], .width = sizeof(float), .ranks = world->topology->ranks,
                                    .send = {.base = world->send, .count = count}, .recv = {.base = world->recv, .count = count}};
        plan_bind(binding, tuning);
    }
    return QUOIT_OK;
}

static int compare_ints(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }

/* Ranks of other hosts in a plan's messages. */
static int peers_of(const topology_t *topology, const plan_t *plan, int rank, int *peers)
{
    int found = 0, different = 0;
    for (int i = 0; i < plan->steps; i++) {
        const plan_step_t *step = &plan->step[i];
        bool message = step->verb == VERB_SEND || step->verb == VERB_RECV;
        if (message && topology->host[step->peer] != topology->host[rank]) peers[found++] = step->peer;
    }
    qsort(peers, (size_t)found, sizeof *peers, compare_ints);
    for (int i = 0; i < found; i++) different += i == 0 || peers[i] != peers[i - 1];
    return different;
}

static quoit_status_t count_connections(const world_t *world, int *most)
{
    *most = 0;
    for (int rank = 0; rank < world->topology->ranks; rank++) {
        int *peers = malloc(((size_t)world->plan[rank]->steps + 1) * sizeof *peers);
        if (!peers) return error_set(QUOIT_ERR_NO_MEMORY, "out of memory for a plan of %d steps", world->plan[rank]->steps);
        int count = peers_of(world->topology, world->plan[rank], rank, peers);
        free(peers);
        if (count > *most) *most = count;
    }
    return QUOIT_OK;
}

quoit_status_t growth_measure(const topology_t *topology, const tuning_t *tuning, uint64_t bytes, growth_cost_t *cost)
{
    growth_cost_t found = {0};
    plan_request_t request = {.collective = COLLECTIVE_ALLREDUCE};
    tuning_t one_chunk = *tuning;
    quoit_status_t status = plan_select(topology, tuning, COLLECTIVE_ALLREDUCE, bytes, &found.algorithm, &request.small);
    if (status != QUOIT_OK) return status;
    request.algorithm = found.algorithm;
    uint64_t length = request.small ? bytes : (uint64_t)PART * (uint64_t)topology->hosts;
    one_chunk.net_depth = 1;
    if (!request.small) one_chunk.net_chunk_size = one_chunk.slot_size = length;
    world_t world = {.topology = topology};
    size_t count = length / sizeof(float) > 0 ? (size_t)(length / sizeof(float)) : 1;
    status = world_open(&world, &one_chunk, request, count);
    if (status != QUOIT_OK) goto close_world;
    simulation_t simulation = {.topology = topology, .tuning = &one_chunk, .dtype = QUOIT_F32, .op = QUOIT_SUM, .binding = world.binding,
                               .alpha = 1, .sent = world.sent, .received = world.received};
    status = simulate_run(&simulation);
    if (status == QUOIT_OK) status = count_connections(&world, &found.connections);
    if (status != QUOIT_OK) goto close_world;
    for (int host = 0; host < topology->hosts; host++) {
        found.sent = fmax(found.sent, (double)world.sent[host] / ((double)count * sizeof(float)));
        found.received = fmax(found.received, (double)world.received[host] / ((double)count * sizeof(float)));
    }
    found.messages = simulation.messages;
    found.rounds = (int)lround(simulation.seconds);
    *cost = found;

close_world:
    world_close(&world);
    return status;
}
