/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing interfaces: every address gets a rank (lower is better), or none; a stable sort by it is the answer. See the header for
 * the patterns.
 */
#include "transport/ip/ip_interface.h"

#include "base/clock.h"
#include "base/forked.h"
#include "base/place.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITEM_CAPACITY = 64, UNFIT = -1 };

enum { CLASS_NEARER, CLASS_ROUTE, CLASS_REAL, CLASS_FAR, CLASS_VIRTUAL, CLASS_LOOPBACK, CLASS_COUNT };

typedef struct item {
    char text[ITEM_CAPACITY];
    size_t length;
    bool prefix, exact, network;
    int family; /* of the network */
    uint8_t ip[16];
    unsigned bits;
} item_t;

static const uint8_t *name_ip(const ip_name_t *name)
{
    return name->any.sa_family == AF_INET6 ? (const uint8_t *)&name->v6.sin6_addr : (const uint8_t *)&name->v4.sin_addr;
}

static bool same_ip(const ip_name_t *a, const ip_name_t *b)
{
    return a->any.sa_family == b->any.sa_family && memcmp(name_ip(a), name_ip(b), a->any.sa_family == AF_INET6 ? 16 : 4) == 0;
}

static bool bits_equal(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    if (memcmp(a, b, bits / 8) != 0) return false;
    unsigned rest = bits % 8;
    return rest == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - rest)) == 0;
}

/* "10.0.0.0/8"; an address without "/" is the network of one address. */
static bool read_network(item_t *item)
{
    char ip[ITEM_CAPACITY];
    char *slash, *end;
    memcpy(ip, item->text, sizeof ip);
    slash = strchr(ip, '/');
    if (slash != NULL) *slash = 0;
    if (inet_pton(AF_INET, ip, item->ip) == 1)
        item->family = AF_INET;
    else if (inet_pton(AF_INET6, ip, item->ip) == 1)
        item->family = AF_INET6;
    else
        return false;
    unsigned most = item->family == AF_INET ? 32 : 128;
    item->bits = most;
    if (slash != NULL) {
        unsigned long bits = strtoul(slash + 1, &end, 10);
        if (slash[1] < '0' || slash[1] > '9' || *end != 0 || bits > most) return false;
        item->bits = (unsigned)bits;
    }
    return true;
}

/* The item that begins at *cursor, without blanks; false when there is none left or it cannot be read (*cursor is NULL then). */
static bool next_item(const char **cursor, item_t *item)
{
    const char *begin = *cursor + strspn(*cursor, ", \t");
    size_t length = strcspn(begin, ", \t");
    if (length == 0) return false;
    memset(item, 0, sizeof *item);
    *cursor = begin + length;
    if (*begin == '=') item->exact = true, begin++, length--;
    if (length > 0 && begin[length - 1] == '*') item->prefix = true, length--;
    if (length >= ITEM_CAPACITY || (item->exact && length == 0)) {
        *cursor = NULL;
        return false;
    }
    memcpy(item->text, begin, length);
    item->length = length;
    item->network = !item->exact && !item->prefix && read_network(item);
    if (!item->network && strchr(item->text, '/') != NULL) {
        *cursor = NULL;
        return false;
    }
    return true;
}

static bool has_exact(const ip_interface_t *all, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0) return true;
    return false;
}

static bool item_fits(const item_t *item, const ip_interface_t *all, int count, const ip_interface_t *interface)
{
    if (item->network)
        return interface->address.any.sa_family == item->family && bits_equal(name_ip(&interface->address), item->ip, item->bits);
    if (item->prefix) return strncmp(interface->name, item->text, item->length) == 0;
    if (item->exact || has_exact(all, count, item->text)) return strcmp(interface->name, item->text) == 0;
    return strncmp(interface->name, item->text, item->length) == 0;
}

static bool name_begins(const char *name, const char *const *prefixes)
{
    for (; *prefixes != NULL; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0) return true;
    return false;
}

/* As good a way as the route's, from a device that is nearer. */
static bool is_nearer(const ip_interface_t *all, int count, const ip_interface_t *interface, const ip_name_t *route)
{
    for (int i = 0; route != NULL && i < count; i++) {
        if (!same_ip(route, &all[i].address) || !ip_interface_reaches(interface, route)) continue;
        return interface->distance < all[i].distance && 2 * (uint64_t)interface->mbps >= all[i].mbps && !same_ip(&interface->address, route);
    }
    return false;
}

