/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Topology from labels: groups ranks by host, numbers hosts by their lowest rank, and lays the ranks out host by host, the leader of each first.
 * Pure: the same labels, and words of who is near to the network, give the same topology on every rank.
 */
#include "scheduler/topology.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct labelled {
    int label, rank;
} labelled_t;

static int compare(const void *a, const void *b)
{
    const labelled_t *left = a, *right = b;
    if (left->label != right->label) return left->label < right->label ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* lowest[r]: the lowest rank that has the label of r. */
static void find_lowest(int ranks, const int *host_of, labelled_t *sorted, int *lowest)
{
    for (int rank = 0; rank < ranks; rank++) sorted[rank] = (labelled_t){.label = host_of[rank], .rank = rank};
    qsort(sorted, (size_t)ranks, sizeof *sorted, compare);
    for (int i = 0, begin = 0; i < ranks; i++) {
        if (sorted[i].label != sorted[begin].label) begin = i;
        lowest[sorted[i].rank] = sorted[begin].rank;
    }
}

/* `position` holds each rank's lowest companion on entry; `order`, which is filled last, each host's leader meanwhile. */
static void fill(topology_t *topology, const uint64_t *reach)
{
    const int *lowest = topology->position;
    int *leader = topology->order;
    for (int rank = 0; rank < topology->ranks; rank++) {
        bool first = lowest[rank] == rank;
        int host = topology->host[rank] = first ? topology->hosts++ : topology->host[lowest[rank]];
        if (first || (reach && reach[rank] > reach[leader[host]])) leader[host] = rank;
    }
    for (int host = 0; host < topology->hosts; host++) topology->host_size[host] = 1; /* member 0 */
    for (int rank = 0; rank < topology->ranks; rank++) {
        int host = topology->host[rank];
        topology->member[rank] = leader[host] == rank ? 0 : topology->host_size[host]++;
    }
    for (int host = 1; host < topology->hosts; host++)
        topology->host_first[host] = topology->host_first[host - 1] + topology->host_size[host - 1];
    for (int rank = 0; rank < topology->ranks; rank++) {
        int position = topology->host_first[topology->host[rank]] + topology->member[rank];
        topology->order[position] = rank;
        topology->position[rank] = position;
    }
}

quoit_status_t topology_create(int ranks, const int *host_of, const uint64_t *reach, topology_t **topology)
{
    if (ranks < 1 || !host_of) return error_set(QUOIT_ERR_INVALID, "topology of %d ranks: at least one rank and its host are needed", ranks);
    size_t count = (size_t)ranks;
    topology_t *made = calloc(1, sizeof *made);
    int *numbers = calloc(count, 6 * sizeof *numbers);
    labelled_t *sorted = calloc(count, sizeof *sorted);
    if (!made || !numbers || !sorted) goto no_memory;
    *made = (topology_t){.ranks = ranks,
                         .host = numbers,
                         .member = numbers + count,
                         .host_size = numbers + 2 * count,
                         .host_first = numbers + 3 * count,
                         .order = numbers + 4 * count,
                         .position = numbers + 5 * count};
    find_lowest(ranks, host_of, sorted, made->position);
    fill(made, reach);
    free(sorted);
    *topology = made;
    return QUOIT_OK;

no_memory:
    free(sorted);
    free(numbers);
    free(made);
    return error_set(QUOIT_ERR_NO_MEMORY, "out of memory for the topology of %d ranks", ranks);
}

void topology_destroy(topology_t *topology)
{
    if (!topology) return;
    free(topology->host); /* the first of the six arrays of one allocation */
    free(topology);
}

static void append(char *text, size_t capacity, size_t *length, const char *format, int number)
{
    if (*length >= capacity) return;
    int added = snprintf(text + *length, capacity - *length, format, number);
    if (added > 0) *length += (size_t)added;
}

/* Sizes of the hosts, runs of equal ones as "3 x 8". */
static void append_sizes(const topology_t *topology, char *text, size_t capacity, size_t *length)
{
    enum { RUN = 4 }; /* from so many equal hosts on */
    for (int host = 0; host < topology->hosts;) {
        int run = 1, size = topology->host_size[host];
        while (host + run < topology->hosts && topology->host_size[host + run] == size) run++;
        if (run < RUN) run = 1;
        if (host > 0) append(text, capacity, length, " + %d", run > 1 ? run : size);
        else append(text, capacity, length, "%d", run > 1 ? run : size);
        if (run > 1) append(text, capacity, length, " x %d", size);
        host += run;
    }
}

void topology_summary(const topology_t *topology, char *text, size_t capacity)
{
    if (capacity == 0) return;
    size_t length = 0;
    append(text, capacity, &length, topology->hosts == 1 ? "%d host: " : "%d hosts: ", topology->hosts);
    append_sizes(topology, text, capacity, &length);
    append(text, capacity, &length, topology->ranks == 1 ? " rank" : " ranks", 0);
}
