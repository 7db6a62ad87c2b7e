/* P2P tokens, which old clients pass, mean nothing to persistent mappings. */
#include "check.h"

int main(void) {
    gdr_mh_t handle = {0};
    void *va = NULL;
    gdr_t g = gdr_open();
    CHECK(g != NULL);
    const struct { uint64_t p2p_token; uint32_t va_space; } tokens[] = {
        {0, 0}, {1, 2}, {0, 1}, {1, 0}, {UINT64_MAX, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        SUCCEEDS(gdr_pin_buffer(g, GPU_BUFFER, GPU_PAGE_SIZE, tokens[i].p2p_token,
                                tokens[i].va_space, &handle));
        SUCCEEDS(gdr_map(g, handle, &va, GPU_PAGE_SIZE));
        SUCCEEDS(gdr_copy_to_mapping(handle, va, "token", 5));
        SUCCEEDS(gdr_unpin_buffer(g, handle));
    }
    REFUSES(gdr_pin_buffer(NULL, GPU_BUFFER, GPU_PAGE_SIZE, 1, 2, &handle));
    REFUSES(gdr_pin_buffer(g, GPU_BUFFER, GPU_PAGE_SIZE, 1, 2, NULL));
    REFUSES(gdr_pin_buffer(g, 4096, GPU_PAGE_SIZE, 1, 2, &handle));
    SUCCEEDS(gdr_close(g));
    return 0;
}
