/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which device, port and GID to use. verbs_device_choose is a pure function of a list, so that any machine's can be tried;
 * verbs_device_scan asks this machine.
 */
#ifndef QUOIT_TRANSPORT_VERBS_DEVICE_H
#define QUOIT_TRANSPORT_VERBS_DEVICE_H

#include "transport/verbs/verbs_library.h"

#include <stdbool.h>

enum { VERBS_NAME_CAPACITY = 64, VERBS_GID_TEXT = 48 };

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
    unsigned rate; /* relative: lanes times Gbit/s, about */
} verbs_candidate_t;

/** What the settings ask for. */
typedef struct verbs_wish {
    const char *device; /* "" any; "mlx5_0", or "mlx5_0:1" with a port */
    int port;           /* 0: any */
    int gid_index;      /* -1: any */
} verbs_wish_t;

/**
 * The best: of the ports that are active, the fastest; of its GIDs, RoCE v2 before v1, an IPv4 address before other global ones, a
 * link-local one last.
 * @return ERR_NOT_FOUND; the text says what is wished for and lists what there is.
 */
quoit_status_t verbs_device_choose(const verbs_candidate_t *all, int count, const verbs_wish_t *wish, verbs_candidate_t *chosen);
/** This machine's, to be freed with free(). Devices that cannot be opened are left out. */
quoit_status_t verbs_device_scan(const verbs_library_t *library, verbs_candidate_t **all, int *count);
/** Open the device of this name; NULL with a text. */
struct ibv_context *verbs_device_open(const verbs_library_t *library, const char *name);

const char *verbs_gid_type_name(verbs_gid_type_t type);
/** "10.0.0.7" for an IPv4 address, else as IPv6. Returns `text`. */
const char *verbs_gid_text(const union ibv_gid *gid, char text[VERBS_GID_TEXT]);
bool verbs_gid_is_ipv4(const union ibv_gid *gid);

#endif
