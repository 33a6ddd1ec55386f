/* SPDX-License-Identifier: Apache-2.0 */
/* Settings read for the transports that are reached at IP addresses: which interfaces, which limits. */
#include "transport/ip/ip_settings.h"

#include "base/log.h"
#include "base/settings.h"
#include "transport/framing/channel.h"

#include <stdlib.h>
#include <string.h>

enum { WISHED_MOST = 32 };

static quoit_status_t read_size(const quoit_transport_environment_t *environment, const char *name, int64_t fallback, int64_t least,
                                int64_t most, uint32_t *value)
{
    const char *text = environment->setting(name);
    int64_t number = fallback;
    quoit_status_t status = text == NULL ? QUOIT_OK : parse_size(name, text, least, most, &number);
    if (status == QUOIT_OK) *value = (uint32_t)number;
    return status;
}

quoit_status_t ip_settings_limits(const quoit_transport_environment_t *environment, ip_limits_t *result, int *connect_ms)
{
    ip_limits_t read = {0}, *limits = &read;
    int64_t timeout = 20 * 1000000, sockets = 2;
    const char *text = environment->setting("TCP_SOCKETS");
    quoit_status_t status = text == NULL ? QUOIT_OK : parse_int("TCP_SOCKETS", text, 1, CHANNEL_MAX_PIPES, &sockets);
    if (status == QUOIT_OK) status = read_size(environment, "EAGER_LIMIT", 8 << 10, 256, 64 << 10, &limits->eager_limit);
    if (status == QUOIT_OK) status = read_size(environment, "EAGER_POOL", 1 << 20, 64 << 10, 64 << 20, &limits->eager_pool);
    if (status == QUOIT_OK) status = read_size(environment, "SEGMENT_SIZE", 256 << 10, 4 << 10, 4 << 20, &limits->segment_size);
    text = environment->setting("CONNECT_TIMEOUT");
    if (status == QUOIT_OK && text != NULL) status = parse_duration("CONNECT_TIMEOUT", text, 10000, 600000000, &timeout);
    if (status != QUOIT_OK) return status;
    limits->sockets = (uint32_t)sockets;
    *result = read;
    *connect_ms = (int)((timeout + 999) / 1000);
    return QUOIT_OK;
}

static const char *filled(const char *text) { return text != NULL && text[0] != 0 ? text : NULL; }

static quoit_status_t read_family(const quoit_transport_environment_t *environment, int *family)
{
    const char *text = filled(environment->setting("IP_FAMILY"));
    if (text == NULL || strcmp(text, "any") == 0)
        *family = AF_UNSPEC;
    else if (strcmp(text, "4") == 0)
        *family = AF_INET;
    else if (strcmp(text, "6") == 0)
        *family = AF_INET6;
    else
        return error_set(QUOIT_ERR_INVALID, "QUOIT_IP_FAMILY=%s: expected any, 4 or 6", text);
    return QUOIT_OK;
}

/* What other libraries were told counts where Quoit was told nothing. */
static const char *foreign_pattern(const char **variable)
{
    static const char *const variables[] = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = filled(getenv(variables[i]));
        if (text == NULL) continue;
        *variable = variables[i];
        return text;
    }
    return NULL;
}

static void log_choice(const char *room, const ip_choice_t *choice, const char *variable)
{
    char text[IP_NAME_CAPACITY];
    for (int i = 0; i < choice->count; i++)
        log_info(room, "address %d of %d: %s of %s%s, %u Mb/s%s%s", i + 1, choice->count,
                 ip_name_text(&choice->chosen[i].address, text), choice->chosen[i].name, choice->rails > 1 ? ", a rail" : "", choice->mbps[i], variable != NULL ? ", chosen by " : "",
                 variable != NULL ? variable : "");
}

/* ---- rails */

/* rates: "eth0=1000,eth1=300" */
quoit_status_t ip_settings_rate(const char *text, const char *name, uint32_t driver, uint32_t *mbps)
{
    uint32_t told = 0;
    for (const char *at = text; at != NULL && *at != 0;) {
        size_t length = strcspn(at, ","), key = strcspn(at, "=,");
        char *end;
        unsigned long value = key < length ? strtoul(at + key + 1, &end, 10) : 0;
        if (key == 0 || key >= length || end != at + length || value < 1 || value > 10000000)
            return error_set(QUOIT_ERR_INVALID, "QUOIT_INTERFACE_RATES=%s: expected interfaces with their rates in Mb/s, as in eth0=25000,eth1=10000", text);
        if (strlen(name) == key && strncmp(at, name, key) == 0) told = (uint32_t)value;
        at += length + (at[length] == ',');
    }
    *mbps = told > 0 ? told : driver;
    return QUOIT_OK;
}

