/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which devices, ports and GIDs to use. verbs_device_choose is a pure function of a list, so that any machine's can be tried;
 * verbs_device_scan asks this machine.
 */
#ifndef QUOIT_TRANSPORT_VERBS_DEVICE_H
#define QUOIT_TRANSPORT_VERBS_DEVICE_H

#include "base/place.h"
#include "transport/verbs/verbs_library.h"

#include <stdbool.h>

enum { VERBS_NAME_CAPACITY = 64, VERBS_GID_TEXT = 48, VERBS_PORT_TEXT = VERBS_NAME_CAPACITY + 40, VERBS_MOST_RAILS = 4 };

typedef enum verbs_gid_type { VERBS_GID_IB, VERBS_GID_ROCE_V1, VERBS_GID_ROCE_V2 } verbs_gid_type_t;

/** One GID of one port of one device. A port of InfiniBand is listed with each of its GIDs too. */
typedef struct verbs_candidate {
    char device[VERBS_NAME_CAPACITY];
    int port, gid_index;
    bool active, ethernet;
    verbs_gid_type_t type;
    union ibv_gid gid;
    uint16_t lid;
    enum ibv_mtu mtu;
    uint32_t mbps; /* of the port: lanes times what each signals */
    int distance;  /* from this process, as place_distance has it */
    int numa_node; /* where the device is attached; -1: unknown */
    bool software; /* no hardware: Soft-RoCE and its like */
} verbs_candidate_t;

/** What the settings ask for. */
typedef struct verbs_wish {
    const char *device; /* "" any; names separated by commas, "mlx5_0", "mlx5_0:1" with a port, "mlx5_*"; a leading ^: any but these */
    bool hardware;      /* software devices are not wanted unless they are named */
    int port;           /* 0: any */
    int gid_index;      /* -1: any */
} verbs_wish_t;

/**
 * The ports to use, VERBS_MOST_RAILS at most, in the order of their names. Of those that are active and wished for: where devices are named, all. Else
 * those of the fastest one's link layer (hardware before software), and of them those as near to this process as the nearest that has half of
 * its rate. Of a port's GIDs RoCE v2 before v1, an IPv4 address before other global ones, a link-local one last.
 * @return ERR_NOT_FOUND; the text says what is wished for and lists what there is.
 */
quoit_status_t verbs_device_choose(const verbs_candidate_t *all, int count, const verbs_wish_t *wish, verbs_candidate_t chosen[VERBS_MOST_RAILS], int *chosen_count);
/** This machine's, to be freed with free(). Devices that cannot be opened are left out. */
quoit_status_t verbs_device_scan(const verbs_library_t *library, verbs_candidate_t **all, int *count);
/** Open the device of this name; NULL with a text. */
struct ibv_context *verbs_device_open(const verbs_library_t *library, const char *name);

/** "mlx5_0 port 1 at NUMA node 1". Returns `text`. */
const char *verbs_port_text(const verbs_candidate_t *port, char text[VERBS_PORT_TEXT]);
const char *verbs_gid_type_name(verbs_gid_type_t type);
/** "10.0.0.7" for an IPv4 address, else as IPv6. Returns `text`. */
const char *verbs_gid_text(const union ibv_gid *gid, char text[VERBS_GID_TEXT]);
bool verbs_gid_is_ipv4(const union ibv_gid *gid);

#endif
