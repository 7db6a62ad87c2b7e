// The header as C++11, and that C++ finds the C functions.
#include "gdrapi.h"

#include <cstring>

static_assert(sizeof(gdr_mh_t) == 8, "a handle is a word");
static_assert(sizeof(gdr_info_t) == 48, "the newer structure");

int main() {
    int major = 0, minor = 0;
    gdr_runtime_get_version(&major, &minor);
    const char *name = nullptr;
    if (gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, &name) != 0) return 1;

    gdr_t g = gdr_open();
    gdr_mh_t handle{0};
    gdr_info_t info{};
    if (!g || gdr_pin_buffer(g, 0x6000000000000UL, GPU_PAGE_SIZE, 0, 0, &handle) != 0) return 2;
    if (gdr_get_info(g, handle, &info) != 0 || info.mapped_size != GPU_PAGE_SIZE) return 3;
    if (gdr_close(g) != 0) return 4;
    return major == 2 && minor == 6 && std::strcmp(name, "Write Combining") == 0 ? 0 : 5;
}