static int find_interface(const ip_interface_t *all, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0) return i;
    return -1;
}

/*
 * Of all that fit, best first: each interface is a rail, numbered as they come. One address of each, then a second of each, as far as they can
 * be told.
 */
static void choose_rails(const ip_interface_t *fit, int count, ip_choice_t *choice)
{
    int turn[WISHED_MOST] = {0}, rail[WISHED_MOST], rails = 0;
    for (int i = 0; i < count; i++) {
        int first = find_interface(fit, i, fit[i].name);
        rail[i] = first < 0 ? rails++ : rail[first];
        for (int k = 0; k < i; k++) turn[i] += rail[k] == rail[i];
    }
    choice->count = 0;
    choice->rails = rails < IP_MAX_ADDRESSES ? rails : IP_MAX_ADDRESSES;
    for (int round = 0; round < count; round++) {
        for (int i = 0; i < count && choice->count < IP_MAX_ADDRESSES; i++) {
            bool second = round > 0 && ip_name_is_link_local(&fit[i].address); /* nothing that the first does not reach */
            if (turn[i] != round || second) continue;
            choice->rail[choice->count] = rail[i];
            choice->chosen[choice->count++] = fit[i];
        }
    }
}

static quoit_status_t choose(const quoit_transport_environment_t *environment, const ip_interface_t *all, int count, const ip_interface_wish_t *wish,
                             ip_choice_t *choice)
{
    ip_interface_t fit[WISHED_MOST];
    int found = 0;
    bool several = choice->named && wish->pattern[0] != '^';
    quoit_status_t status = ip_interface_choose(all, count, wish, fit, several ? WISHED_MOST : IP_MAX_ADDRESSES, &found);
    if (status != QUOIT_OK) return status;
    choice->rails = 1;
    choice->count = found < IP_MAX_ADDRESSES ? found : IP_MAX_ADDRESSES;
    for (int i = 0; i < choice->count; i++) choice->chosen[i] = fit[i];
    for (int i = 1; several && i < found; i++)
        if (strcmp(fit[i].name, fit[0].name) != 0) choice->rails = 2;
    if (choice->rails > 1) choose_rails(fit, found, choice);
    for (int i = 0; i < choice->count && status == QUOIT_OK; i++)
        status = ip_settings_rate(filled(environment->setting("INTERFACE_RATES")), choice->chosen[i].name, choice->chosen[i].mbps, &choice->mbps[i]);
    return status;
}

quoit_status_t ip_settings_interfaces(const quoit_transport_environment_t *environment, const char *room, ip_choice_t *choice)
{
    ip_interface_t *all = NULL;
    ip_name_t route;
    int count = 0;
    const char *foreign = NULL;
    ip_interface_wish_t wish = {.variable = "QUOIT_INTERFACE", .pattern = filled(environment->setting("INTERFACE"))};
    quoit_status_t status = read_family(environment, &wish.family);
    if (status == QUOIT_OK) status = ip_interface_recent(&all, &count);
    if (status != QUOIT_OK) return status;
    if (ip_interface_route(getenv("MASTER_ADDR"), &route)) wish.route = &route;
    choice->named = wish.pattern != NULL;
    if (wish.pattern == NULL) wish.pattern = foreign = foreign_pattern(&wish.variable);
    if (wish.pattern == NULL) wish.pattern = "";
    status = choose(environment, all, count, &wish, choice);
    if (status != QUOIT_OK && foreign != NULL) {
        log_warn(room, "%s; ignoring %s", error_text(), wish.variable);
        foreign = NULL;
        wish.pattern = "";
        status = choose(environment, all, count, &wish, choice);
    }
    free(all);
    if (status == QUOIT_OK) log_choice(room, choice, foreign != NULL || choice->named ? wish.variable : NULL);
    return status;
}

void ip_choice_set_scope(const ip_choice_t *choice, ip_name_t *name)
{
    if (!ip_name_is_link_local(name)) return;
    for (int i = 0; i < choice->count; i++) {
        name->v6.sin6_scope_id = if_nametoindex(choice->chosen[i].name);
        if (ip_name_is_link_local(&choice->chosen[i].address)) return;
    }
}
