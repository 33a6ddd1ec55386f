/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Store URLs: tcp://host:port, file:///path, env://. The last is what launchers set: QUOIT_STORE, else MASTER_ADDR and MASTER_PORT.
 * Under torchrun the launcher's own store may sit at MASTER_PORT already (TORCHELASTIC_USE_AGENT_STORE); Quoit's then takes the next.
 */
#include "base/log.h"
#include "base/settings.h"
#include "base/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static quoit_status_t parse_tcp(const char *url, const char *rest, store_url_t *result)
{
    store_url_t parsed = {.scheme = STORE_SCHEME_TCP};
    bool bracketed = *rest == '[';
    const char *host = rest + bracketed, *end = bracketed ? strchr(host, ']') : strrchr(host, ':');
    if (bracketed && !end) return error_set(QUOIT_ERR_INVALID, "store %s: the ] after the IPv6 address is missing", url);
    const char *colon = bracketed ? end + 1 : end;
    if (!colon || *colon != ':' || colon[1] == '\0')
        return error_set(QUOIT_ERR_INVALID, "store %s: the port is missing; expected tcp://host:port", url);
    if (end == host) return error_set(QUOIT_ERR_INVALID, "store %s: the host is missing; expected tcp://host:port", url);
    if (!bracketed && memchr(host, ':', (size_t)(end - host)))
        return error_set(QUOIT_ERR_INVALID, "store %s: an IPv6 address needs brackets: tcp://[address]:port", url);
    if ((size_t)(end - host) >= sizeof parsed.host)
        return error_set(QUOIT_ERR_INVALID, "store %.300s: the host is longer than %zu bytes", url, sizeof parsed.host - 1);
    memcpy(parsed.host, host, (size_t)(end - host));
    if (strpbrk(parsed.host, "/ @?#")) return error_set(QUOIT_ERR_INVALID, "store %s: \"%s\" is no host", url, parsed.host);
    int64_t port;
    if (colon[1] == '+' || parse_int("port", colon + 1, 1, 65535, &port) != QUOIT_OK)
        return error_set(QUOIT_ERR_INVALID, "store %s: bad port \"%.40s\"; expected an integer from 1 to 65535", url, colon + 1);
    parsed.port = (int)port;
    *result = parsed;
    return QUOIT_OK;
}

quoit_status_t store_url_parse(const char *url, store_url_t *parsed)
{
    if (!url) return error_set(QUOIT_ERR_INVALID, "the URL of the store is NULL");
    if (!strncmp(url, "tcp://", 6)) return parse_tcp(url, url + 6, parsed);
    if (!strcmp(url, "env://")) {
        *parsed = (store_url_t){.scheme = STORE_SCHEME_ENV};
        return QUOIT_OK;
    }
    if (!strncmp(url, "file://", 7)) {
        if (url[7] != '/' || url[8] == '\0')
            return error_set(QUOIT_ERR_INVALID, "store %.300s: expected file:///path, with an absolute path", url);
        *parsed = (store_url_t){.scheme = STORE_SCHEME_FILE, .path = url + 7};
        return QUOIT_OK;
    }
    return error_set(QUOIT_ERR_INVALID, "store %.300s: unknown scheme; expected tcp://host:port, file:///path or env://", url);
}

static bool agent_has_port(void)
{
    const char *flag = getenv("TORCHELASTIC_USE_AGENT_STORE");
    return flag && (!strcasecmp(flag, "true") || !strcmp(flag, "1"));
}

static quoit_status_t resolve_master(store_url_t *result)
{
    const char *host = getenv("MASTER_ADDR"), *port_text = getenv("MASTER_PORT");
    bool no_host = !host || !*host, no_port = !port_text || !*port_text;
    if (no_host || no_port)
        return error_set(QUOIT_ERR_INVALID,
                         "store env://: missing in the environment: %s%s%s; set both, or QUOIT_STORE, or start with torchrun",
                         no_host ? "MASTER_ADDR" : "", no_host && no_port ? " and " : "", no_port ? "MASTER_PORT" : "");
    store_url_t parsed = {.scheme = STORE_SCHEME_TCP};
    int64_t port, shift = agent_has_port() ? 1 : 0;
    quoit_status_t status = parse_int("MASTER_PORT", port_text, 1, 65535 - shift, &port);
    if (status != QUOIT_OK) return error_prefix(status, "store env://");
    size_t length = strlen(host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length == 0 || length >= sizeof parsed.host)
        return error_set(QUOIT_ERR_INVALID, "store env://: MASTER_ADDR=%.100s is no host", host);
    memcpy(parsed.host, host, length);
    parsed.port = (int)(port + shift);
    if (shift)
        log_info("store", "torchrun's own store is at port %d of %s, so Quoit's takes the next port, %d", (int)port, parsed.host,
                 parsed.port);
    *result = parsed;
    return QUOIT_OK;
}

quoit_status_t store_env_resolve(store_url_t *parsed)
{
    const char *url = setting_string(SETTING_STORE);
    if (!*url) return resolve_master(parsed);
    quoit_status_t status = store_url_parse(url, parsed);
    if (status != QUOIT_OK) return error_prefix(status, "%s", setting_name(SETTING_STORE));
    if (parsed->scheme == STORE_SCHEME_ENV)
        return error_set(QUOIT_ERR_INVALID, "%s=%s refers to itself; expected tcp://host:port or file:///path",
                         setting_name(SETTING_STORE), url);
    return QUOIT_OK;
}
