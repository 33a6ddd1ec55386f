/* SPDX-License-Identifier: Apache-2.0 */
/* What a library says that was built without OpenSSL's headers. Only transport/tls/tls_absent.c is linked. */
#include <gtest/gtest.h>

extern "C" {
#include "transport/tls/tls.h"
}

#include <cstring>

namespace {

const char *mode;

const char *setting(const char *name) { return strcmp(name, "TLS") == 0 ? mode : nullptr; }

} // namespace

TEST(TlsAbsent, AskingForItIsAnErrorAndNotAskingIsNot)
{
    quoit_transport_environment_t environment = {};
    environment.setting = setting;
    for (const char *off : {(const char *)nullptr, "", "off"}) {
        tls_context_t *context = reinterpret_cast<tls_context_t *>(1);
        mode = off;
        EXPECT_EQ(QUOIT_OK, tls_context_create(&environment, "tcp", &context));
        EXPECT_EQ(nullptr, context);
    }
    for (const char *on : {"psk", "certificates", "nonsense"}) {
        tls_context_t *context = nullptr;
        mode = on;
        EXPECT_EQ(QUOIT_ERR_INVALID, tls_context_create(&environment, "tcp", &context));
        EXPECT_EQ("tcp: QUOIT_TLS=" + std::string(on) + ", but TLS is not built in: this library was built without OpenSSL's headers (openssl/ssl.h of "
                  "version 3, Debian's libssl-dev)", quoit_last_error());
    }
    tls_context_destroy(nullptr);
    tls_session_destroy(nullptr);
}