static int interface_class(const ip_interface_t *all, int count, const ip_interface_t *interface, const ip_name_t *route)
{
    static const char *const virtual[] = {"docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "podman", NULL};
    bool loopback = (interface->flags & IFF_LOOPBACK) != 0;
    if (route != NULL && !loopback && same_ip(route, &interface->address)) return CLASS_ROUTE;
    if (loopback) return CLASS_LOOPBACK;
    if (!(interface->flags & IFF_RUNNING) || name_begins(interface->name, virtual)) return CLASS_VIRTUAL;
    if (interface->address.any.sa_family == AF_INET && bits_equal(name_ip(&interface->address), (const uint8_t[]){169, 254}, 16))
        return CLASS_VIRTUAL;
    if (is_nearer(all, count, interface, route)) return CLASS_NEARER;
    return interface->distance > 0 ? CLASS_FAR : CLASS_REAL;
}

/* Number of the first item that fits, UNFIT for none; *named tells whether it fits by name. */
static int first_fit(const char *pattern, const ip_interface_t *all, int count, const ip_interface_t *interface, bool *named)
{
    item_t item;
    for (int number = 0; next_item(&pattern, &item); number++) {
        if (!item_fits(&item, all, count, interface)) continue;
        *named = !item.network;
        return number;
    }
    return UNFIT;
}

static int interface_rank(const ip_interface_wish_t *wish, const ip_interface_t *all, int count, const ip_interface_t *interface)
{
    bool exclude = wish->pattern[0] == '^', explicit = wish->pattern[0] != 0 && !exclude, named = false;
    if (!(interface->flags & IFF_UP)) return UNFIT;
    if (wish->family != AF_UNSPEC && interface->address.any.sa_family != wish->family) return UNFIT;
    int fit = first_fit(wish->pattern + (exclude ? 1 : 0), all, count, interface, &named);
    if (explicit ? fit == UNFIT : fit != UNFIT) return UNFIT;
    if (ip_name_is_link_local(&interface->address) && !(explicit && named)) return UNFIT;
    int class = interface_class(all, count, interface, wish->route);
    if (ip_name_is_link_local(&interface->address)) class = CLASS_VIRTUAL;
    if (explicit && (class == CLASS_NEARER || class == CLASS_FAR)) class = CLASS_REAL; /* rails of a list pair by their place, which is the same for all ranks */
    return (explicit ? fit * CLASS_COUNT : 0) + class;
}

static quoit_status_t check_pattern(const ip_interface_wish_t *wish)
{
    const char *cursor = wish->pattern + (wish->pattern[0] == '^' ? 1 : 0);
    item_t item;
    bool any = false;
    while (next_item(&cursor, &item)) any = true;
    if (cursor == NULL || (!any && wish->pattern[0] != 0))
        return error_set(QUOIT_ERR_INVALID,
                         "%s=%s: cannot be read; expected names (eth0), prefixes (eth*) or networks (10.0.0.0/8) separated by "
                         "commas, a leading ^ to exclude them",
                         wish->variable, wish->pattern);
    return QUOIT_OK;
}

/* "lo (127.0.0.1), eth0 (10.1.2.3, fd00::3), eth1 (down, 10.2.2.3)" */
static void list_interfaces(const ip_interface_t *all, int count, text_t *text)
{
    char ip[IP_NAME_CAPACITY];
    for (int i = 0; i < count; i++) {
        bool first = i == 0 || strcmp(all[i].name, all[i - 1].name) != 0;
        const char *down = all[i].flags & IFF_UP ? "" : "down, ";
        if (first)
            text_append(text, "%s%s (%s%s", i == 0 ? "" : "), ", all[i].name, down, ip_name_text(&all[i].address, ip));
        else
            text_append(text, ", %s", ip_name_text(&all[i].address, ip));
    }
    if (count > 0) text_append(text, ")");
}

static int order_by_name(const void *a, const void *b)
{
    return strcmp(((const ip_interface_t *)a)->name, ((const ip_interface_t *)b)->name);
}

/* Nothing was chosen: say what is wrong with the wish, and what there is. */
static quoit_status_t nothing_fits(const ip_interface_t *all, int count, const ip_interface_wish_t *wish)
{
    bool named = false, exclude = wish->pattern[0] == '^', known = exclude || wish->pattern[0] == 0;
    text_t text = {0};
    char *list = NULL;
    for (int i = 0; i < count && !known; i++) known = first_fit(wish->pattern, all, count, &all[i], &named) != UNFIT;
    ip_interface_t *sorted = malloc(sizeof *sorted * (size_t)(count + 1));
    if (sorted == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for %d interfaces", count);
    if (count > 0) memcpy(sorted, all, sizeof *sorted * (size_t)count);
    qsort(sorted, (size_t)count, sizeof *sorted, order_by_name);
    list_interfaces(sorted, count, &text);
    free(sorted);
    const char *shown = text_finish(&text, &list) == QUOIT_OK && list != NULL && list[0] != 0 ? list : "none";
    const char *family = wish->family == AF_INET ? " with an IPv4 address" : wish->family == AF_INET6 ? " with an IPv6 address" : "";
    quoit_status_t status;
    if (!known)
        status = error_set(QUOIT_ERR_INVALID, "%s=%s: no such interface; there are %s", wish->variable, wish->pattern, shown);
    else if (wish->pattern[0] != 0)
        status = error_set(QUOIT_ERR_NOT_FOUND, "%s=%s: leaves no interface that is up%s; there are %s", wish->variable,
                           wish->pattern, family, shown);
    else
        status = error_set(QUOIT_ERR_NOT_FOUND, "tcp: no network interface is up%s; there are %s", family, shown);
    free(list);
    return status;
}

quoit_status_t ip_interface_choose(const ip_interface_t *all, int all_count, const ip_interface_wish_t *wish,
                                    ip_interface_t *chosen, int capacity, int *count)
{
    quoit_status_t status = check_pattern(wish);
    if (status != QUOIT_OK) return status;
    int *ranks = malloc(sizeof *ranks * (size_t)(all_count + 1)), found = 0, worst = 0;
    if (ranks == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for %d interfaces", all_count);
    for (int i = 0; i < all_count; i++) {
        ranks[i] = interface_rank(wish, all, all_count, &all[i]);
        if (ranks[i] > worst) worst = ranks[i];
    }
    for (int rank = 0; rank <= worst; rank++)
        for (int i = 0; i < all_count && found < capacity; i++)
            if (ranks[i] == rank) chosen[found++] = all[i];
    free(ranks);
    if (found == 0) return nothing_fits(all, all_count, wish);
    *count = found;
    return QUOIT_OK;
}

static unsigned mask_bits(const struct sockaddr *mask)
{
    ip_name_t name = {0};
    unsigned bits = 0;
    if (mask == NULL || (mask->sa_family != AF_INET && mask->sa_family != AF_INET6)) return 0;
    memcpy(&name, mask, mask->sa_family == AF_INET ? sizeof name.v4 : sizeof name.v6);
    const uint8_t *ip = name_ip(&name);
    while (bits < (mask->sa_family == AF_INET ? 32u : 128u) && ip[bits / 8] >> (7 - bits % 8) & 1) bits++;
    return bits;
}

/* Megabits a second that the driver tells of; 0: it does not know. sysfs shows the network namespace in which it was mounted; ethtool that of the socket. */
static uint32_t driver_rate(const char *name)
{
    struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
    struct ifreq request = {0};
    memcpy(request.ifr_name, name, strnlen(name, sizeof request.ifr_name - 1));
    request.ifr_data = (char *)&command;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    bool known = ioctl(fd, SIOCETHTOOL, &request) == 0;
    close(fd);
    uint32_t speed = (uint32_t)command.speed_hi << 16 | command.speed;
    return known && speed != (uint32_t)SPEED_UNKNOWN && speed != UINT16_MAX ? speed : 0;
}

/* What belongs to the device is asked once for all of its addresses; `earlier` are those before. */
static void locate(ip_interface_t *interface, const ip_interface_t *earlier, int count)
{
    char directory[64];
    place_t place;
    for (int i = 0; i < count; i++) {
        if (strcmp(earlier[i].name, interface->name) != 0) continue;
        interface->distance = earlier[i].distance;
        interface->numa_node = earlier[i].numa_node;
        interface->mbps = earlier[i].mbps;
        return;
    }
    snprintf(directory, sizeof directory, "/sys/class/net/%s", interface->name);
    place_read(directory, &place);
    interface->distance = place_distance(&place);
    interface->numa_node = place.numa_node;
    interface->mbps = driver_rate(interface->name);
}

quoit_status_t ip_interface_scan(ip_interface_t **all, int *count)
{
    struct ifaddrs *list;
    int found = 0;
    if (getifaddrs(&list) != 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "tcp: cannot list the network interfaces");
    for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) found++;
    ip_interface_t *interfaces = calloc((size_t)found + 1, sizeof *interfaces);
    if (interfaces == NULL) {
        freeifaddrs(list);
        return error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for %d interfaces", found);
    }
    found = 0;
    for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        if (entry->ifa_addr == NULL) continue;
        int family = entry->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        ip_interface_t *interface = &interfaces[found++];
        strncpy(interface->name, entry->ifa_name, sizeof interface->name - 1);
        interface->flags = entry->ifa_flags;
        memcpy(&interface->address, entry->ifa_addr, family == AF_INET ? sizeof interface->address.v4 : sizeof interface->address.v6);
        ip_name_set_port(&interface->address, 0);
        interface->bits = mask_bits(entry->ifa_netmask);
        locate(interface, interfaces, found - 1);
    }
    freeifaddrs(list);
    *all = interfaces;
    *count = found;
    return QUOIT_OK;
}

enum { RECENT_MS = 1000 };

/* A network namespace. The number of its file is given to another one as soon as it is gone; the cookie, of Linux 5.14 and later, never. */
typedef struct home {
    uint64_t cookie; /* 0: not known, but the file */
    dev_t device;
    ino_t file;
} home_t;

static struct recent {
    ip_interface_t *all; /* owned; NULL: none */
    int count;
    uint64_t until; /* clock */
    home_t home;
} recent;

static void forget_recent(void) { recent = (struct recent){0}; } /* it may be half changed */

static forked_lock_t recent_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .forget = forget_recent};

