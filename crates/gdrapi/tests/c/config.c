/* gdrconfig.h, included as GDRCopy's programs do, names one CPU. */
#include <gdrapi.h>
#include <gdrconfig.h>

#include "check.h"

int main(void) {
    int names = 0;
#ifdef GDRAPI_X86
    names++;
#endif
#ifdef GDRAPI_ARM64
    names++;
#endif
#ifdef GDRAPI_POWER
    names++;
#endif
    CHECK(names == 1);
    return 0;
}
