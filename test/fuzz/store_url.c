/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of stores, given or found in the environment. */
#include "fuzz.h"

#include "base/settings.h"
#include "base/store_internal.h"

#include <stdio.h>
#include <stdlib.h>

static void check(const store_url_t *parsed, const char *url)
{
    switch (parsed->scheme) {
    case STORE_SCHEME_TCP:
        fuzz_check(parsed->port >= 1 && parsed->port <= 65535);
        fuzz_check(parsed->host[0] && memchr(parsed->host, '\0', sizeof parsed->host));
        break;
    case STORE_SCHEME_FILE: fuzz_check(parsed->path && parsed->path[0] == '/' && parsed->path[1]); break;
    case STORE_SCHEME_ENV: fuzz_check(!url || strcmp(url, "env://") == 0); break;
    }
}

static void from_environment(fuzz_input_t *input)
{
    static const char *const names[] = {"QUOIT_STORE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"};
    uint8_t which = fuzz_byte(input);
    for (int i = 0; i < 4; i++) {
        size_t length;
        const uint8_t *bytes = fuzz_take(input, which >> i & 1 ? fuzz_byte(input) : 0, &length);
        char *text = fuzz_string(bytes, length);
        if (which >> i & 1)
            setenv(names[i], text, 1);
        else
            unsetenv(names[i]);
        free(text);
    }
    settings_reset();
    store_url_t parsed;
    if (fuzz_check_status(store_env_resolve(&parsed))) {
        fuzz_check(parsed.scheme != STORE_SCHEME_ENV);
        check(&parsed, NULL);
    }
    for (int i = 0; i < 4; i++) unsetenv(names[i]);
    settings_reset();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    if (fuzz_byte(&input) % 2) {
        from_environment(&input);
        return 0;
    }
    char *url = fuzz_string(input.at, fuzz_left(&input));
    store_url_t parsed;
    if (fuzz_check_status(store_url_parse(url, &parsed))) check(&parsed, url);
    free(url);
    return 0;
}

void fuzz_seeds(void)
{
    static const char *const urls[] = {"tcp://node7:29500", "tcp://[fd00::7]:1", "tcp://10.0.0.1:65535", "file:///tmp/store", "env://", "tcp://:1", "http://x:80"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        char text[64] = "", name[16];
        snprintf(text + 1, sizeof text - 1, "%s", urls[i]);
        snprintf(name, sizeof name, "url_%zu", i);
        fuzz_seed(name, text, 1 + strlen(text + 1));
    }
    fuzz_seed("torchrun", "\1\16\5node7\00529500\4True", 19);
    fuzz_seed("setting", "\1\1\22tcp://node7:29500", 20);
    fuzz_seed("setting_is_env", "\1\1\6env://", 9);
}