/* The thread's. False when there is no telling which it is. */
static bool find_home(home_t *home)
{
    struct stat file;
    *home = (home_t){0};
#ifdef SO_NETNS_COOKIE
    socklen_t length = sizeof home->cookie;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool told = fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &home->cookie, &length) == 0;
    if (fd >= 0) close(fd);
    if (told) return true;
#endif
    if (stat("/proc/thread-self/ns/net", &file) != 0) return false;
    home->device = file.st_dev;
    home->file = file.st_ino;
    return true;
}

quoit_status_t ip_interface_recent(ip_interface_t **all, int *count)
{
    home_t home;
    quoit_status_t status = QUOIT_OK;
    if (!find_home(&home)) return ip_interface_scan(all, count);
    forked_lock(&recent_lock);
    if (!recent.all || clock_now() >= recent.until || recent.home.cookie != home.cookie || recent.home.file != home.file || recent.home.device != home.device) {
        free(recent.all);
        recent = (struct recent){.home = home};
        status = ip_interface_scan(&recent.all, &recent.count);
        recent.until = clock_deadline(RECENT_MS);
    }
    size_t bytes = ((size_t)recent.count + 1) * sizeof *recent.all;
    ip_interface_t *copy = status == QUOIT_OK ? malloc(bytes) : NULL;
    if (copy) memcpy(copy, recent.all, bytes);
    else if (status == QUOIT_OK) status = error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for %d interfaces", recent.count);
    if (status == QUOIT_OK) *count = recent.count;
    forked_unlock(&recent_lock);
    if (status == QUOIT_OK) *all = copy;
    return status;
}

bool ip_interface_owns(const ip_interface_t *interface, const ip_name_t *address) { return same_ip(&interface->address, address); }

bool ip_interface_reaches(const ip_interface_t *interface, const ip_name_t *address)
{
    return interface->bits > 0 && interface->address.any.sa_family == address->any.sa_family &&
           bits_equal(name_ip(&interface->address), name_ip(address), interface->bits);
}

bool ip_interface_route(const char *host, ip_name_t *local)
{
    ip_name_t remote, found;
    socklen_t size = sizeof found;
    memset(&remote, 0, sizeof remote);
    if (host == NULL) return false;
    if (inet_pton(AF_INET, host, &remote.v4.sin_addr) == 1)
        remote.any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &remote.v6.sin6_addr) == 1)
        remote.any.sa_family = AF_INET6;
    else
        return false;
    ip_name_set_port(&remote, 9); /* "discard": connecting a datagram socket only looks the route up */
    int fd = socket(remote.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool known = connect(fd, &remote.any, ip_name_size(&remote)) == 0 && getsockname(fd, &found.any, &size) == 0;
    close(fd);
    if (known) *local = found;
    return known;
}
